"""A finished run answers at once: where nothing changed since, the same command prints what it printed, without torch.

"Nothing changed" is judged as `make` does it: by path, size and time of every file that the answer came from (our code,
the suite, the data, records and reconstructions, the page), besides the arguments, the place and library versions. The
stamps of what goes in are taken before the run and must still hold when it ends. Where more than files with fixed names
goes in (plugins from outside, networks and data that a suite names by path, folders of pictures), nothing is kept, and
the second run looks for itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.registry import ROOT
from leakboard.core.sources import PACKAGES
from leakboard.core.terminal import terminal_width
from leakboard.suites import suite_file

NAME = "finished.json"
#: arguments that decide what is computed and shown; by how many workers is all the same
ASKED = ("suite", "defense", "attack", "seed", "device", "retry_failed", "fresh_keys", "lpips_weights", "download")
#: where downloaded data lies by default (datasets/_torchvision.py, which imports torch; a test compares them)
DATA = "~/.cache/leakboard"
#: data of more files than this is a folder of pictures, to which others may be added anywhere
MOST_FILES = 64
#: the longest suite and the longest answer that are read here
MOST_BYTES = 10_000_000


def repeat(args: argparse.Namespace) -> int | None:
    """Print what the same command printed when it finished, and return its exit code; None where anything changed."""
    folder = _folder(args)
    if args.dry_run or folder is None or not _plain(args):
        return None
    try:
        kept = json.loads(_text(folder / NAME))
        if [kept["inputs"], kept["outputs"]] != [inputs(args, kept["data"]), outputs(folder)]:
            return None
        began, text, code = str(kept["began"]), str(kept["text"]), int(kept["code"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    print(began, file=sys.stderr, flush=True)
    print(text)
    return code


@dataclass(frozen=True)
class Before:
    """What goes into a run, as it was when it began; `stamp` is None where that cannot be told by files."""

    args: argparse.Namespace
    data: tuple[str, ...]
    stamp: str | None

    def planned(self, data: Iterable[str], places: Iterable[str]) -> Before:
        """The same with the `data` files that planning has read; nothing is kept where the suite names `places`.

        Nor where anything changed while the plan was made: it may have come from either state.
        """
        files, stamp = tuple(sorted(data)), None
        with suppress(OSError):
            if self.stamp == inputs(self.args, self.data) and not any(places) and len(files) <= MOST_FILES:
                stamp = inputs(self.args, files)
        return Before(self.args, files, stamp)

    def remember(self, folder: Path, began: str, text: str, code: int) -> None:
        """Keep what a finished run printed, unless its inputs changed meanwhile.

        Nothing here is worth a word to the user: where it does not work, the second run is slower.
        """
        from leakboard.core.files import write_text  # imports torch, which `repeat` does without

        with suppress(OSError):
            if self.stamp is None or self.stamp != inputs(self.args, self.data):
                return
            kept = {"inputs": self.stamp, "outputs": outputs(folder), "data": self.data}
            write_text(folder / NAME, json.dumps({**kept, "began": began, "text": text, "code": code}))


def look(args: argparse.Namespace) -> Before:
    """Stamp what goes into a run, before anything of it is read; which data files it reads, planning tells."""
    stamp = None
    if _plain(args):
        with suppress(OSError):
            stamp = inputs(args, ())
    return Before(args, (), stamp)


def inputs(args: argparse.Namespace, data: Iterable[str]) -> str:
    """The digest of all that a run depends on; OSError where a file is gone."""
    from leakboard.leaderboard.records.provenance import versions

    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    files += (ROOT / "leaderboard" / "page" / "assets").iterdir()
    files += [suite_file(args.suite), *([Path(args.lpips_weights)] if args.lpips_weights else [])]
    # a file that is added to or taken from a data set changes the time of its folder
    files += (path for name in data for path in (Path(name), Path(name).parent))
    # where data is looked for, and what lies there: a link may lead elsewhere
    root = os.environ.get("LEAKBOARD_DATA")
    home = Path(root or DATA).expanduser()
    files += [path for path in (home, *(home.iterdir() if home.is_dir() else ())) if path.exists()]
    asked = {name: getattr(args, name) for name in ASKED}
    place = [str(Path.cwd()), str(Path.home()), root, sys.version, versions(), terminal_width()]
    return _digest([asked, place, _stamps(files)])


def outputs(folder: Path) -> str:
    """The digest of what a run wrote and shows."""
    page = folder / "report" / "index.html"
    files = [folder / "run.json", page, *page.parent.rglob("*"), *(folder / "records").iterdir()]
    return _digest([str(folder.resolve()), _stamps(files)])


def _plain(args: argparse.Namespace) -> bool:
    """Whether nothing but our own code is asked for, on this machine; anything odd is for the command to refuse."""
    odd = args.plugin or registry.installed_files() or args.executor != "local" or args.gpus_per_cell
    return not odd and 0 <= args.workers <= 1024


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _stamps(files: Iterable[Path]) -> list[tuple[str, str, int, int]]:
    """Name, what it leads to, size and time; a file that is gone is a change too: the OSError says so."""
    stats = [(path, path.stat()) for path in set(files)]
    return sorted((str(p.absolute()), str(p.resolve()), stat.st_size, stat.st_mtime_ns) for p, stat in stats)


def _text(path: Path) -> str:
    """A small text file; ValueError where it is anything else, such as a device without an end."""
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} is no small file")
    return path.read_text(encoding="utf-8")


def _folder(args: argparse.Namespace) -> Path | None:
    """The run's folder: as given, or by the name that the suite's file says."""
    if args.out:
        return Path(args.out)
    try:
        found = re.search(r"^name:\s*([\w.+-]+)\s*$", _text(suite_file(args.suite)), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return Path("runs") / found[1] if found else None
