"""Plugins as users give them: a name, a file, a class or an instance. All become files and entries of a suite."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.names import file_part, with_article
from leakboard.core.plugins import Plugin, is_plugin
from leakboard.leaderboard.api.class_source import plugin_text, refuse_difference
from leakboard.suites.schema import LABEL, AttackEntry, DefenseEntry

#: a plugin: its name, a file that defines it, its class, or an instance with parameters
Given = str | Path | type[Plugin] | Plugin
#: folder of a run into which classes of a notebook are written
PLUGINS = "plugins"
LONGEST_LABEL = 60

#: (kind, name) -> the file that a class of a notebook was last written to
_written: dict[tuple[str, str], Path] = {}


@dataclass
class Chosen:
    """What was asked for: files to load, entries to add to the suite, and the labels to keep of it."""

    files: list[str] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def choose(kind: str, given: Given | Iterable[Given] | None, folder: Path, titles: Sequence[str] = ()) -> Chosen:
    """Turn what a user gave for `defense` or `attack` into files, entries and labels; files are loaded.

    `titles` are those of the suite: an instance gets a row of its own beside them.
    """
    chosen = Chosen()
    several = [] if given is None else [given] if _is_one(given) else list(given)  # type: ignore[arg-type]
    for one in several:
        if isinstance(one, str | Path):
            _choose_text(kind, one, chosen)
        else:
            _choose_object(kind, one, folder, chosen, titles)
    return chosen


def _is_one(given: object) -> bool:
    return isinstance(given, str | Path | Plugin) or inspect.isclass(given) or not isinstance(given, Iterable)


def _choose_text(kind: str, given: str | Path, chosen: Chosen) -> None:
    if not (isinstance(given, Path) or given.endswith(".py")):
        chosen.labels.append(given)
        return
    names = [entry["name"] for entry in registry.load_file(given) if entry["kind"] == kind]
    if not names:
        raise UserError(f"{given} defines no {kind}: plugins of other kinds are given as `plugins=`.")
    chosen.files.append(str(given))
    chosen.labels += names


def _choose_object(kind: str, given: object, folder: Path, chosen: Chosen, titles: Sequence[str]) -> None:
    cls: Any = given if inspect.isclass(given) else type(given)
    if not is_plugin(cls, kind):
        told = f"the class {cls.__name__}" if inspect.isclass(given) else f"an object of {cls.__name__}"
        raise UserError(
            f"`{kind}` takes the name of {with_article(kind)}, a Python file, a class that sets `name` and derives "
            f"from lb.{kind.capitalize()}, or an instance of one; given: {told}."
        )
    file = _file_of(cls, folder)
    chosen.files += [file] if file else []
    if not isinstance(given, Plugin):
        chosen.labels.append(cls.name)
        return
    parameters = given.parameters()
    label = _label(cls, parameters, [*titles, *chosen.labels])
    chosen.entries.append({"name": cls.name, "label": label, "params": parameters})
    chosen.labels.append(label)


def _label(cls: type[Plugin], parameters: dict[str, Any], taken: Sequence[str]) -> str:
    """The plugin's name, with the parameters that are not at their defaults: `noisy (sigma 0.1)`."""
    fields = cls.model_fields
    changed = {k: v for k, v in parameters.items() if fields[k].is_required() or v != fields[k].get_default()}
    words = [f"{name} {value}" for name, value in changed.items()]
    label = f"{cls.name} ({' '.join(words)})" if words else cls.name
    if len(label) > LONGEST_LABEL or not re.fullmatch(LABEL, label):
        label = f"{cls.name} ({' '.join(changed)} changed)"[:LONGEST_LABEL]
    number, free = 2, label
    while free in taken:
        number, free = number + 1, f"{label[: LONGEST_LABEL - 6]} {number}"
    return free


def _file_of(cls: type[Plugin], folder: Path) -> str:
    """The file that defines a class, loaded; nothing for a plugin of ours. A class of a notebook gets a file."""
    module = cls.__module__
    if module.partition(".")[0] == registry.PACKAGE:
        return ""
    for file in registry.loaded_files():
        if sys.modules.get(module) is registry.loaded_module(file):
            return file
    origin = getattr(sys.modules.get(module), "__file__", None)
    if module != "__main__" and origin:
        registry.load_file(origin)
        return str(Path(origin).resolve())
    return str(_write(cls, folder / PLUGINS / f"{cls.kind}-{file_part(cls.name)}.py"))


def _write(cls: type[Plugin], path: Path) -> Path:
    """Write a class of a notebook into a file and load that; a file that defines another class is taken back."""
    text = plugin_text(cls)
    before = _written.get((cls.kind, cls.name))
    if before is not None:
        registry.unload_file(before)  # the same class, for another run or changed since
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(
            f"{cls.__name__} cannot be written to {path}: {error.strerror}; `out` names another folder."
        ) from None
    try:
        registry.load_file(path)
        refuse_difference(cls, registry.load(cls.kind, cls.name))
    except UserError:
        registry.unload_file(path)
        path.unlink(missing_ok=True)
        raise
    _written[cls.kind, cls.name] = path
    return path


def defense_rows(chosen: Chosen) -> list[DefenseEntry]:
    """The rows of a suite for defenses that were given as objects."""
    return [DefenseEntry.parse(entry, "The defense") for entry in chosen.entries]


def attack_columns(chosen: Chosen) -> list[AttackEntry]:
    """The columns of a suite for attacks that were given as objects, each under the threat it was made for."""
    found = []
    for entry in chosen.entries:
        known = registry.find("attack", entry["name"])
        more = {"threats": (known["threats"][0],), "about": known.get("about", "training")}
        found.append(AttackEntry.parse({**entry, **more}, "The attack"))
    return found
