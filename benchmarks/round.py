"""One round of the federation under fedsgd, compared with one plain SGD step on the same images; set-up of parties.

    .venv/bin/python benchmarks/round.py [round] [setup] [curve] [--clients K ...] [--batch B] [--rounds R]

round  ResNet20, batches of 32, K = 5 and 100. The plain step runs one forward and one backward pass over the images of
       each client, takes the mean and makes one step of `torch.optim.SGD` with momentum. It has the same layout of
       weights and images (channels_last) and no federation around it. The target is 1.05.
curve  `quick`'s training (convnet, 5 clients, batches of 64, 359 test images of 1 x 32 x 32): the CPU time of the
       accuracy between against that of the rounds, with the rule of `accuracy_curve` and with all test images after
       as many epochs. The target is 0.05.
setup  A federation of 10,000 parties is made: at most one CPU second, and linear in the number of parties.

The plain step runs between the rounds of one run of the federation, so that both see the same load of the machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import nn

from benchmarks._ratio import add_parts, cpu_seconds, line
from leakboard.core import registry
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.models.base import Model
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Public, Training, client_name
from leakboard.federation.task import channels_last
from leakboard.leaderboard.cells.accuracy_curve import AccuracyCurve

SHAPE, CLASSES = (3, 32, 32), 10
DIGITS, TEST_IMAGES = (1, 32, 32), 359
SETUP_SECONDS = 1.0


def public_of(
    model: str,
    clients: int,
    batch: int,
    rounds: int,
    participants: int | None = None,
    shape: tuple[int, int, int] = SHAPE,
) -> Public:
    """The settings of a federation with one batch per client."""
    training = Training(
        rounds=rounds, batch_size=batch, clients=clients, participants=participants, learning_rate=0.01, momentum=0.9
    )
    return Public(
        defense="fedsgd",
        parameters={},
        model=model,
        model_parameters={},
        shape=shape,
        classes=CLASSES,
        mean=(0.5,) * shape[0],
        std=(0.25,) * shape[0],
        training=training,
        total_rounds=rounds,
        shard_sizes=(batch,) * clients,
    )


def random_images(count: int, shape: tuple[int, int, int], seed: int) -> LabelledImages:
    """Images of random pixels with random labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return LabelledImages(torch.rand(count, *shape, generator=generator), labels)


def shards_of(public: Public) -> list[LabelledImages]:
    """One shard per client."""
    return [random_images(size, public.shape, seed) for seed, size in enumerate(public.shard_sizes)]


class PlainSteps:
    """The peer: a torch network and optimiser, one forward and backward pass per client, one step."""

    def __init__(self, public: Public, shards: list[LabelledImages]) -> None:
        model = registry.create("model", public.model, public.model_parameters)
        assert isinstance(model, Model)
        self.network = model.build(public.shape, public.classes)
        for weight in self.network.parameters():
            weight.data = channels_last(weight.data)
        self.shards, self.training = shards, public.training
        self.optimiser = torch.optim.SGD(
            self.network.parameters(), lr=self.training.learning_rate, momentum=self.training.momentum
        )
        self.mean, self.std = (torch.tensor(value).view(-1, 1, 1) for value in (public.mean, public.std))

    def step(self) -> None:
        """One step on the images of all clients; the gradients add up to their mean."""
        self.optimiser.zero_grad()
        for shard in self.shards:
            inputs = channels_last((shard.images - self.mean) / self.std)
            logits = self.network(inputs)
            target = nn.functional.one_hot(shard.labels, CLASSES).to(logits)
            loss = 0.5 * (logits - target).square().sum(dim=1).mean() / len(self.shards)
            loss.backward()
        self.optimiser.step()


def compare_round(model: str, clients: int, batch: int, rounds: int) -> str:
    """The smallest CPU time of a round and of a plain step, taken alternately in one run."""
    public = public_of(model, clients, batch, rounds)
    shards = shards_of(public)
    plain = PlainSteps(public, shards)
    plain.step()
    ours: list[float] = []
    peer: list[float] = []
    started = time.process_time()

    def after_round(done: int, model: Callable[[], Parameters]) -> None:
        nonlocal started
        ours.append(time.process_time() - started)
        peer.append(cpu_seconds(plain.step))
        started = time.process_time()

    named = {client_name(i): shard for i, shard in enumerate(shards)}
    Federation(FedSGD(), public, named, None, 0, after_round=after_round).run()
    name = f"fedsgd round against a plain step, {model}, K = {clients}, batch {batch}"
    return line(name, min(ours[1:]), min(peer[1:]), "CPU s", 1.05)


def compare_curve(rounds: int) -> list[str]:
    """CPU seconds of the accuracy between, by the rule and on all test images, against those of the rounds."""
    public = public_of("convnet", 5, 64, rounds, shape=DIGITS)
    test = random_images(TEST_IMAGES, DIGITS, -1)
    curve, whole = AccuracyCurve(public, test), AccuracyCurve(public, test)
    whole.images, whole.test = len(test), test
    seconds = {"rounds": 0.0, "part": 0.0, "all": 0.0}
    started = time.process_time()

    def after_round(done: int, model: Callable[[], Parameters]) -> None:
        nonlocal started
        seconds["rounds"] += time.process_time() - started
        seconds["part"] += cpu_seconds(lambda: curve.note(done, model))
        seconds["all"] += cpu_seconds(lambda: whole.note(done, model))
        started = time.process_time()

    named = {client_name(i): shard for i, shard in enumerate(shards_of(public))}
    Federation(FedSGD(), public, named, None, 0, after_round=after_round).run()
    parts = {f"{curve.images} of {TEST_IMAGES} test images": ("part", 0.05), "all test images": ("all", None)}
    return [
        line(
            f"accuracy at {len(curve.points)} epochs on {what}, convnet", seconds[key], seconds["rounds"], "CPU s", aim
        )
        for what, (key, aim) in parts.items()
    ]


def setup_of(parties: int) -> float:
    """CPU seconds to make a federation of so many clients."""
    public = public_of("resnet20", parties, 1, 1, participants=10)
    return cpu_seconds(lambda: Federation(FedSGD(), public, {}, None, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_parts(parser, "round", "curve", "setup")
    parser.add_argument("--clients", nargs="+", type=int, default=[5, 100])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--curve-rounds", type=int, default=100)
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts = given.parts or ["round", "curve", "setup"]
    if "setup" in parts:
        setup_of(100)
        few, many = setup_of(1_000), setup_of(10_000)
        print(line("set-up of 10,000 parties", many, SETUP_SECONDS, "CPU s", 1.0), flush=True)
        print(line("set-up of 10,000 parties against ten times that of 1,000", many, 10 * few, "CPU s"), flush=True)
    if "curve" in parts:
        print("\n".join(compare_curve(given.curve_rounds)), flush=True)
    if "round" in parts:
        for clients in given.clients:
            print(compare_round(given.model, clients, given.batch, given.rounds), flush=True)


if __name__ == "__main__":
    main()
