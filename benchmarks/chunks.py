"""The gradient of a batch of 1,000 in chunks that fit the cache, against the whole batch at once.

    .venv/bin/python benchmarks/chunks.py [WIDTH ...]

The network is a convnet of these widths, on images (3, 32, 32). `Task.gradient` cuts batches (`federation.separable`).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

import torch

from benchmarks._ratio import best_cpu_seconds, line
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import Task, task_of

RECORDS, CLASSES = 1000, 10


class Whole(Task):
    """The same task, without chunks."""

    def parts(self, images: torch.Tensor) -> list[slice]:
        """One part."""
        return [slice(0, len(images))]


def main(widths: list[int]) -> None:
    """Print the rates and their ratio for each width."""
    torch.set_num_threads(1)
    for width in widths:
        public = Public(
            defense="fedsgd",
            parameters={},
            model="convnet",
            model_parameters={"width": width},
            shape=(3, 32, 32),
            classes=CLASSES,
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
            training=Training(rounds=1, batch_size=RECORDS),
            total_rounds=1,
            shard_sizes=(RECORDS,),
        )
        task, whole = task_of(public), Whole(public)
        model, labels = task.initial(0), torch.arange(RECORDS) % CLASSES
        images = torch.rand(RECORDS, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        best = best_cpu_seconds(
            {
                "chunks": lambda: task.gradient(model, images, labels),  # noqa: B023  # called in this turn
                "whole": lambda: whole.gradient(model, images, labels),  # noqa: B023
            },
            rounds=3,
        )
        rates = {name: RECORDS / seconds for name, seconds in best.items()}
        name = f"gradient of {RECORDS} images in chunks, convnet of width {width}"
        print(line(name, rates["chunks"], rates["whole"], "images / CPU s", 1.3, at_most=False))


if __name__ == "__main__":
    main([int(width) for width in sys.argv[1:]] or [16, 32])
