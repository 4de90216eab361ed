"""What was published to replay trainings: `replays/<training key>/`, checked when it comes and when it is read.

A replay holds states and keys of a seeded benchmark run, and no image. Anybody may have written what is on a board:
names and sizes are checked here, everything inside by `federation.value_files` when the rounds are replayed.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.core.files import whole_folder
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.payload import raw_bytes
from leakboard.federation.value_files import ABOUT, TENSORS, TREE, read_about
from leakboard.leaderboard.cells.question import pool_of
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.public_settings import splits_of

REPLAYS, SHADOWS = "replays", "shadows"
FILES = (ABOUT, TREE, TENSORS)
#: bytes of all replays and shadow models of a board
MOST_BOARD = 25_000_000


def replay_folder(board: Path, training_key: str) -> Path:
    """The folder of a published replay. The key must be checked before: it comes from a record."""
    return board / REPLAYS / training_key


# --- publish ------------------------------------------------------------------------------------


def coming_replays(board: Path, jobs: Iterable[Job]) -> dict[str, Path]:
    """Training key -> folder of what the trainings of these cells need for a replay; refused if it is not for others.

    Trainings with fresh keys have none, and neither have those of older releases.
    """
    found: dict[str, Path] = {}
    for job in {job.training_key: job for job in jobs}.values():
        folder = job.training_folder / REPLAY_FOLDER
        if not folder.is_dir():
            continue
        if job.training.keys == "fresh":
            raise UserError(
                f"The snapshot of {job.training.defense.label} (seed {job.training.seed}) is not published: its keys "
                f"are fresh, and not those of a seed; remove {folder}."
            )
        _refuse_images(job, folder)
        found[job.training_key] = folder
    size = sum(_size(folder) for folder in found.values())
    size += board_size(board) - sum(_size(old) for key in found if (old := replay_folder(board, key)).is_dir())
    if size > MOST_BOARD:
        raise UserError(
            f"The snapshots of the board would have {size / 1e6:.1f} MB; at most {MOST_BOARD / 1e6:g} MB are "
            "published: use a smaller model, or fewer observed rounds or seeds."
        )
    return found


def write_replays(board: Path, found: Mapping[str, Path]) -> None:
    """Copy what is not there yet; each folder appears whole."""
    for key, source in found.items():
        target = replay_folder(board, key)
        if not target.is_dir():
            with whole_folder(target) as folder:
                copy_files(source, folder)


def remove_unused(board: Path, used: Container[str]) -> None:
    """Remove the replays of trainings that no record of the board names."""
    for folder in (board / REPLAYS).glob("*"):
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)


def board_size(board: Path) -> int:
    """Bytes of what a board has beside its records: replays and shadow models."""
    parts = (board / REPLAYS, board / SHADOWS)
    return sum(_size(folder) for part in parts for folder in part.glob("*") if folder.is_dir())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _refuse_images(job: Job, folder: Path) -> None:
    """Refuse files with rows of pixels of a client's record: a defense kept it in a state."""
    content = (folder / TENSORS).read_bytes()
    pool = pool_of(job)
    if holds_image(content, pool.take(splits_of(job, pool).members).images):
        raise UserError(
            f"The snapshot of {job.training.defense.label} holds an image of a client, and images are not published: "
            "the defense keeps one in `me.state` or `me.keys`."
        )


def holds_image(content: bytes, images: Tensor) -> bool:
    """Whether the middle rows of one of these images (N, C, H, W) are in a file, as the numbers that they are.

    Two neighbouring pixels are looked up for all images at once; only where they are found, the rows are compared.
    """
    height, width = images.shape[-2:]
    rows = images[:, 0, max(0, height // 2 - 2) : height // 2 + 2].contiguous()
    pairs = images[:, 0, height // 2, width // 2 - 1 : width // 2 + 1].contiguous().numpy().view(np.uint32)
    words = np.frombuffer(content[: len(content) // 4 * 4], dtype=np.uint32)
    there = np.isin(_joined(pairs[:, 0], pairs[:, 1]), _joined(words[:-1], words[1:]))
    # one value all over tells nothing: weights that are zero have it too
    wanted = there & (rows.flatten(1).amax(1) > rows.flatten(1).amin(1)).numpy()
    return any(raw_bytes(rows[index]) in content for index in np.flatnonzero(wanted))


def _joined(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)


# --- use ----------------------------------------------------------------------------------------


def take_replay(board: Path, training_key: str, to: Path) -> None:
    """Copy a published replay into a new folder, after a look at its names and sizes."""
    source = replay_folder(board, training_key)
    if read_about(source).get("training") != training_key:
        raise UserError(f"{REPLAYS}/{training_key[:12]}… is the snapshot of another training.")
    to.mkdir()
    copy_files(source, to)


def copy_files(source: Path, to: Path) -> None:
    """Copy the files of a replay and nothing else; links, devices and too many bytes are refused."""
    paths = [source / name for name in FILES]
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise UserError(f"A snapshot must hold the files {', '.join(FILES)}; {path.name} is no file.")
    size = sum(path.stat().st_size for path in paths)
    if size > MOST_BOARD:
        raise UserError(f"A snapshot has at most {MOST_BOARD} bytes; given: {size}.")
    for path in paths:
        (to / path.name).write_bytes(path.read_bytes())
