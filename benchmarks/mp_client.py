"""A client's step under mp-dp and mp-dp+ (V2, float32, batch 64) and a clipped step, compared with FedSGD.

    .venv/bin/python benchmarks/mp_client.py [MODEL ...]

mp-dp needs one forward and three backward passes, FedSGD one of each. If a backward pass cost two forward passes, the
ratio would be (1 + 3 * 2) / (1 + 2) = 2.33. The line "floor" uses the measured costs: (F + 3 b) / (F + b). Clipping
adds the norms of the examples' gradients, from the same passes. The noise is timed separately.
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
from leakboard.defenses.perturbation.client import expanded_of, train, train_clipped
from leakboard.defenses.perturbation.clipping import true_norms
from leakboard.defenses.perturbation.server import draw_secret, perturb
from leakboard.federation.example_norms import clip_factors, clipped_gradient
from leakboard.federation.example_passes import Pass
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
    plain = expanded_of(public, transitional=False)
    narrow = draw_secret(stream, plain.wiring, CLASSES, transitional=False, variant="V2", scale=3e-4, spread=2.0)
    shown = perturb(weights, plain.wiring, narrow, transitional=False, dtype=torch.float32)
    size = sum(weights[name].numel() for name in task.parameter_names)

    def forward() -> object:
        leaves = {name: channels_last(value).requires_grad_() for name, value in weights.items()}
        return task.logits(leaves, channels_last(images), train=True)

    def by_oracle(made: Pass) -> torch.Tensor:
        return clip_factors(true_norms(made, expanded, hidden, secret), 1.0)

    def by_client(made: Pass) -> torch.Tensor:
        pairs = zip(made.norms(keep=True), (1.0, 500.0, 1e5), strict=True)  # the bounds of mp-dp+
        return torch.stack([clip_factors(norms, bound) for norms, bound in pairs]).amin(0)

    inputs = task.normalise(images)
    along = narrow.direction.float()
    return {
        "plain": lambda: task.gradient(weights, images, labels),
        "ours": lambda: train(expanded, hidden, direction, inputs, targets),
        "clipped mp-dp": lambda: train_clipped(expanded, hidden, direction, inputs, targets, by_oracle),
        "mp-dp+": lambda: train_clipped(plain, shown, along, inputs, targets, by_client),
        "clipped": lambda: clipped_gradient(task, weights, images, labels, 1.0),
        "forward": forward,
        "noise": lambda: [signed_dn(stream, 1.0, size) for _ in range(1 + NEIGHBOURS)],
    }


def main(models: list[str]) -> None:
    torch.set_num_threads(1)
    for model in models:
        best = best_cpu_seconds(works_of(model))
        backward = best["plain"] - best["forward"]
        print(line(f"mp-dp client step, {model}", best["ours"], best["plain"], "CPU s", 3.0))
        print(line(f"floor of that, {model}", best["forward"] + 3 * backward, best["plain"], "CPU s"))
        print(line(f"mp-dp client step with clipping, {model}", best["clipped mp-dp"], best["plain"], "CPU s", 3.0))
        print(line(f"mp-dp+ client step with clipping, {model}", best["mp-dp+"], best["plain"], "CPU s", 3.5))
        print(line(f"clipped gradient (clip, ldp, cdp), {model}", best["clipped"], best["plain"], "CPU s"))
        print(line(f"mp-dp noise, {model} (separately)", best["noise"], best["plain"], "CPU s"))


if __name__ == "__main__":
    main(sys.argv[1:] or ["convnet", "resnet8", "resnet20"])
