"""Inverting Gradients compared with breaching 0.1.2: iterations per CPU second and PSNR, one run, one thread.

    .venv/bin/python benchmarks/inversion.py [--data npz:FILE] [--iterations N] [--seeds N] [--timed N] [--rounds N]
    .venv/bin/python benchmarks/inversion.py --equal N [--data npz:FILE] [--images N] [--model NAME] [--attack NAME]

Both attack the same gradients of the same untrained ResNet20 (ours, without batch norm, cross-entropy), with labels,
the same objective, total variation, learning rate and schedule. breaching attacks one image after the other,
because it cannot attack independent images together; ours attacks one alone, then all together. breaching runs in a
separate environment (.cache/bench/breaching), created on first use. Its imports that this attack does not need are
replaced by stand-ins.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.extend([str(ROOT / "src"), str(ROOT)])

#: breaching's step size and total variation, in the model's normalised space
STEP, TV = 0.1, 0.02
IMAGES = 16
#: step size and weight of the total variation, for images in the model's normalised space
Settings = tuple[float, float]


# --- the peer's side, run by its own interpreter ------------------------------------------------


def peer(folder: Path) -> None:
    """Run the attacks that lines on stdin describe; answer each line with its CPU seconds."""
    answers, sys.stdout = sys.stdout, sys.stderr  # breaching prints
    names = ("models", "transforms", "transforms.functional", "datasets", "datasets.utils", "models.resnet")
    for name in ("lpips", "torchvision", *(f"torchvision.{part}" for part in names)):
        sys.modules[name] = MagicMock()
    breaching: Any = importlib.import_module("breaching")
    attacks: Any = importlib.import_module("breaching.attacks")
    from leakboard.federation.models.convnet import ConvNet
    from leakboard.federation.models.resnet import ResNet20

    case = torch.load(folder / "case.pt", weights_only=True)
    network = {"convnet": ConvNet, "resnet20": ResNet20}[case["model"]]().build(case["shape"], case["classes"])
    network.load_state_dict(case["weights"])
    settings = breaching.get_attack_config("invertinggradients")
    settings.optim.callback = 10**9
    about = SimpleNamespace(shape=case["shape"], mean=case["mean"], std=case["std"], modality="vision")
    payload = [{"parameters": list(network.parameters()), "buffers": [], "metadata": about}]
    for line in sys.stdin:
        order = json.loads(line)
        settings.optim.max_iterations = order["iterations"]
        settings.optim.step_size, settings.regularization.total_variation.scale = order["step"], order["tv"]
        torch.manual_seed(order["seed"])
        started, found = time.process_time(), []
        for index in order["images"]:
            known = {"num_data_points": 1, "labels": case["labels"][index : index + 1], "local_hyperparams": None}
            gradients = [case["gradients"][name][index] for name, _ in network.named_parameters()]
            shared = [{"gradients": gradients, "buffers": [], "metadata": known}]
            setup = {"device": torch.device("cpu"), "dtype": torch.float}
            attacker = attacks.prepare_attack(network, torch.nn.CrossEntropyLoss(), settings, setup)
            found.append(attacker.reconstruct(payload, shared, {})[0]["data"].detach())
        seconds = time.process_time() - started
        torch.save(torch.cat(found), folder / "found.pt")
        print(json.dumps(seconds), file=answers, flush=True)


def environment() -> str:
    """The interpreter of breaching's environment, which is created on first use."""
    from benchmarks._ratio import peer_python  # not at the top: breaching's own interpreter runs this file too

    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("pydantic==")]
    torch_pin = f"torch=={torch.__version__.partition('+')[0]}"
    return str(peer_python("breaching", "setuptools<81", torch_pin, *pins, "breaching==0.1.2"))


# --- ours ---------------------------------------------------------------------------------------


@dataclass
class Bench:
    """The same gradients for both, and breaching's process."""

    knowledge: Any
    problems: tuple[Any, ...]
    images: Tensor
    folder: Path
    process: subprocess.Popen[str]

    def ours(
        self,
        images: range,
        iterations: int,
        seed: int = 0,
        settings: Settings = (STEP, TV),
        name: str = "inverting-gradients",
    ) -> tuple[float, Tensor]:
        """CPU seconds and images (N, C, H, W) of ours; step size and total variation are those of normalised images."""
        from dataclasses import replace

        from leakboard.attacks.base import ReconstructionAttack, ReconstructionTask
        from leakboard.core import registry

        chosen = tuple(self.problems[i] for i in images)

        class Given(ReconstructionTask):
            def problems(self, knowledge: Any) -> tuple[Any, ...]:
                return chosen

        std = self.knowledge.public.std[0]
        step, tv = settings
        attack = registry.create(
            "attack", name, {"iterations": iterations, "learning_rate": step * std, "tv": tv / std}
        )
        assert isinstance(attack, ReconstructionAttack)
        started = time.process_time()
        answer = attack.reconstruct(
            replace(self.knowledge, seed=seed), Given("first", 0, len(chosen), 1, None, (1,) * len(chosen))
        )
        return time.process_time() - started, torch.cat(list(answer.images))

    def theirs(
        self, images: range, iterations: int, seed: int = 0, settings: Settings = (STEP, TV)
    ) -> tuple[float, Tensor]:
        """CPU seconds and images (N, C, H, W) of breaching."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        order = {"images": list(images), "iterations": iterations, "seed": seed}
        order |= {"step": settings[0], "tv": settings[1]}
        print(json.dumps(order), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("breaching's process ended; its error is above")
        mean, std = self.knowledge.public.mean, self.knowledge.public.std
        found = torch.load(self.folder / "found.pt", weights_only=True)
        return float(json.loads(line)), found * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)


def prepare(data: str, folder: Path, model: str = "resnet20") -> Bench:
    """An untrained network, the first images of the data, their gradients; starts breaching's process."""
    from leakboard.attacks.base import Inversion, Knowledge
    from leakboard.core import registry
    from leakboard.datasets.base import Dataset
    from leakboard.datasets.loading import load_pool
    from leakboard.defenses.base import Gradient
    from leakboard.defenses.fedsgd import FedSGD
    from leakboard.federation.settings import Public, Training
    from leakboard.federation.task import task_of
    from leakboard.federation.view import View

    name, _, path = data.partition(":")
    dataset = registry.create("dataset", name, {"path": path} if path else {})
    assert isinstance(dataset, Dataset)
    pool = load_pool(dataset)
    victims = pool.take(torch.arange(IMAGES))
    colours = victims.images.expand(-1, 3, -1, -1)  # breaching's total variation takes three channels
    mean, std = (0.5,) * 3, (0.25,) * 3
    public = Public(
        defense="fedsgd",
        parameters={},
        model=model,
        model_parameters={},
        shape=(3, 32, 32),
        classes=pool.classes,
        mean=mean,
        std=std,
        training=Training(rounds=1, batch_size=1, loss="ce"),
        total_rounds=1,
        shard_sizes=(IMAGES,),
    )
    task = task_of(public)
    weights = task.initial(0)
    found = [task.gradient(weights, i[None], y[None])[0] for i, y in zip(colours, victims.labels, strict=True)]
    case = {
        "model": model,
        "shape": public.shape,
        "classes": pool.classes,
        "mean": mean,
        "std": std,
        "weights": weights,
        "labels": victims.labels,
        "gradients": {name: torch.stack([g[name] for g in found]) for name in found[0]},
    }
    torch.save(case, folder / "case.pt")
    process = subprocess.Popen(
        [environment(), __file__, "--peer", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    problems = tuple(Inversion(weights, Gradient(g, 1, 1), y[None]) for g, y in zip(found, victims.labels, strict=True))
    view = View("server", (), public, (), {}, {})
    return Bench(
        Knowledge(view, FedSGD(), pool.take(torch.arange(IMAGES, 2 * IMAGES)), 0), problems, colours, folder, process
    )


def speed(bench: Bench, timed: int, rounds: int) -> None:
    """Alternating rounds, the best of each."""
    from benchmarks._ratio import line

    best = {"theirs": 0.0, "one": 0.0, "all": 0.0}
    for _ in range(rounds + 1):  # the first one also warms up
        rates = {
            "theirs": timed / bench.theirs(range(1), timed)[0],
            "one": timed / bench.ours(range(1), timed)[0],
            "all": IMAGES * timed / bench.ours(range(IMAGES), timed)[0],
        }
        best = {name: max(best[name], rate) for name, rate in rates.items()}
    unit = "image-iterations per CPU s"
    print(line("gradient inversion, ResNet20, one image", best["one"], best["theirs"], unit, 1.8, at_most=False))
    print(
        line(f"gradient inversion, ResNet20, {IMAGES} images", best["all"], best["theirs"], unit, 4.0, at_most=False),
        flush=True,
    )


def quality(bench: Bench, iterations: int, seeds: int) -> None:
    """Mean PSNR over all images, for every seed."""
    from leakboard.metrics.psnr import psnr

    for seed in range(seeds):
        row = {"name": f"PSNR after {iterations} iterations, n = {IMAGES}", "seed": seed}
        for name, attack in (("ours", bench.ours), ("peer", bench.theirs)):
            seconds, found = attack(range(IMAGES), iterations, seed)
            row[name] = round(float(psnr(found, bench.images).mean()), 2)
            row[f"{name} CPU s"] = round(seconds, 1)
        print(json.dumps(row), flush=True)


#: step sizes and weights of the total variation (of normalised images) among which each side finds its own
GRID = tuple((step, tv) for step in (0.1, 0.4) for tv in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1))


def equal_seconds(data: str, model: str, iterations: int, count: int, names: list[str]) -> None:
    """PSNR of the first `count` images after equal CPU seconds, each side with its best settings of the same grid.

    The settings are chosen on the next `count` images, by PSNR, at the same budget. breaching takes `iterations`; each
    of our attacks (`names`) takes as many as fit into the same CPU seconds.
    """
    from functools import partial

    from leakboard.metrics.psnr import psnr

    with tempfile.TemporaryDirectory() as folder:
        bench, trial = prepare(data, Path(folder), model), max(1, iterations // 4)
        shown, others = range(count), range(count, 2 * count)
        try:
            budget = bench.theirs(shown, iterations)[0]
            row: dict[str, Any] = {"name": f"PSNR at equal CPU seconds, {model}, n = {count}", "unit": "dB"}
            sides: dict[str, tuple[Any, int]] = {"peer": (bench.theirs, iterations)}
            for name in names:
                ours = partial(bench.ours, name=name)
                ours(shown, 1)  # warm-up
                sides[name] = ours, int(budget * trial / ours(shown, trial)[0])
            for side, (attack, steps) in sides.items():
                quality = {}
                for point in GRID:
                    seconds, found = attack(others, steps, 0, point)
                    quality[point] = float(psnr(found, bench.images[count : 2 * count]).mean())
                    print(side, point, round(quality[point], 2), "dB", round(seconds, 1), "CPU s", file=sys.stderr)
                best = max(quality, key=lambda point: quality[point])
                seconds, found = attack(shown, steps, 0, best)
                row[side] = round(float(psnr(found, bench.images[:count]).mean()), 2)
                row |= {f"{side} CPU s": round(seconds, 1), f"{side} step, tv, iterations": [*best, steps]}
                row[f"{side} grid"] = {f"{step}, {tv}": round(value, 2) for (step, tv), value in quality.items()}
        finally:
            bench.process.terminate()
    row["difference"] = {name: round(row[name] - row["peer"], 2) for name in names}
    row |= {"target": 1.0, "ok": max(row["difference"].values()) >= 1}
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--timed", type=int, default=60, help="iterations of each timed attack")
    parser.add_argument("--rounds", type=int, default=3, help="number of timings; the best counts")
    parser.add_argument(
        "--equal", type=int, default=0, metavar="N", help="only PSNR at the CPU seconds of N iterations"
    )
    parser.add_argument("--images", type=int, default=4, help="images of --equal, the first ones of the data")
    parser.add_argument("--model", action="append", choices=("convnet", "resnet20"), help="networks of --equal")
    parser.add_argument("--attack", action="append", help="our attacks of --equal; sized-inversion unless told")
    parser.add_argument("--peer", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peer:
        peer(given.peer)
        return
    if given.equal:
        for model in given.model or ("convnet", "resnet20"):
            equal_seconds(given.data, model, given.equal, given.images, given.attack or ["sized-inversion"])
        return
    with tempfile.TemporaryDirectory() as folder:
        bench = prepare(given.data, Path(folder))
        try:
            speed(bench, given.timed, given.rounds)
            quality(bench, given.iterations, given.seeds)
        finally:
            bench.process.terminate()


if __name__ == "__main__":
    main()
