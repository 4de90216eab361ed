"""`learning-to-invert` in the setting of its paper's public code, with fewer gradients, units and epochs.

    .venv/bin/python benchmarks/learning_to_invert.py --data npz:FILE --defense none --samples 10000

Wu et al. (UAI 2023, `main_learn_dlg.py --shared_model LeNet --model MLP-3000 --dataset CIFAR10`) attack one CIFAR-10
record: a LeNet with sigmoids and weights uniform in [-0.5, 0.5], images in [0, 1], cross-entropy. The attacker knows
the 50,000 training images, and the victim's records are test images. Their network learns from all 50,000 gradients for
200 epochs, and its best epoch is that on the victim's own images. Here some of the attacker's images choose it.
Defenses: `none`, `sign`, `prune` (99 % of the values become zero; theirs in the whole gradient, ours in every layer)
and `gauss` (noise of deviation 0.1 on every value).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import ClassVar, cast

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import Tensor, nn

from benchmarks._federation import public_settings
from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.learning_to_invert import LearningToInvert
from leakboard.core import registry
from leakboard.datasets.base import Dataset
from leakboard.datasets.loading import load_pool
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.grad_prune import GradPrune
from leakboard.defenses.ldp import Ldp
from leakboard.defenses.sign import Sign
from leakboard.federation.models.module import Module
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import ObservedRounds, Public, Training, client_name
from leakboard.federation.view import make_view, parse_threat
from leakboard.metrics.psnr import psnr

CLIENTS = 2


class LeNet(nn.Module):
    """Three convolutions with sigmoids and a linear layer, 15,826 weights, as in Deep Leakage from Gradients."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        steps = ((shape[0], 2), (12, 2), (12, 1))
        layers = [(nn.Conv2d(inputs, 12, 5, stride, 2), nn.Sigmoid()) for inputs, stride in steps]
        self.body = nn.Sequential(*(part for layer in layers for part in layer), nn.Flatten())
        self.last = nn.Linear(12 * (shape[1] // 4) * (shape[2] // 4), classes)
        for value in self.parameters():
            nn.init.uniform_(value, -0.5, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self.last(self.body(images))
        return found


class Gauss(Ldp):
    """Gaussian noise of deviation 0.1 on every value and no clipping that matters."""

    name: ClassVar[str] = "gauss"

    def sigma(self, public: Public, batch: int) -> float:
        """0.1."""
        return 0.1


DEFENSES: dict[str, Defense] = {
    "none": FedSGD(),
    "sign": Sign(feedback=False),
    "prune": GradPrune(ratio=0.99),
    "gauss": Gauss(clip=1e6),
}


def main() -> None:
    """Print one row of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="npz:FILE, with a test set")
    parser.add_argument("--defense", choices=DEFENSES, default="none")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, _, path = args.data.partition(":")
    dataset = cast(Dataset, registry.create("dataset", name, {"path": path}))
    pool, random = load_pool(dataset), torch.Generator().manual_seed(args.seed)
    train, test = (kind.nonzero()[:, 0] for kind in (~pool.is_test, pool.is_test))
    auxiliary = pool.take(train[torch.randperm(len(train), generator=random)])
    order = test[torch.randperm(len(test), generator=random)]
    shards = {client_name(i): pool.take(order[i * args.images : (i + 1) * args.images]) for i in range(CLIENTS)}
    defense, model = DEFENSES[args.defense], Module(target=f"{Path(__file__).resolve()}:LeNet").pinned()
    training = Training(rounds=1, batch_size=args.images, clients=CLIENTS, learning_rate=0.05, loss="ce")
    public = public_settings(dataset, pool, training, (args.images,) * CLIENTS, model, defense=defense)
    public = public.model_copy(update={"mean": (0.0,) * pool.shape[0], "std": (1.0,) * pool.shape[0]})
    observe = ObservedRounds(rounds=("first",), targets=args.images)
    outcome = Federation(defense, public, shards, observe, args.seed).run()
    view = make_view(outcome.transcript, parse_threat("server", CLIENTS), outcome.public, outcome.secrets, shards)
    attack = LearningToInvert(samples=args.samples, units=args.units, epochs=args.epochs, bins=args.bins)
    task = ReconstructionTask("first", 0, args.images, 1, None, (1,) * args.images)
    started = time.process_time()
    answer = attack.reconstruct(Knowledge(view, defense, auxiliary, args.seed), task)
    spent = time.process_time() - started
    truth, found = shards[client_name(0)].images, torch.cat(answer.images)
    guess = auxiliary.images.mean(0).expand_as(truth)
    errors = [float((images - truth).square().mean()) for images in (found, guess)]
    scores = psnr(found, truth)
    print(
        f"| {args.defense} | {args.samples:,} | {args.units} | {args.epochs} | {errors[0]:.4f} | {errors[1]:.4f} | "
        f"{float(scores.mean()):.1f} ({float(scores.min()):.1f} to {float(scores.max()):.1f}) | "
        f"{float(psnr(guess, truth).mean()):.1f} | {spent:.0f} |",
        *answer.flags,
        flush=True,
    )


if __name__ == "__main__":
    main()
