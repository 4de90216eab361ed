"""Which of our own modules a piece of code depends on, and their digests, without importing anything.

The key of a record contains these digests: a changed plugin, model or cipher gives a new key, and a change elsewhere
does not. A digest is computed from the syntax tree, so a better comment, docstring or line break changes no key.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from leakboard.core.registry import PACKAGE, ROOT, module_name

#: the folders below `ROOT` that hold code which may be part of a key
PACKAGES = ("core", "datasets", "federation", "defenses", "attacks", "metrics", "leaderboard", "suites")


def module_file(name: str) -> Path | None:
    """The file of a first-party module, or None for anything else.

    `leakboard` itself returns None: it only re-exports names of the others, and would add all of them to every key.
    """
    package, _, rest = name.partition(".")
    if package != PACKAGE or rest.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*rest.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported_modules(source: str) -> set[str]:
    """The first-party modules that a source text imports anywhere (also inside functions)."""
    return {name for name in _imported_names(ast.parse(source)) if module_file(name) is not None}


def code_digest(text: bytes) -> str:
    """SHA-256 (hex) of what a Python text does: its syntax tree without docstrings, comments and formatting.

    A text that does not parse, or whose tree is too deep, is hashed byte by byte.

    >>> code_digest(b"x = 1  # one") == code_digest(b"x   =   1") != code_digest(b"x = 2")
    True
    """
    try:
        return _tree_digest(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(text).hexdigest()


def _tree_digest(tree: ast.AST) -> str:
    pieces: list[str] = []
    _canonical(tree, pieces.append)
    return hashlib.sha256("".join(pieces).encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: object, write: Callable[[str], None]) -> None:
    """Write the pieces of a text that is the same for the same tree in every version of Python.

    Empty fields are left out, because newer versions add fields that are empty for code that older versions can read.
    """
    if isinstance(value, ast.AST):
        write(f"({type(value).__name__}")
        for name in sorted(value._fields):
            part = getattr(value, name, None)
            if name == "body" and isinstance(value, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                part = _without_docstring(part)
            # `kind` tells u"" from "", and a type comment is a comment
            if part is not None and part != [] and name not in ("kind", "type_comment"):
                write(f" {name}=")
                _canonical(part, write)
        write(")")
    elif isinstance(value, list):
        write("[")
        for item in value:
            _canonical(item, write)
        write("]")
    else:
        write(f"{type(value).__name__}:{value!r};")


def _without_docstring(body: object) -> object:
    if not isinstance(body, list) or not body or not isinstance(first := body[0], ast.Expr):
        return body
    is_text = isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return body[1:] if is_text else body


def _imported_names(tree: ast.AST, package: str = "") -> set[str]:
    """Every dotted name that an import in the tree may run; relative ones are resolved from `package`."""
    found: set[str] = set()
    for node in ast.walk(tree):
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
    """The file of a module that belongs to an outside plugin: in its package, or a single file in its folder."""
    folder = _above(plugin)
    if folder == plugin.parent:
        # no package: a folder of single files, which may be site-packages, so packages in it belong to others
        return file if (file := folder / f"{name}.py").is_file() else None
    if name.partition(".")[0] != plugin.relative_to(folder).parts[0]:
        return None
    path = folder.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _read(path: Path, _stamp: tuple[int, int]) -> tuple[str, frozenset[str], frozenset[str]]:
    """Digest, imported first-party modules and other imported names of a file."""
    text = path.read_bytes()
    try:
        tree = ast.parse(text)
        names = _imported_names(tree, ".".join(path.parent.relative_to(_above(path)).parts))
        digest = _tree_digest(tree)
    except (SyntaxError, ValueError, RecursionError):  # it cannot be imported either, and the import will say so
        names, digest = set(), code_digest(text)
    ours = frozenset(name for name in names if module_file(name) is not None)
    return digest, ours, frozenset(names - ours)


def _file_facts(path: Path) -> tuple[str, frozenset[str], frozenset[str]]:
    stat = path.stat()
    return _read(path, (stat.st_mtime_ns, stat.st_size))


def source_digests(roots: Iterable[str]) -> dict[str, str]:
    """Digest of every first-party module that the roots reach by imports, including the roots.

    A root is a module name or the path of a plugin file (absolute, or relative to `ROOT`). Modules that belong to such
    a file are reached too. Plugins are loaded by name at run time, so they are reached only if they are roots
    themselves.
    """
    # the location of an outside plugin must not influence its records, only its content
    found: dict[str, str] = {}
    for name, digest in sorted(_reached(roots).items(), key=lambda item: (Path(item[0]).name, item[1])):
        shown = Path(name).name if name.endswith(".py") else name
        found[shown] = f"{found[shown]}+{digest}" if shown in found else digest
    return dict(sorted(found.items()))


def outside_texts(files: Iterable[str]) -> dict[str, bytes]:
    """Digest -> text of plugin files from outside our packages, and of the modules that belong to them."""
    paths = [Path(name) for name in _reached(files) if name.endswith(".py")]
    texts = [path.read_bytes() for path in paths]
    return {code_digest(text): text for text in texts}


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
        elif (parent := name.rpartition(".")[0]) != PACKAGE:
            waiting.append(parent)  # importing a.b runs a too
    return digests


def _normalised(root: str) -> str:
    if not root.endswith(".py"):
        return root
    path = Path(root)
    inside = path if not path.is_absolute() else (path.relative_to(ROOT) if path.is_relative_to(ROOT) else None)
    return module_name(ROOT / inside) if inside is not None and inside.parts[0] in PACKAGES else str(path)
