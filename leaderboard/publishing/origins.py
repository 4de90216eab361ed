"""Which code made a record: code in the commit that the record names, or a plugin file that is published beside it.

A record's key holds the digest of every module of ours that was imported. Modules of the checkout have their dotted
name and must be in the record's commit. Plugin files from elsewhere have the name of their file; their texts are
published as `plugins/<digest>.py` beside the records. These texts are only compared here. They never run.

A digest is that of the syntax tree (`code_digest`). In records of older releases it is that of the bytes (SHA-256), so
both are accepted for plugin files.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.registry import ROOT, module_name
from leakboard.core.sources import PACKAGES, code_digest, module_file, outside_texts
from leakboard.federation.models.module import Module
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.validation import LONGEST_NAME

#: the folder for the texts of plugins among published records, and the size of the longest text that is accepted
PLUGINS, MOST_TEXT_BYTES = "plugins", 1_000_000
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def modules_of(record: Record, *, training: bool = True) -> Iterator[tuple[str, str]]:
    """Every module in the key of a record, with its digest. A name may occur more than once.

    Without `training`, those of the attack and the metrics alone.
    """
    parts: dict[str, Any] = record.ingredients
    trained = _modules(parts.get("training")) if training else None
    for place in (parts.get("metrics"), trained, _modules(parts.get("answer"))):
        if isinstance(place, Mapping):
            yield from ((str(name), str(digest)) for name, digest in place.items())


def _modules(part: Any) -> Any:
    return part.get("modules") if isinstance(part, Mapping) else None


def plugins_of(record: Record) -> dict[str, str]:
    """The plugin files that made a record: digest -> name. Several digests of one name are joined by `+`."""
    found = ((name, digest) for name, digests in modules_of(record) for digest in digests.split("+"))
    return {digest: name for name, digest in found if name.endswith(".py")}


# --- the checkout -------------------------------------------------------------------------------


def uncommitted(record: Record, *, training: bool = True) -> str:
    """Which part of a record's code is not in its commit, in words; empty if all of it is.

    Without `training` only attack and metrics are asked for: a published training was asked for when it came.
    """
    commit = record.provenance.commit if record.provenance is not None else None
    known = committed(commit) if commit is not None and _COMMIT.fullmatch(commit) else None
    if known is None:
        return f"its commit {str(commit)[:12]} is not in this checkout"
    if record.cell.training.model.name == Module.name:
        return "its network comes from a file that is in no commit: put networks to publish into federation/models/"
    for name, digest in modules_of(record, training=training):
        if not name.endswith(".py") and known.get(name) != digest:
            said = "another text there" if name in known else "not there"
            return f"its module {name} is not from commit {str(commit)[:12]} ({said}): commit it and run again"
    return ""


@cache
def committed(commit: str) -> dict[str, str] | None:
    """Module -> digest of its text in a commit of this checkout; None if git does not know the commit."""
    listed = _git(["ls-tree", "-r", "-z", "--name-only", commit, "--", *PACKAGES])
    if listed is None:
        return None
    # a package before a module of the same name: the module is what Python finds (see `module_file`)
    names = sorted((n for n in listed.decode().split("\0") if n.endswith(".py")), key=lambda n: "__init__" not in n)
    content = _git(["cat-file", "--batch"], "".join(f"{commit}:./{name}\n" for name in names).encode())
    found: dict[str, str] = {}
    at = 0
    for name in names if content is not None else ():
        assert content is not None
        line = content.index(b"\n", at)  # <object> blob <size>, then the content and the end of a line
        size = int(content[at:line].rsplit(b" ", 1)[1])
        text, at = content[line + 1 : line + 1 + size], line + size + 2
        found[module_name(registry.ROOT / name).removesuffix(".__init__")] = code_digest(text)
    return found


def _git(arguments: list[str], given: bytes = b"") -> bytes | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, input=given, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def is_older(record: Record) -> bool:
    """Whether a module of the checkout that the record was made with has changed since."""
    return any(not name.endswith(".py") and _today(name) != digest for name, digest in modules_of(record))


@cache  # many records of a folder have the same modules
def _today(module: str) -> str | None:
    """The digest of a module as it is now; None if it is gone, or if this never was a module's name."""
    if len(module) > LONGEST_NAME or not all(part.isidentifier() for part in module.split(".")):
        return None
    file = module_file(module)
    return None if file is None else code_digest(file.read_bytes())


# --- plugins ------------------------------------------------------------------------------------


def texts_of(record: Record, plugin_files: Iterable[str]) -> dict[str, bytes]:
    """Digest -> text of the plugin files that a record was made with, read from this machine."""
    wanted = plugins_of(record)
    if not wanted:
        return {}
    there = _outside(tuple(plugin_files))
    for digest, name in wanted.items():
        if digest not in there:
            raise UserError(
                f"The record {record.cell.slug} cannot be published: its plugin {name} was changed or removed "
                "since the run; run it again."
            )
    return {digest: there[digest] for digest in wanted}


def _outside(files: tuple[str, ...]) -> dict[str, bytes]:
    """Digest -> text of these plugin files and of their own modules, under both kinds of digest."""
    try:
        texts = outside_texts(files)
        return {_plain_digest(text): text for text in texts.values()} | texts
    except (OSError, ValueError):  # the file is gone, or this is no file name
        return {}


def _plain_digest(text: bytes) -> str:
    """The digest that records of older releases have: that of the bytes."""
    return hashlib.sha256(text).hexdigest()


def text_file(folder: Path, digest: str) -> Path:
    """The file with the text of a plugin beside published records."""
    return folder / PLUGINS / f"{digest}.py"


def kept_text(folder: Path, digest: str) -> bytes | None:
    """The published text with this digest; None if there is none, UserError if the file holds another text."""
    path = text_file(folder, digest)
    if not _DIGEST.fullmatch(digest) or not path.is_file():
        return None
    if path.stat().st_size <= MOST_TEXT_BYTES:
        text = path.read_bytes()
        if digest in (code_digest(text), _plain_digest(text)):
            return text
    raise UserError(f"{PLUGINS}/{path.name} does not match its name: its code has another digest.")


def unknown_plugins(folder: Path, record: Record, plugin_files: Iterable[str] = ()) -> dict[str, str]:
    """The record's plugin files (digest -> name) whose text is neither published beside it, given, nor loaded."""
    wanted = plugins_of(record)
    if not wanted:
        return {}
    there = _outside((*plugin_files, *registry.loaded_files()))
    return {digest: name for digest, name in wanted.items() if digest not in there and not _lies(folder, digest)}


def _lies(folder: Path, digest: str) -> bool:
    try:
        return kept_text(folder, digest) is not None
    except UserError:
        return False


def refuse_missing_plugins(path: Path, record: Record, plugin_files: Iterable[str]) -> None:
    """Refuse to compute a record again without its plugins. A text beside a record never runs by itself."""
    given = _outside(tuple(plugin_files))
    for digest, name in plugins_of(record).items():
        kept = kept_text(path.parent, digest)
        if digest not in given:
            place = f"; its text is in {PLUGINS}/{digest}.py beside the record: read it before you run it"
            raise UserError(
                f"{path.name} needs --plugin FILE: it was made with {name} (digest {digest[:12]}…), and no given "
                f"file has that code{place if kept is not None else ''}."
            )
