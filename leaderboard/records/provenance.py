"""Where and with what something was computed."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path

from leakboard.core.registry import ROOT
from leakboard.core.sources import PACKAGES as CODE
from leakboard.leaderboard.records.record import Provenance

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "lpips",
    "cryptography",
    "pydantic",
)

#: seconds after which git is given up; on a busy machine it may well take ten, and a record must not lose its commit
GIT_HANGS = 300


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=GIT_HANGS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def commit() -> tuple[str | None, bool | None]:
    """The git commit of the checkout and whether it has uncommitted changes; None outside git.

    An installed package has no commit: a repository around it is somebody else's.
    A module of ours that git does not know is such a change: it is loaded like any other. Other unknown files are not.
    """
    if not (ROOT / ".git").exists():
        return None, None
    head = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    unknown = _git("ls-files", "--others", "--", *(f"{package}/*.py" for package in CODE))
    return head, None if changes is None or unknown is None else bool(changes or unknown)


@cache
def processor() -> str:
    """The name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def versions() -> dict[str, str]:
    """The versions of the packages that numbers come from; part of every key."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def provenance(device: str, data_digest: str) -> Provenance:
    """The provenance of something computed now, here."""
    head, dirty = commit()
    return Provenance(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        versions={"python": platform.python_version(), **versions()},
        platform=platform.system().lower() + "-" + platform.machine(),
        processor=processor(),
        device=device,
        data_digest=data_digest,
    )
