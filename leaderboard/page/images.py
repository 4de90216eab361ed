"""The originals and reconstructions behind a record, for pages and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.leaderboard.cells.answer import load_answer
from leakboard.leaderboard.goals.questions.reconstruction import ReconstructionQuestion
from leakboard.leaderboard.planning.jobs import Job, Locations
from leakboard.leaderboard.records.record import Record, TrainingSpec
from leakboard.leaderboard.records.validation import places
from leakboard.metrics.building_blocks.images import sanitise
from leakboard.metrics.matching import match

#: larger files and images are not shown; no record of ours has them
MAX_PICTURES_BYTES, MOST_AT_ONCE, LARGEST_SIDE = 500_000_000, 1024, 1024


@cache
def _pool(job_json: str) -> ImagePool | None:
    try:
        return load_pool(Job.model_validate_json(job_json).make_dataset())
    except UserError:
        return None  # the data is not on this machine: there are no originals to show


def originals(record: Record, job: Job | None) -> Tensor | None:
    """The attacked images (N, C, H, W) in [0, 1] from the user's own copy of the data; None without one."""
    if record.cell.goal != "reconstruction" or not record.target_indices:
        return None
    if next(places(record), ""):
        return None  # a record must not say which file is opened on this machine
    training = record.cell.training
    locations = job.locations if job is not None else Locations()
    if "download" in locations.dataset:  # nothing is downloaded just for a picture
        locations = locations.model_copy(update={"dataset": {**locations.dataset, "download": False}})
    # load each data set once: all else is left out of the cache's key
    data = training.dataset
    spec = TrainingSpec(dataset=data, model=data, defense=data, training={}, observe={}, seed=0)
    bare = Job(run="", training=spec, training_key="", data_digest="", locations=locations)
    pool = _pool(bare.model_dump_json())
    if pool is None or not all(0 <= index < len(pool.labels) for index in record.target_indices):
        return None
    return pool.take(torch.tensor(record.target_indices)).images


def reconstructions(record: Record, folder: Path, truth: Tensor | None) -> Tensor | None:
    """The reconstructed images (N, C, H, W); in the order of the originals, if these are given."""
    if not record.reconstructions:
        return None
    # the record may be written by others: its file name must not lead out of the folder
    path = folder / Path(record.reconstructions).name
    try:
        if not path.is_file() or path.stat().st_size > MAX_PICTURES_BYTES:
            return None
        answer, _ = load_answer(ReconstructionQuestion(), path)
        found = [images / 255 if images.dtype == torch.uint8 else images for images in answer.images]
        if not all(map(_showable, found)):
            return None
        return torch.cat(found if truth is None else _scored(found, truth))
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError, ZeroDivisionError):
        return None  # not a file of ours: there are no pictures to show


def _scored(found: Sequence[Tensor], truth: Tensor) -> list[Tensor]:
    """The scored images of each problem, in the order of the originals. For a sum these are the victim's own."""
    pairs = zip(found, torch.split(truth, len(truth) // len(found)), strict=True)
    return [images[match(images, original)] for images, original in pairs]


def in_8_bits(path: Path, truth: Tensor | None) -> bytes:
    """A reconstruction as it is published: in 8 bits and, if the originals are given, only the scored images.

    This is a quarter of the size (for a sum over K clients a K-th of that), and as fine as a screen can show. The
    scores in the record come from the images before this step. Raises SafetensorError, OSError, ValueError and
    RuntimeError.
    """
    with safe_open(str(path), framework="pt") as file:
        names = [name for name in list(file.keys()) if name.startswith("images/")]  # the others are labels
        found = [file.get_tensor(f"images/{index}") for index in range(len(names))]
        notes = file.metadata()
    # non-finite values become grey, as everywhere
    shown = [sanitise(images)[0].clamp(0, 1) for images in (found if truth is None else _scored(found, truth))]
    pixels = {f"images/{i}": (images * 255).round().to(torch.uint8).contiguous() for i, images in enumerate(shown)}
    return save(pixels, notes)


def _showable(images: Tensor) -> bool:
    """Whether a tensor holds a limited number of images (N, C, H, W): matching takes time of order N³."""
    fits = images.ndim == 4 and images.shape[1] in (1, 3) and 0 not in images.shape
    return fits and images.is_floating_point() and len(images) <= MOST_AT_ONCE and max(images.shape[2:]) <= LARGEST_SIDE
