"""A finished run answers at once: where nothing changed since, the same command prints what it printed, without torch.

"Nothing changed" is judged as `make` does it: by path, size and time of every file that the answer came from (our code,
the suite, plugin files, the data, records and reconstructions, the page), besides the arguments, where data lies and
library versions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from core import registry
from core.registry import ROOT
from core.sources import PACKAGES

NAME = "finished.json"
#: arguments that decide what is computed and shown; where and by how many workers is all the same
ASKED = (
    "suite",
    "defense",
    "attack",
    "seed",
    "device",
    "plugin",
    "retry_failed",
    "fresh_keys",
    "lpips_weights",
    "download",
)


def repeat(args: argparse.Namespace) -> int | None:
    """Print what the same command printed when it finished, and return its exit code; None where anything changed."""
    folder = _folder(args)
    if args.dry_run or folder is None:
        return None
    try:
        kept = json.loads((folder / NAME).read_text(encoding="utf-8"))
        if kept["fingerprint"] != fingerprint(args, folder, kept["data"]):
            return None
        began, text, code = str(kept["began"]), str(kept["text"]), int(kept["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    print(began, file=sys.stderr, flush=True)
    print(text)
    return code


def remember(args: argparse.Namespace, folder: Path, data: Iterable[str], began: str, text: str, code: int) -> None:
    """Keep what a finished run printed; a folder that cannot be written to is not worth a word here."""
    from core.files import write_text  # imports torch, which `repeat` does without

    files = sorted(data)
    kept = {
        "fingerprint": fingerprint(args, folder, files),
        "data": files,
        "began": began,
        "text": text,
        "code": code,
    }
    with suppress(OSError):
        write_text(folder / NAME, json.dumps(kept))


def fingerprint(args: argparse.Namespace, folder: Path, data: Iterable[str]) -> str:
    """The digest of all that the answer depends on."""
    from leaderboard.provenance import versions

    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    files += (ROOT / "leaderboard" / "assets").iterdir()
    files += (Path(name) for name in (*registry.installed_files(), *args.plugin, args.lpips_weights) if name)
    # a file that is added to or taken from a data set changes the time of its folder
    files += (path for name in data for path in (Path(name), Path(name).parent))
    files += [_suite_file(args.suite), folder / "run.json", folder / "report" / "index.html"]
    files += (folder / "records").iterdir()
    parts: list[Any] = [
        {name: getattr(args, name) for name in ASKED},
        [sys.version, versions(), _width(), str(folder.resolve()), os.environ.get("LEAKBOARD_DATA")],
        sorted(_stamp(path) for path in set(files)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _stamp(path: Path) -> tuple[str, int, int]:
    stat = path.stat()  # a file that is gone is a change too: the OSError says so
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _suite_file(name: str) -> Path:
    known = ROOT / "suites" / f"{name}.yaml"
    return known if known.is_file() else Path(name)


def _folder(args: argparse.Namespace) -> Path | None:
    """The run's folder: as given, or by the name that the suite's file says."""
    if args.out:
        return Path(args.out)
    try:
        found = re.search(r"^name:\s*([\w.+-]+)\s*$", _suite_file(args.suite).read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return None
    return Path("runs") / found[1] if found else None


def _width() -> int:
    return shutil.get_terminal_size((120, 40)).columns
