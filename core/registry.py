"""Finds plugins in their folders, by name, without importing more than the one that is asked for.

The index (name -> file) is built by a child process that imports everything once. It is kept in the
user's cache folder and built again when a plugin file changed. So `list` needs no torch, and a cell
imports only the plugins that it uses (the key of its record depends on that).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leakboard.core.caches import cache_folder
from leakboard.core.errors import UserError, unknown_name
from leakboard.core.extensions import E, Extension, defined_in
from leakboard.core.seeds import natural_order

if TYPE_CHECKING:
    from leakboard.core.plugins import Plugin

#: the one name under which our code is imported
PACKAGE = "leakboard"
#: the folder that holds core/, defenses/ and the others: the checkout, or the installed package
ROOT = Path(__file__).resolve().parent.parent
#: the folder that must be on the path for `import leakboard`: `src` in a checkout, else site-packages
IMPORT_ROOT = ROOT / "src" if (ROOT / "src" / PACKAGE).is_dir() else ROOT.parent
#: several checkouts share the user's cache folder, so each has an index of its own
INDEX_FILE = cache_folder() / f"plugins-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}.json"
#: kind of plugin -> glob patterns, relative to `ROOT`
FOLDERS = {
    "defense": ("defenses/*.py",),
    "attack": ("attacks/*/*.py",),
    "dataset": ("datasets/*.py",),
    "model": ("federation/models/*.py",),
    "metric": ("metrics/*.py",),
    "goal": ("leaderboard/goals/*.py",),
    "ranking": ("leaderboard/ranking/goals/*.py",),
}

#: groups of entry points in which installed packages offer plugins
ENTRY_POINTS = (
    "leakboard.defenses",
    "leakboard.attacks",
    "leakboard.metrics",
    "leakboard.datasets",
    "leakboard.models",
    "leakboard.goals",
    "leakboard.rankings",
    "leakboard.charts",
    "leakboard.formats",
)
#: what a plugin of somebody's own may be called: it becomes a label, and a part of file names
NAME = r"[A-Za-z0-9._+@%-]{1,60}"

#: folders whose modules several plugins share; no plugin is looked for there
BUILDING_BLOCKS = "building_blocks"

Entry = dict[str, Any]
_loaded_files: dict[str, ModuleType] = {}
#: the texts that these modules were made of: a file that was changed since is loaded again
_loaded_texts: dict[str, bytes] = {}


def plugin_files() -> list[Path]:
    """Every file that may hold a plugin: those in the folders, but for `_*.py` and building blocks."""
    found = (path for patterns in FOLDERS.values() for pattern in patterns for path in ROOT.glob(pattern))
    return sorted(path for path in found if not path.name.startswith("_") and path.parent.name != BUILDING_BLOCKS)


def module_name(path: Path) -> str:
    """The name under which a file below `ROOT` is imported.

    >>> module_name(ROOT / "defenses" / "mp_dp.py")
    'leakboard.defenses.mp_dp'
    """
    return ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))


def _stamp() -> list[list[Any]]:
    """What must be unchanged for the kept index to hold: name, size and time of every file that plugins are made of.

    A plugin inherits fields from bases and building blocks in other folders, so whole packages count. Texts of plugins
    among published records do not: nothing imports them.
    """
    packages = {"core", *(pattern.partition("/")[0] for patterns in FOLDERS.values() for pattern in patterns)}
    files = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    published = ROOT / "leaderboard" / "published"
    stats = [(path, path.stat()) for path in files if not path.is_relative_to(published)]
    return [[str(p.relative_to(ROOT)), s.st_size, s.st_mtime_ns] for p, s in stats]


def scan() -> list[Entry]:
    """Import every plugin file and describe what is in it. Slow: only the index builder calls it."""
    entries: list[Entry] = []
    for path in plugin_files():
        module = importlib.import_module(module_name(path))
        entries += describe_module(module, str(path.relative_to(ROOT)))
    return check_unique(entries)


@lru_cache(maxsize=256)  # every look for a name asks for all of them, and a description takes milliseconds
def describe_module(module: ModuleType, source: str) -> tuple[Entry, ...]:
    """The index entries of the plugin classes that a module defines itself."""
    from leakboard.core.plugins import is_plugin

    classes = [v for v in vars(module).values() if is_plugin(v) and v.__module__ == module.__name__]
    return tuple({**c.describe(), "file": source, "class": c.__name__} for c in classes)


def check_unique(entries: list[Entry]) -> list[Entry]:
    """Refuse two plugins of one kind with one name."""
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        for name in (entry["name"], *entry["aliases"]):
            key = (entry["kind"], name)
            if key in seen:
                raise UserError(
                    f"Two plugins are called {entry['kind']} '{name}': {seen[key]} and {entry['file']}; "
                    "names must be unique, rename one."
                )
            seen[key] = entry["file"]
    return entries


def importing_us() -> dict[str, str]:
    """The environment for a child process that can import our package wherever it starts."""
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(IMPORT_ROOT), *([path] if path else [])])}


def _build_index() -> list[Entry]:
    """Run `scan` in another process, so that the caller never imports torch for it."""
    code = "import json,sys; from leakboard.core import registry; sys.stdout.write('\\n' + json.dumps(registry.scan()))"
    done = subprocess.run([sys.executable, "-c", code], env=importing_us(), capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"
        raise UserError(f"The plugins could not be read, all of them must import: {last}")
    entries: list[Entry] = json.loads(done.stdout.rsplit("\n", 1)[1])
    return entries


@cache
def builtin_index() -> tuple[Entry, ...]:
    """The entries of all plugins of the checkout, from the kept index where it still holds."""
    stamp = _stamp()
    try:
        kept = json.loads(INDEX_FILE.read_text())
        if kept["stamp"] == stamp and kept["python"] == sys.version:
            return tuple(kept["entries"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    entries = _build_index()
    text = json.dumps({"stamp": stamp, "python": sys.version, "entries": entries})
    try:
        INDEX_FILE.parent.mkdir(parents=True, exist_ok=True)
        part = INDEX_FILE.with_suffix(f".{os.getpid()}.part")
        part.write_text(text)
        part.replace(INDEX_FILE)
    except OSError:  # a read-only cache works too, only slower
        pass
    return tuple(entries)


def load_file(path: str | Path) -> list[Entry]:
    """Load plugins of any kind from a file outside the checkout (`--plugin FILE.py`); returns their entries.

    A file whose text changed since it was loaded is loaded again: in a notebook, people edit and repeat.
    """
    source = Path(path).resolve()
    if not source.is_file():
        raise UserError(f"There is no plugin file {path}: give a Python file that defines a plugin class.")
    text, file = source.read_bytes(), str(source)
    module = (
        _loaded_files[file] if _loaded_texts.get(file) == text and file in _loaded_files else _execute(source, text)
    )
    try:
        entries = list(describe_module(module, file))
        json.dumps(entries, allow_nan=False)
    except Exception as error:  # a class that is no plugin of any kind, a default that is no plain value, and so on
        raise UserError(f"{path} defines a plugin that cannot be listed: {type(error).__name__}: {error}.") from error
    names = [entry["name"] for entry in entries]
    if odd := [name for name in names if not isinstance(name, str) or not re.fullmatch(NAME, name)]:
        raise UserError(f"{path} defines a plugin called {odd[0]!r:.80}: a name is of letters, digits and ._+@%-.")
    if not entries and not defined_in(module, Extension):
        kinds = ", ".join(kind.capitalize() for kind in FOLDERS)
        raise UserError(f"{path} defines no plugin: a class that sets `name`, derived from one of {kinds}.")
    others = [
        entry for other, known in _loaded_files.items() if other != file for entry in describe_module(known, other)
    ]
    check_unique([*builtin_index(), *others, *entries])
    _loaded_files[file], _loaded_texts[file] = module, text  # only now: a refused file must shadow nobody
    return entries


def _execute(source: Path, text: bytes) -> ModuleType:
    """The module of a plugin file, under a name that no other file has."""
    name = "leakboard_plugin_" + hashlib.sha256(str(source).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise UserError(f"{source} is not a Python file: a plugin file ends in .py.")
    module, before = importlib.util.module_from_spec(spec), sys.modules.get(name)
    sys.modules[name] = module
    try:
        # not by the loader: it may take compiled code for current that was made of another text in the same second
        exec(compile(text, str(source), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name) if before is None else sys.modules.update({name: before})
        why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}."
        raise UserError(f"The plugin file {source} does not import: {why}") from error
    return module


def unload_file(path: str | Path) -> None:
    """Forget a file that `load_file` loaded; its plugins are known no more."""
    file = str(Path(path).resolve())
    _loaded_files.pop(file, None)
    _loaded_texts.pop(file, None)


def loaded_files() -> list[str]:
    """The plugin files from outside the folders that this process has loaded."""
    return list(_loaded_files)


def loaded_modules() -> tuple[ModuleType, ...]:
    """The modules of those files: whoever keeps what `entries` said keeps it for these."""
    return tuple(_loaded_files.values())


def loaded_module(file: str) -> ModuleType:
    """The module of a loaded plugin file."""
    return _loaded_files[file]


def installed_files() -> list[str]:
    """Plugin files of installed packages: entry points in the groups of `ENTRY_POINTS`, one per kind of plugin.

    An entry point names a module, `my_package.my_defense`; its file is loaded as `--plugin` would load it.
    """
    found: list[str] = []
    known = entry_points()  # once: reading what all packages offer takes a while
    for group in ENTRY_POINTS:
        for point in known.select(group=group):
            try:
                spec = importlib.util.find_spec(point.module)
            except Exception:  # finding a.b imports a, which is somebody else's code
                spec = None
            if spec is None or spec.origin is None:
                raise UserError(f"The installed plugin '{point.name}' ({group}) names no module: {point.value}.")
            found.append(spec.origin)
    return list(dict.fromkeys(found))


def entries(kind: str) -> dict[str, Entry]:
    """All plugins of a kind, by name, in natural order; those of `--plugin` files too."""
    found = list(builtin_index())
    for source, module in _loaded_files.items():
        found += describe_module(module, source)
    of_kind = {entry["name"]: entry for entry in found if entry["kind"] == kind}
    return {name: of_kind[name] for name in natural_order(of_kind)}


def extensions(base: type[E], package: str) -> dict[str, type[E]]:
    """All extensions of a base, by name: those in the modules of a package, of installed packages, of plugin files."""
    for file in installed_files():
        load_file(file)
    names = [f"{package}.{info.name}" for info in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    modules = [*map(importlib.import_module, names), *_loaded_files.values()]
    found: dict[str, type[E]] = {}
    for one in (one for module in modules for one in defined_in(module, base)):
        kind, given = base.__name__.lower(), str(one.name)
        if not re.fullmatch(NAME, given):
            raise UserError(f"A {kind} is called {given!r:.80}: a name consists of letters, digits and ._+@%-.")
        if found.setdefault(given, one) is not one:
            raise UserError(f"Two {kind}s are called '{given}': names must be unique, rename one.")
    return found


def canonical_name(kind: str, name: str) -> str:
    """The name of the plugin that has this name or alias; a name that nobody has is returned as it is.

    >>> canonical_name("defense", "fedavg")
    'fedavg'
    """
    found = (entry["name"] for entry in entries(kind).values() if name in entry["aliases"])
    return next(found, name)


def title_of(kind: str, name: str, titles: Sequence[str]) -> str:
    """The one of these titles that means the plugin of this name, by an alias if need be; else the plugin's own name.

    >>> title_of("defense", "fedsgd", ["mp-dp", "fedsgd"]), title_of("defense", "fedsgd", ["fedavg"])
    ('fedsgd', 'fedsgd')
    """
    if name in titles:
        return name
    meant = canonical_name(kind, name)
    return next((title for title in titles if canonical_name(kind, title) == meant), meant)


def find(kind: str, name: str) -> Entry:
    """The entry of one plugin, by its name or a deprecated alias; a wrong name suggests the nearest."""
    known = entries(kind)
    found = known.get(name) or known.get(canonical_name(kind, name))
    if found is None:
        raise unknown_name(kind, name, known)
    if found["name"] != name:
        said = f"The {kind} '{name}' is called '{found['name']}' now: use that name."
        warnings.warn(said, DeprecationWarning, stacklevel=2)
    return found


def load(kind: str, name: str) -> type[Plugin]:
    """The plugin class of that name; imports its file and nothing else."""
    entry = find(kind, name)
    module = _loaded_files.get(entry["file"])
    if module is None:
        module = importlib.import_module(module_name(ROOT / entry["file"]))
    loaded: type[Plugin] = getattr(module, entry["class"])
    return loaded


def create(kind: str, spec: str, parameters: dict[str, Any] | None = None) -> Plugin:
    """An instance from `name` or `name:VALUE` and parameters, all validated."""
    name, _, value = spec.partition(":")
    plugin = load(kind, name)
    given = dict(parameters or {})
    if value:
        if not plugin.shorthand:
            raise UserError(f"The {kind} '{name}' takes nothing after a colon; given: {spec}.")
        given[plugin.shorthand] = value
    return plugin.parse(given, f"The {kind} '{name}'")
