"""Where attacks on local steps succeed: a positive control of the suite `realistic`, with and without batch norm.

    .venv/bin/python benchmarks/local_steps.py

Four digits at 16 x 16, a convnet of width 16 that is not trained, cross-entropy, one client, two batches of two records
in turn (one batch of four where there is one step), known labels. PSNR is the mean over the four images in their best
order. One batch and one network: a control, and no measurement.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch
from torch import Tensor

from benchmarks.inversion_quality import Given
from leakboard.attacks.base import Inversion, Knowledge
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.sme import Sme
from leakboard.attacks.reconstruction.unrolled import Unrolled
from leakboard.contract.worlds import digits
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedavg import FedAvg
from leakboard.federation.local_training import client_update
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import task_of
from leakboard.federation.view import View
from leakboard.metrics.psnr import psnr

SHAPE, RECORDS = (1, 16, 16), 4
#: whether there is batch norm, and the number of local steps
CASES = (("none", 2), ("none", 4), ("none", 8), ("batch", 1), ("batch", 2))


def records(count: int, start: int = 0) -> LabelledImages:
    """Digits at half their size."""
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(derive_seed("local steps", start)))
    drawn = digits().take(order[:count])
    return LabelledImages(torch.nn.functional.avg_pool2d(drawn.images, 2), drawn.labels)


def settings(norm: str, steps: int) -> Public:
    """The public settings of one client with these local steps."""
    local = {"local_steps": steps, "local_batches": min(2, steps), "local_learning_rate": 0.05}
    training = Training.parse({"loss": "ce", "rounds": 1, "batch_size": RECORDS, "clients": 1, **local}, "training")
    named: dict[str, Any] = {"defense": "fedavg", "parameters": {}, "model": "convnet"}
    named |= {"model_parameters": {"norm": norm, "width": 16}, "mean": (0.5,), "std": (0.5,)}
    return Public(**named, shape=SHAPE, classes=10, training=training, total_rounds=1, shard_sizes=(RECORDS,))


def problem_of(public: Public, batch: LabelledImages) -> Inversion:
    """What the server has to invert."""
    task = task_of(public)
    model = task.initial(0)
    update, buffers = client_update(task, model, batch.images.to(task.dtype), batch.labels)
    statistics = {name: value for name, value in buffers.items() if value.is_floating_point()}
    return Inversion.of(public, model, Gradient(update, 1, RECORDS), batch.labels, statistics or None)


def in_best_order(images: Tensor, originals: Tensor) -> float:
    """The mean PSNR over the images, in the order in which it is highest."""
    orders = itertools.permutations(range(len(originals)))
    return max(float(psnr(images[list(order)], originals).mean()) for order in orders)


def main() -> None:
    """Print one line per case and attack."""
    torch.set_num_threads(1)
    batch, auxiliary = records(RECORDS), records(100, 1)
    floor = psnr(auxiliary.images.mean(0, keepdim=True).expand_as(batch.images), batch.images)
    print(f"mean auxiliary image: {float(floor.mean()):.1f} dB")
    for norm, steps in CASES:
        public = settings(norm, steps)
        problem = problem_of(public, batch)
        knowledge = Knowledge(View("server", ("server",), public, (), {}, {}), FedAvg(), auxiliary, 0)
        for kind in (InvertingGradients, Unrolled, Sme):
            started = time.process_time()
            task = Given("first", 0, 1, 1, None, (RECORDS,), found=(problem,))
            answer = kind(iterations=300, tv=0.01).reconstruct(knowledge, task)
            score = in_best_order(answer.images[0], batch.images)
            cost, taken = answer.diagnostics["matching_cost"], time.process_time() - started
            print(f"batch norm {norm}, {steps} steps, {kind.name}: {score:.1f} dB, cost {cost:.3f}, {taken:.0f} CPU s")


if __name__ == "__main__":
    main()
