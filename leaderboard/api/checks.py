"""Checks of what users give to `lb.evaluate`: each mistake is one sentence, before anything is loaded or computed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, SupportsIndex, TypeGuard, get_args

from leakboard.core.errors import UserError

ExecutorName = Literal["local", "ray"]
DeviceName = Literal["cpu", "cuda"]
EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)
DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
MOST_WORKERS, MOST_GPUS = 1024, 64
#: a week
MOST_SECONDS = 7 * 24 * 3600


def executor_name(given: object) -> ExecutorName:
    """The name of an executor that there is."""
    for name in EXECUTORS:
        if given == name:
            return name
    raise UserError(f"executor must be {_either(EXECUTORS)}; given: {given!r:.80}.")


def device_name(given: object, executor: str) -> str:
    """The name of a device that this machine has; what the machines of a cluster have, only the cluster knows."""
    import torch

    if given not in DEVICES:
        raise UserError(f"device must be {_either(DEVICES)}; given: {given!r:.80}.")
    name = str(given)
    if executor != "ray" and name == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: this torch sees no CUDA device; use cpu or install a CUDA build.")
    return name


def seed_list(given: object) -> tuple[int, ...]:
    """Seeds from one number, several or None; none means those of the suite."""
    found: list[int] = []
    for one in () if given is None else given if _is_several(given) else (given,):
        seed = _whole(one)
        if seed is None:
            raise UserError(f"seeds must be whole numbers, such as [0, 1, 2]; given: {one!r:.80}.")
        if seed in found:
            raise UserError(f"seeds must differ, because one seed gives the same scores again; given twice: {seed}.")
        found.append(seed)
    return tuple(found)


def worker_count(given: object) -> int:
    """A number of workers that can be used; None becomes 0, which leaves it to the executor."""
    if given is None:
        return 0
    count = _whole(given)
    if count is None or not 1 <= count <= MOST_WORKERS:
        raise UserError(f"workers must be from 1 to {MOST_WORKERS}, a whole number; given: {given!r:.80}.")
    return count


def gpu_share(given: object, executor: str) -> float:
    """The share of a GPU that a cell takes; only a cluster hands out shares."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MOST_GPUS:
        raise UserError(
            f"gpus_per_cell must be from 0 to {MOST_GPUS}, such as 0.5 for two cells per GPU; given: {given!r:.80}."
        )
    if given and executor != "ray":
        raise UserError("gpus_per_cell needs the executor ray: on one machine, workers says how many share a GPU.")
    return float(given)


def seconds_between(given: object) -> float:
    """Seconds between two snapshots of a training; 0 means one after every round."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= MOST_SECONDS:
        raise UserError(
            f"checkpoint_seconds must be from 0 (after every round) to {MOST_SECONDS}; given: {given!r:.80}."
        )
    return float(given)


def path_of(name: str, given: object) -> Path:
    """A path from a text or a path."""
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{name} must be a path, as text or pathlib.Path; given: {given!r:.80}.")
    return Path(given)


def plugin_paths(given: object) -> list[str]:
    """Plugin files from one path or several."""
    if isinstance(given, str | os.PathLike):
        return [str(path_of("plugins", given))]
    if not _is_several(given):
        raise UserError(f"plugins must be a Python file or a list of these; given: {given!r:.80}.")
    return [str(path_of("a file of plugins", one)) for one in given]


def weights_file(path: object) -> str:
    """The file of LPIPS's weights with its whole path: the given one, else the kept one; nothing where there is none.

    The weights are compared with their SHA-256 here, before anything is computed.
    """
    from leakboard.metrics.building_blocks.backbone import read_features
    from leakboard.metrics.building_blocks.weights_archive import kept_file

    file = kept_file() if path in ("", None) else path_of("lpips_weights", path)
    if file.is_file():
        read_features(str(file))
        return str(file.resolve())
    if path in ("", None):
        return ""
    raise UserError(f"lpips_weights: there is no file {file}.")


def _whole(given: object) -> int | None:
    """An integer of Python or NumPy; None for everything else."""
    return int(given) if isinstance(given, SupportsIndex) and not isinstance(given, bool) else None


def _is_several(given: object) -> TypeGuard[Iterable[object]]:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes)


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))
