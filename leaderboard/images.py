"""The originals and reconstructions behind a record, for pages and terminals."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from attacks.base import ReconstructionAnswer
from core.errors import UserError
from datasets.base import ImagePool
from datasets.loading import load_pool
from leaderboard.answers import load_answer
from leaderboard.jobs import Job, Locations
from leaderboard.record import Record
from metrics.matching import match


@cache
def _pool(job_json: str) -> ImagePool | None:
    try:
        return load_pool(Job.model_validate_json(job_json).make_dataset())
    except UserError:
        return None  # the data is not on this machine: pictures are shown without originals


def originals(record: Record, job: Job | None) -> Tensor | None:
    """The attacked images (N, C, H, W) in [0, 1] from the user's own copy of the data; None where it is not there."""
    if record.cell.goal != "reconstruction" or not record.target_indices:
        return None
    training = record.cell.training
    locations = job.locations if job is not None else Locations()
    # one load a data set: everything else is blanked out of the cache's key
    bare = Job(
        run="", training=training.model_copy(update={"seed": 0}), training_key="", data_digest="", locations=locations
    )
    pool = _pool(bare.model_dump_json())
    if pool is None or not all(0 <= index < len(pool.labels) for index in record.target_indices):
        return None
    return pool.take(torch.tensor(record.target_indices)).images


def reconstructions(record: Record, folder: Path, truth: Tensor | None) -> Tensor | None:
    """The reconstructed images (N, C, H, W), in the order of the originals where these are there."""
    if not record.reconstructions:
        return None
    # the name comes from a file that others may have written: it must not lead out of the folder
    path = folder / Path(record.reconstructions).name
    if not path.is_file():
        return None
    try:
        answer, _ = load_answer(path)
        if not isinstance(answer, ReconstructionAnswer):
            return None
        if truth is None:
            return torch.cat(list(answer.images))
        pairs = zip(answer.images, torch.split(truth, len(truth) // len(answer.images)), strict=True)
        return torch.cat([images[match(images, original)] for images, original in pairs])
    except (SafetensorError, ValueError, LookupError, RuntimeError, ZeroDivisionError):
        return None  # not what a record of ours has beside it: the page and the terminal do without pictures
