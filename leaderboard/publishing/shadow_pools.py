"""Shadow models on a board: `shadows/<pool key>/`, so that others need not train them again.

A pool holds the outputs of shadow models and which records they learned, and no image. Its key is the digest of all
that decides it (`attacks.membership.building_blocks.shadows`). Nobody can tell from the files that they are what the
key says, so pools are never taken by themselves: `leakboard shadows get BOARD` does that.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from leakboard.attacks.membership.building_blocks.shadows import FOLDER, POOL_LINE
from leakboard.core.errors import UserError
from leakboard.core.files import write_bytes, write_text
from leakboard.leaderboard.engine.worker import log_file
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.run_folder import read_text
from leakboard.leaderboard.publishing.replays import MOST_BOARD, SHADOWS, board_size

ABOUT = "about.json"
LONGEST_ABOUT, LONGEST_LOG = 100_000, 2**20
_KEY = re.compile(r"[0-9a-f]{64}")
_MODEL = re.compile(r"(0|[1-9][0-9]{0,3})\.safetensors")
_SAID = re.compile(rf"^{re.escape(POOL_LINE)}({_KEY.pattern})$", re.MULTILINE)


def used_pools(jobs: Iterable[Job]) -> dict[str, set[str]]:
    """Pool key -> keys of the trainings whose cells used it, as the logs of the cells say."""
    found: dict[str, set[str]] = {}
    for job in jobs:
        log = log_file(job)
        if job.cell is not None and log.is_file():
            for key in _SAID.findall(log.read_bytes()[:LONGEST_LOG].decode(errors="replace")):
                found.setdefault(key, set()).add(job.training_key)
    return found


def publish_pools(board: Path, jobs: Iterable[Job], trainings: Container[str], cache: Path = FOLDER) -> tuple[int, int]:
    """Copy the pools of these cells from the cache to a board; returns the numbers of pools and of models.

    `trainings` are the keys of the board's trainings: pools of others are left out.
    """
    used = {key: {k for k in keys if k in trainings} for key, keys in used_pools(jobs).items()}
    files = {key: list(_models(cache / key)) for key, keys in used.items() if keys}
    files = {key: found for key, found in files.items() if found}
    new = [path for key, found in files.items() for path in found if not (board / SHADOWS / key / path.name).exists()]
    size = board_size(board) + sum(path.stat().st_size for path in new)
    if size > MOST_BOARD:
        raise UserError(
            f"Snapshots and shadow models of the board would have {size / 1e6:.1f} MB; at most {MOST_BOARD / 1e6:g} MB "
            "are published."
        )
    for path in new:
        write_bytes(board / SHADOWS / path.parent.name / path.name, path.read_bytes())
    for key in files:
        about = board / SHADOWS / key / ABOUT
        write_text(about, json.dumps({"trainings": sorted({*used[key], *_trainings(about)})}) + "\n")
    return len(files), sum(map(len, files.values()))


def get_pools(board: Path, cache: Path = FOLDER) -> tuple[int, int]:
    """Copy the pools of a board to the cache; returns the numbers of pools and of models that were not there yet."""
    pools = [folder for folder in sorted((board / SHADOWS).glob("*")) if _KEY.fullmatch(folder.name)]
    files = [path for folder in pools if not folder.is_symlink() for path in _models(folder)]
    size = sum(path.stat().st_size for path in files)
    if size > MOST_BOARD:
        raise UserError(f"The shadow models of a board have at most {MOST_BOARD} bytes; given: {size}.")
    new = [path for path in files if not (cache / path.parent.name / path.name).exists()]
    for path in new:
        write_bytes(cache / path.parent.name / path.name, path.read_bytes())
    return len({path.parent for path in new}), len(new)


def remove_unused_pools(board: Path, used: Container[str]) -> None:
    """Remove the pools against trainings that no record of the board names."""
    for folder in (board / SHADOWS).glob("*"):
        is_pool = _KEY.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
        if is_pool and not any(key in used for key in _trainings(folder / ABOUT)):
            shutil.rmtree(folder, ignore_errors=True)


def _models(folder: Path) -> Iterator[Path]:
    """The files of a pool's models; links and other files are left out."""
    for path in sorted(folder.glob("*.safetensors")):
        if _MODEL.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            yield path


def _trainings(about: Path) -> list[str]:
    try:
        found = json.loads(read_text(about, LONGEST_ABOUT))["trainings"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [key for key in found if isinstance(key, str)] if isinstance(found, list) else []
