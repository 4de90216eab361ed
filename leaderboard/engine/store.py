"""How large the folder of a run is, by part, and the removal of what can be made again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.transcript import TRANSCRIPT_FILES
from leakboard.leaderboard.engine.state import is_worked_on
from leakboard.leaderboard.planning.run_folder import open_run

PARTS = ("transcripts", "trainings", "answers", "records", "page", "other")


def can_be_replayed(training_folder: Path) -> bool:
    """Whether the transcript of a training can be made again without training."""
    folder = training_folder / REPLAY_FOLDER
    return folder.is_dir() and any(folder.iterdir())


def sizes(folder: Path) -> dict[str, int]:
    """Bytes in a run's folder by part, largest first; parts without any are left out."""
    found = dict.fromkeys(PARTS, 0)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[_part(path.relative_to(folder))] += path.stat().st_size
    return {part: size for part, size in sorted(found.items(), key=lambda item: -item[1]) if size}


def _part(path: Path) -> str:
    top = path.parts[0]
    if top == "trainings":
        return "transcripts" if path.name in TRANSCRIPT_FILES else "trainings"
    if top == "records":
        return "answers" if path.suffix == ".safetensors" else "records"
    return "page" if top == "report" else "other"


def size_words(size: float) -> str:
    """Bytes in words, with at most one digit after the point.

    >>> size_words(512), size_words(2_000_000), size_words(3.75e9)
    ('0.5 kB', '2 MB', '3.8 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size / 1e3:.1f}".removesuffix(".0") + " kB"


def describe_size(folder: Path) -> str:
    """The size of a run's folder in one line."""
    found = sizes(folder)
    parts = ", ".join(f"{part} {size_words(size)}" for part, size in found.items())
    return f"{size_words(sum(found.values()))}: {parts}" if found else "nothing"


def prunable(folder: Path) -> Iterator[Path]:
    """The transcripts of trainings that can be replayed and whose cells all have records."""
    run = open_run(folder)
    done = {record.key for record in run.records}
    needed = {job.training_key for job in run.jobs if job.key not in done}
    # a GPU does not give the same bits twice, so what it sent is kept
    elsewhere = {job.training_folder for job in run.jobs if job.device != "cpu"}
    for training in dict.fromkeys(job.training_folder for job in run.jobs if job.training_key not in needed):
        if can_be_replayed(training) and training not in elsewhere:
            yield from (training / name for name in TRANSCRIPT_FILES if (training / name).is_file())


def prune(folder: Path, *, dry_run: bool = False) -> tuple[int, int]:
    """Remove what can be made again; returns the number of files and their bytes. `dry_run` only counts."""
    if is_worked_on(folder):
        raise UserError(f"A run is working in {folder}: wait until it has ended.")
    files = list(prunable(folder))
    size = sum(file.stat().st_size for file in files)
    for file in files if not dry_run else ():
        file.unlink()
    return len(files), size
