"""A training without its transcript: its observed rounds run again, and what they give goes back into its folder.

The transcript is left out where a run was pruned, and where somebody else published the training.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.core.threads import one_thread
from leakboard.datasets.loading import load_pool
from leakboard.federation.device import computing_on
from leakboard.federation.observed import REPLAY_FOLDER, check_replayed, replay_observed
from leakboard.federation.settings import ObservedRounds, client_name
from leakboard.federation.transcript import TRANSCRIPT_FILES, Transcript
from leakboard.federation.view import seeable
from leakboard.leaderboard.cells.train import run_training, store_outcome
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.public_settings import public_of, splits_of


def make_training(job: Job) -> None:
    """Train, or only replay the observed rounds where that is enough.

    A replay of our own that fails costs the time of the training. A published training is never run here: it would not
    be the one that was published.
    """
    if job.must_be_replayed:
        try:
            replay_training(job)
            return
        except UserError as error:
            if job.published:
                raise
            print(f"{error} The training is run again.", flush=True)
    if job.published:
        raise UserError(f"The published training {job.training_key[:12]}… has no snapshot here: run the command again.")
    run_training(job)


def replay_training(job: Job) -> None:
    """Run the observed rounds again and add the files that are missing; the transcript appears last."""
    pool = load_pool(job.make_dataset())
    if pool.digest() != job.data_digest:
        raise UserError("The data is not that of the training: its digest differs.")
    splits = splits_of(job, pool)
    folder = job.training_folder / REPLAY_FOLDER
    with one_thread(), computing_on(job.device):
        outcome = replay_observed(
            folder,
            job.make_defense(),
            public_of(job, pool, splits),
            {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)},
            ObservedRounds.of_record(job.training.observe),
            job.private_seed,
        )
        transcript = Transcript(tuple(map(seeable, outcome.transcript.observations)))
        check_replayed(folder, outcome, transcript)
    part = job.training_folder.with_name(f".{job.training_key}.replay.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        store_outcome(part, outcome, transcript)
        _add(part, job.training_folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _add(part: Path, folder: Path) -> None:
    """Move the files that a folder lacks into it; whoever sees the first file of a transcript may read all others."""
    for file in sorted(part.iterdir(), key=lambda file: file.name == TRANSCRIPT_FILES[0]):
        if (folder / file.name).exists() and file.name not in TRANSCRIPT_FILES:
            file.unlink()
        else:
            file.replace(folder / file.name)
