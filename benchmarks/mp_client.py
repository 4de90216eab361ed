"""A client's step under mp-dp (V2, float32, batch 64) compared with FedSGD; clipping and noise timed separately.

    .venv/bin/python benchmarks/mp_client.py [MODEL ...]

mp-dp needs one forward and three backward passes, FedSGD one of each. If a backward pass cost two forward passes, the
ratio would be (1 + 3 * 2) / (1 + 2) = 2.33. The line "floor" uses the measured costs: (F + 3 b) / (F + b).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from benchmarks._ratio import best_cpu_seconds, line
from leakboard.core.randomness import Stream
from leakboard.defenses.noise.laws import signed_dn
from leakboard.defenses.perturbation.client import expanded_of, train
from leakboard.defenses.perturbation.server import draw_secret, perturb
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import channels_last, task_of

BATCH, CLASSES, NEIGHBOURS = 64, 10, 4


def works_of(model: str) -> dict[str, Callable[[], object]]:
    """The pieces of work that are timed alternately."""
    public = Public(
        defense="mp-dp",
        parameters={},
        model=model,
        model_parameters={},
        shape=(3, 32, 32),
        classes=CLASSES,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        training=Training(rounds=1, batch_size=BATCH),
        total_rounds=1,
        shard_sizes=(BATCH,),
    )
    task = task_of(public)
    weights = task.initial(0)
    expanded = expanded_of(public, transitional=True)
    stream = Stream(bytes(32))
    secret = draw_secret(stream, expanded.wiring, CLASSES, transitional=True, variant="V2", scale=0.1)
    hidden = perturb(weights, expanded.wiring, secret, transitional=True, dtype=torch.float32)
    direction = secret.direction.float()
    images = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(BATCH) % CLASSES
    targets = torch.nn.functional.one_hot(labels, CLASSES).float()
    size = sum(weights[name].numel() for name in task.parameter_names)

    def forward() -> object:
        leaves = {name: channels_last(value).requires_grad_() for name, value in weights.items()}
        return task.logits(leaves, channels_last(images), train=True)

    return {
        "plain": lambda: task.gradient(weights, images, labels),
        "ours": lambda: train(expanded, hidden, direction, task.normalise(images), targets),
        "forward": forward,
        "clipping": lambda: loss_norms(task, weights, images, labels),
        "noise": lambda: [signed_dn(stream, 1.0, size) for _ in range(1 + NEIGHBOURS)],
    }


def main(models: list[str]) -> None:
    torch.set_num_threads(1)
    for model in models:
        best = best_cpu_seconds(works_of(model))
        backward = best["plain"] - best["forward"]
        print(line(f"mp-dp client step, {model}", best["ours"], best["plain"], "CPU s", 3.0))
        print(line(f"floor of that, {model}", best["forward"] + 3 * backward, best["plain"], "CPU s"))
        for part in ("clipping", "noise"):
            print(line(f"mp-dp {part}, {model} (separately)", best[part], best["plain"], "CPU s"))


if __name__ == "__main__":
    main(sys.argv[1:] or ["convnet", "resnet8", "resnet20"])
