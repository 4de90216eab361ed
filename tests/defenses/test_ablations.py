"""mp-cdp, mp-dp-naive and mp-ldp: the noise is where and as large as they say. False alarms: once in 1,000 each."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from leakboard.defenses.building_blocks.model_perturbation import unpack_secret
from leakboard.defenses.mp_cdp import MpCdp
from leakboard.defenses.mp_dp import MpDp
from leakboard.defenses.mp_ldp import MpLdp
from leakboard.defenses.noise.calibration import gaussian_mu, gopa_theta
from leakboard.federation.settings import SERVER, Dropout
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat, relative, run, updates

STILL: dict[str, Any] = {"precision": "float64", "learning_rate": 1e-13, "momentum": 0.0}
FALSE_ALARM = 1e-3


def without_noise(transitional: bool, **training: Any) -> Run:
    """The same rounds with clipping alone: mp-dp without noise, or mp."""
    quiet = create("mp-dp", noise=False) if transitional else create("mp", clip=1.0)
    return run(quiet, **{**STILL, **training})


def aggregate_noise(noisy: Observation, clean: Observation) -> Tensor:
    first, second = noisy.states[SERVER]["velocity"], clean.states[SERVER]["velocity"]
    return flat({name: value - second[name] for name, value in first.items()})


def message_noise(noisy: Observation, clean: Observation, client: str = "client:0") -> Tensor:
    return flat(updates(noisy)[client]["gradient"]) - flat(updates(clean)[client]["gradient"])


@pytest.mark.parametrize("dropped", [False, True])
def test_mp_cdp_adds_central_noise_of_the_stated_size_and_the_messages_are_exact(dropped: bool) -> None:
    """S / senders, not S / clients: a client that drops out makes the mean more sensitive."""
    drops = (Dropout(client=2, round=0, step="update"),) if dropped else ()
    noisy = run(create("mp-cdp"), **STILL, dropouts=drops)
    clean = without_noise(transitional=False, dropouts=drops)
    at, quiet = noisy.rounds("train")[0], clean.rounds("train")[0]
    added = aggregate_noise(at, quiet)
    senders = 2 if dropped else 3
    sigma = 2 / 4 / senders / gaussian_mu(3.0)
    assert isinstance(noisy.defense, MpCdp)
    assert noisy.defense.central_sigma(noisy.public, senders, 4) == pytest.approx(sigma)
    paper = MpCdp(mode="paper").central_sigma(noisy.public, senders, 4)
    assert paper == pytest.approx(2 / 4 / senders * math.sqrt(2 * math.log(1.25e5)) / 3)
    assert stats.kstest(added.numpy(), "norm", args=(0, sigma)).pvalue > FALSE_ALARM
    assert relative(flat(updates(at)["client:0"]["gradient"]), flat(updates(quiet)["client:0"]["gradient"])) < 1e-12


def test_mp_dp_naive_recovers_a_heavy_tail() -> None:
    """What the client adds is Gaussian; the server multiplies by R = r_i / r_j, so a small r_j makes it large."""
    shared: dict[str, Any] = {**STILL, "model_parameters": {"hidden": [64, 64]}}
    noisy, clean = run(create("mp-dp-naive"), **shared), run(create("mp", clip=1.0), **shared)
    at, quiet = noisy.rounds("train")[0], clean.rounds("train")[0]
    sigma = 1 / gaussian_mu(3.0) * 2 / 4
    sent = message_noise(at, quiet)
    assert stats.kstest(sent.numpy(), "norm", args=(0, sigma)).pvalue > FALSE_ALARM

    readings = [
        r.defense.interpret(r.view("server"))[1].gradients["client:0"].values["3.weight"] for r in (noisy, clean)
    ]
    recovered = readings[0] - readings[1]
    r = unpack_secret(at.states[SERVER]["secret"]).r
    columns = (recovered / r[1][:, None]).std(0)  # one per column j: sigma / r_j
    slope = stats.linregress((1 / r[0]).log().numpy(), columns.log().numpy())
    assert slope.slope == pytest.approx(1.0, abs=0.1)
    assert float(columns.max() / columns.min()) > 10
    assert float(stats.kurtosis(recovered.flatten().numpy())) > 3  # a Gaussian has 0


def test_mp_ldp_has_no_pairwise_noise_and_pays_for_it() -> None:
    """Its mean carries (2/3) sigma^2 / K with sigma = S / mu, the mp-dp mean (2/3) sigma_eta^2 / K."""
    clients = 5
    noisy, clean = run(create("mp-ldp"), **STILL, clients=clients), without_noise(transitional=True, clients=clients)
    at, quiet = noisy.rounds("train")[0], clean.rounds("train")[0]
    sent = [message_noise(at, quiet, name) for name in noisy.public.clients]
    sigma = 1 / gaussian_mu(3.0) * 2 / 4
    edge = math.sqrt(2) * sigma
    for value in sent:
        assert stats.kstest(value.numpy(), "uniform", args=(-edge, 2 * edge)).pvalue > FALSE_ALARM
    apart = torch.corrcoef(torch.stack(sent)).fill_diagonal_(0).abs().max()
    assert float(apart) < 5 / math.sqrt(len(sent[0]))  # no two clients share anything: false alarm 6e-7 per pair
    mean = torch.stack(sent).mean(0)
    expected = 2 / 3 * sigma**2 / clients
    assert float(mean.square().mean()) == pytest.approx(expected, rel=3.3 * math.sqrt(2 / len(mean)))


@pytest.mark.parametrize("clients", [5, 100])
def test_what_the_pairwise_noise_is_worth(clients: int) -> None:
    """By Gopa's theorem sqrt(K / (1 + 1/kappa)) less noise; by the paper's formula K sqrt(theta) / (1 + kappa^-1/2)."""
    local, shared = MpLdp(mode="paper"), MpDp(mode="paper")
    public = run(create("mp-ldp")).public
    sigma = local.unit_sigma(public) * local.size(4)
    found = shared.sigmas(public, clients, [], 4).own
    assert sigma / found == pytest.approx(clients * math.sqrt(gopa_theta(3.0)) / (1 + 1 / math.sqrt(10)))
    corrected = MpDp(sensitivity="client")
    everyone = [(a, b) for a in range(clients) for b in range(a + 1, clients)]
    exact = corrected.sigmas(public, clients, everyone, 4).own
    alone = corrected.sigmas(public, 1, [], 4).own
    n = clients
    assert alone / exact == pytest.approx(1 / math.sqrt(1 / n + (1 - 1 / n) / (1 + 10 * n)))
    assert alone / exact == pytest.approx(math.sqrt(n), rel=0.06)
