"""Which of our own modules a piece of code depends on, and their digests, without importing anything.

The key of a record holds these digests: a changed plugin, model or cipher gives a new key, and a
change elsewhere does not.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from core.registry import ROOT

PACKAGES = ("core", "datasets", "federation", "defenses", "attacks", "metrics", "leaderboard", "suites")


def module_file(name: str) -> Path | None:
    """The file of a first-party module, or None for anything else."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported_modules(source: str) -> set[str]:
    """The first-party modules that a source text imports anywhere (also inside functions)."""
    return {name for name in _imported_names(source) if module_file(name) is not None}


def _imported_names(source: str | bytes, package: str = "") -> set[str]:
    """Every dotted name that an import of the text may run; relative ones from `package`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if not module:
                continue
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            # importing a.b.c runs a and a.b too
            parts = name.split(".")
            found |= {".".join(parts[: i + 1]) for i in range(len(parts))}
    return found


def _above(file: Path) -> Path:
    """The folder that holds a file, or its outermost package."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _beside(plugin: Path, name: str) -> Path | None:
    """The file of a module that comes along with an outside plugin: of its package, or alone in its folder."""
    folder = _above(plugin)
    if folder == plugin.parent:
        # no package: a folder of single files, which may be site-packages, so packages in it are somebody else's
        return file if (file := folder / f"{name}.py").is_file() else None
    if name.partition(".")[0] != plugin.relative_to(folder).parts[0]:
        return None
    path = folder.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _read(path: Path, _stamp: tuple[int, int]) -> tuple[str, frozenset[str], frozenset[str]]:
    """Digest, first-party modules and other names that are imported."""
    text = path.read_bytes()
    try:
        names = _imported_names(text, ".".join(path.parent.relative_to(_above(path)).parts))
    except (SyntaxError, ValueError):  # it cannot be imported either: whoever tries will say so
        names = set()
    ours = frozenset(name for name in names if module_file(name) is not None)
    return hashlib.sha256(text).hexdigest(), ours, frozenset(names - ours)


def _file_facts(path: Path) -> tuple[str, frozenset[str], frozenset[str]]:
    stat = path.stat()
    return _read(path, (stat.st_mtime_ns, stat.st_size))


def source_digests(roots: Iterable[str]) -> dict[str, str]:
    """Digest of every first-party module that the roots reach by imports, the roots included.

    A root is a module name or the path of a plugin file (absolute, or relative to the checkout); modules that come
    along with such a file are reached too.
    Plugins are loaded by name at run time, so they are reached only when they are roots themselves.
    """
    # where an outside plugin lies must not matter to its records, only what it says
    found: dict[str, str] = {}
    for name, digest in sorted(_reached(roots).items(), key=lambda item: (Path(item[0]).name, item[1])):
        shown = Path(name).name if name.endswith(".py") else name
        found[shown] = f"{found[shown]}+{digest}" if shown in found else digest
    return dict(sorted(found.items()))


def outside_texts(files: Iterable[str]) -> dict[str, bytes]:
    """Digest -> text of plugin files from outside our packages, and of what comes along with them."""
    paths = [Path(name) for name in _reached(files) if name.endswith(".py")]
    texts = [path.read_bytes() for path in paths]
    return {hashlib.sha256(text).hexdigest(): text for text in texts}


def _reached(roots: Iterable[str]) -> dict[str, str]:
    """Digest of every module (by its dotted name) and outside file (by its path) that the roots reach."""
    digests: dict[str, str] = {}
    waiting = [_normalised(root) for root in roots]
    while waiting:
        name = waiting.pop()
        if name in digests:
            continue
        path = Path(name) if name.endswith(".py") else module_file(name)
        if path is None:
            raise FileNotFoundError(f"no first-party module {name}")
        digest, ours, others = _file_facts(path)
        digests[name] = digest
        waiting += ours
        if name.endswith(".py"):
            waiting += (str(file) for other in others if (file := _beside(path, other)) is not None)
        if not name.endswith(".py") and "." in name:
            waiting.append(name.rpartition(".")[0])  # importing a.b runs a too
    return digests


def _normalised(root: str) -> str:
    if not root.endswith(".py"):
        return root
    path = Path(root)
    inside = path if not path.is_absolute() else (path.relative_to(ROOT) if path.is_relative_to(ROOT) else None)
    if inside is not None and inside.parts[0] in PACKAGES:
        return ".".join(inside.with_suffix("").parts)
    return str(path)
