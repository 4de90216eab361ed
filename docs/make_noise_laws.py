"""The figure docs/noise-laws.png, and the Kolmogorov-Smirnov figures of docs/noise-laws.md.

python docs/make_noise_laws.py
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from leakboard.core.randomness import Stream, derive_key  # noqa: E402
from leakboard.defenses.noise.calibration import gopa_sigmas  # noqa: E402
from leakboard.defenses.noise.laws import Floats, positive_dn, signed_dn  # noqa: E402

DRAWS = 200_000
SIGMA = gopa_sigmas(3.0, 5).own  # epsilon 3, five clients
FACTOR = 0.5  # one R that the server drew


def stream(name: str) -> Stream:
    """A stream under a fixed key: the figure is the same every time."""
    return Stream(derive_key(bytes(32), "docs/noise-laws", name))


def draw() -> dict[str, Floats]:
    """All samples of the figure."""
    one = positive_dn(stream("one"), 1, DRAWS)
    r, s = positive_dn(stream("r"), 2, DRAWS), positive_dn(stream("s"), 2, DRAWS)
    eta = signed_dn(stream("eta"), SIGMA, DRAWS)
    return {"one": one, "two": r, "eta": eta, "product": r * s * eta, "single": one * eta, "given": FACTOR * eta}


def histogram(ax: Axes, values: Floats, color: str, label: str, limits: tuple[float, float]) -> None:
    """A density histogram, as drawn."""
    settings = {"stat": "density", "bins": 60, "binrange": limits, "element": "step", "alpha": 0.35}
    sns.histplot(x=values, ax=ax, color=color, label=label, linewidth=1, **settings)


def server(ax: Axes, drawn: dict[str, Floats], colors: list[tuple[float, float, float]]) -> None:
    """The server's factors."""
    x = np.linspace(0, 3, 400)
    histogram(ax, drawn["one"], colors[0], "DN*(1)", (0, 3))
    histogram(ax, drawn["two"], colors[1], "DN*(2)", (0, 3))
    ax.plot(x, stats.chi.pdf(x, 3, scale=1 / math.sqrt(2)), color="black", lw=1.2, label="χ₃/√2")
    ax.set(title="The server's factors r, s: positive", xlabel="value", xlim=(0, 3))


def client(ax: Axes, drawn: dict[str, Floats], color: tuple[float, float, float]) -> None:
    """The client's factor."""
    edge = math.sqrt(2) * SIGMA
    x = np.array([-edge, -edge, edge, edge])
    histogram(ax, drawn["eta"], color, "DN(σ, 1)", (-edge, edge))
    ax.plot(x, [0, 1 / (2 * edge), 1 / (2 * edge), 0], color="black", lw=1.2, label="Uniform(±√2 σ)")
    ax.set(title="The client's factor η: uniform", xlabel="value", xlim=(-2.6, 2.6), ylim=(0, 0.62))


def product(ax: Axes, values: Floats, color: tuple[float, float, float], label: str, title: str) -> None:
    """A product against the Gaussian that the paper counts on."""
    x = np.linspace(-2.6, 2.6, 400)
    edge = min(2.6, float(np.abs(values).max()))
    histogram(ax, values, color, label, (-edge, edge))
    ax.plot(x, stats.norm.pdf(x, scale=SIGMA), color="black", lw=1.2, label="N(0, σ²)")
    ax.set(title=title, xlabel="value", xlim=(-2.6, 2.6), ylim=(0, 1.35))


def figure(drawn: dict[str, Floats]) -> None:
    """Four panels into docs/noise-laws.png."""
    sns.set_theme(style="whitegrid", font_scale=0.85)
    colors = sns.color_palette("colorblind")
    fig, axes = plt.subplots(2, 2, figsize=(9, 5.8), constrained_layout=True)
    server(axes[0, 0], drawn, colors)
    client(axes[0, 1], drawn, colors[2])
    product(
        axes[1, 0],
        drawn["product"],
        colors[4],
        "r·s·η, fresh r and s",
        "The paper: over all r and s, r·s·η is Gaussian",
    )
    title = f"The gap: the server drew R = r·s (here {FACTOR})"
    product(axes[1, 1], drawn["given"], colors[3], f"R·η given R = {FACTOR}", title)
    for ax in axes.flat:
        ax.legend(loc="upper right", frameon=True)
        ax.set_ylabel("density")
    fig.savefig(ROOT / "docs" / "noise-laws.png", dpi=110)
    plt.close(fig)


def report(drawn: dict[str, Floats]) -> None:
    """The rows of the table in docs/noise-laws.md."""
    edge = math.sqrt(2) * SIGMA
    tests: list[tuple[str, Floats, str, tuple[float, ...]]] = [
        ("DN*(1) against χ₃/√2", drawn["one"], "chi", (3, 0, 1 / math.sqrt(2))),
        ("DN(σ, 1) against Uniform(±√2σ)", drawn["eta"], "uniform", (-edge, 2 * edge)),
        ("DN*(2)·DN*(2)·DN(σ, 1) against N(0, σ²)", drawn["product"], "norm", (0, SIGMA)),
        ("DN*(1)·DN(σ, 1) against N(0, σ²)", drawn["single"], "norm", (0, SIGMA)),
        (f"R·DN(σ, 1) given R = {FACTOR} against N(0, σ²)", drawn["given"], "norm", (0, SIGMA)),
        (
            f"R·DN(σ, 1) given R = {FACTOR} against N(0, its own variance)",
            drawn["given"],
            "norm",
            (0, drawn["given"].std()),
        ),
    ]
    for name, values, law, arguments in tests:
        found = stats.kstest(values, law, args=arguments)
        chance = (
            f"{found.pvalue:.3f}"
            if found.pvalue > 1e-3
            else f"{found.pvalue:.1g}"
            if found.pvalue > 0
            else "below 1e-300"
        )
        print(f"| {name} | {found.statistic:.4f} | {chance} |")


if __name__ == "__main__":
    samples = draw()
    figure(samples)
    report(samples)
