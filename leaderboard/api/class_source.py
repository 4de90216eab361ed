"""The text of a plugin file from a class that was defined in a notebook or a script.

Workers are other processes and load plugins from files, and the key of a record is the digest of such a file. So a
class of a notebook becomes a file: its own text, the functions and classes beside it that it uses, the imports that
these need, and plain constants.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from leakboard.core.errors import UserError
from leakboard.core.plugins import Plugin

#: kinds of values that are written down as they are
PLAIN = (bool, int, float, str, bytes, type(None))


def plugin_text(cls: type) -> str:
    """The text of a file that defines this class; a `UserError` if Python does not have its source."""
    found: dict[str, str] = {}
    imports: dict[str, str] = {}
    _collect(cls.__name__, cls, _globals(cls), cls, found, imports)
    parts = [
        "from __future__ import annotations",
        "\n".join(imports[name] for name in sorted(imports)),
        *found.values(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def refuse_difference(given: type[Plugin], loaded: type[Plugin]) -> None:
    """A `UserError` if the class of the written file is another than the given one.

    A constant that got a new value after the class was defined leads to that.
    """
    before, after = _facts(given), _facts(loaded)
    differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if differing:
        raise UserError(
            f"{given.__name__} differs from its own source in {', '.join(differing)}, probably because a name that it "
            "uses got another value later: define the class again, or put it into a file and give that file."
        )


def _facts(cls: type[Plugin]) -> dict[str, object]:
    """What can be compared of two classes: descriptions, plain class variables, plain defaults of methods."""
    variables = {
        name: literal(value) for name, value in vars(cls).items() if not name.startswith("_") and _is_plain(value)
    }
    defaults = {
        f"{function.__name__}()": literal(values)
        for function in _functions(cls)
        if _is_plain(values := [function.__defaults__, function.__kwdefaults__])
    }
    return {**variables, **cls.describe(), **defaults}


def _collect(
    name: str, value: Any, space: dict[str, Any], cls: type, found: dict[str, str], imports: dict[str, str]
) -> None:
    """Note how a name gets its value: by an import, as a constant, or by its own text, after what that uses."""
    if isinstance(value, type | FunctionType) and _is_local(value, cls):
        _refuse_closures(value, cls)
        text = _text_of(value, cls)
        found[name] = ""  # two functions that call each other are written once each
        for used in sorted(_names(text) & space.keys() - found.keys()):
            if isinstance(space[used], ModuleType):
                imports.update(_module_imports(used, space[used], text))
            elif used not in imports:
                _collect(used, space[used], space, cls, found, imports)
        del found[name]
        found[name] = text
    elif _is_plain(value):
        found[name] = f"{name} = {literal(value)}"
    elif (home := getattr(value, "__module__", None)) and _reached(home, getattr(value, "__qualname__", None) or name):
        last = getattr(value, "__qualname__", None) or name
        imports[name] = f"from {home} import {last}" + ("" if last == name else f" as {name}")
    else:
        raise UserError(
            f"{cls.__name__} uses '{name}', which cannot be written into a plugin file: "
            "put the class and what it uses into a file of its own, and give that file."
        )


def _module_imports(name: str, module: ModuleType, text: str) -> dict[str, str]:
    """The imports of a module and of its submodules that a text reaches by dots, as `import a.b` allows."""
    found = {name: f"import {module.__name__}" + ("" if module.__name__ == name else f" as {name}")}
    for node in ast.walk(ast.parse(text)):
        first, _, rest = ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("", "", "")
        full = f"{module.__name__}.{rest}"
        if first == name and full in sys.modules:
            found[full] = f"import {full}"
    return found


def _refuse_closures(value: type | FunctionType, cls: type) -> None:
    """Variables of a function around a class or function have no place in a file."""
    free = sorted({free for function in _functions(value) for free in function.__code__.co_freevars} - {"__class__"})
    if free:
        raise UserError(
            f"{cls.__name__} uses variables of a function around {value.__name__} ({', '.join(free)}), which cannot be "
            "written into a plugin file: use global names or parameters, or put the class into a file and give that."
        )


def _is_local(value: type | FunctionType, cls: type) -> bool:
    return value.__module__ == cls.__module__


def _is_plain(value: object) -> bool:
    if type(value) in (tuple, list, set, frozenset):
        return all(map(_is_plain, cast(Iterable[object], value)))
    if type(value) is dict:
        return all(_is_plain(part) for pair in value.items() for part in pair)
    return type(value) in PLAIN


def literal(value: object) -> str:
    """A plain value as Python text, the same in every process: the order of a set depends on the process.

    >>> literal(({"b", "a"}, [float("inf")], frozenset()))
    "({'a', 'b'}, [float('inf')], frozenset(()))"
    """
    if isinstance(value, set | frozenset):
        parts = ", ".join(sorted(map(literal, value)))
        inner = f"{{{parts}}}" if parts else "()"
        return inner if parts and isinstance(value, set) else f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(part)}' for key, part in value.items())}}}"
    return f"float('{value}')" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _reached(module: str, name: str) -> bool:
    """Whether a value can be imported by this name, from a module that is no notebook."""
    return module != "__main__" and "." not in name and hasattr(sys.modules.get(module), name)


def _names(text: str) -> set[str]:
    """The global names that a text may use; annotations and decorators count."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return used - set(dir(builtins))


def _functions(value: type | FunctionType) -> Iterator[FunctionType]:
    """The functions whose code says where a value was defined."""
    if isinstance(value, FunctionType):
        yield value
        return
    for member in vars(value).values():
        inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", None)
        function = inspect.unwrap(inner if isinstance(inner, FunctionType) else member)
        if isinstance(function, FunctionType) and function.__qualname__.startswith(value.__qualname__):
            yield function


def _globals(cls: type) -> dict[str, Any]:
    """The names that the class's code sees."""
    for function in _functions(cls):
        return function.__globals__
    return dict(vars(sys.modules.get(cls.__module__, builtins)))


def _text_of(value: type | FunctionType, cls: type) -> str:
    """The text of a class or function, wherever Python keeps it: a file, or the cell of a notebook."""
    for function in _functions(value):
        code = function.__code__
        lines = linecache.getlines(code.co_filename, function.__globals__)
        found = _definition("".join(lines), value.__name__, code.co_firstlineno)
        if found:
            return found
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        raise UserError(
            f"The source of {cls.__name__} cannot be found ({value.__name__} was defined where Python keeps none): "
            "put the class into a file, and give that file."
        ) from None


def _definition(text: str, name: str, line: int) -> str:
    """The outermost definition of this name that spans a line of a text; nothing where there is none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= line <= (node.end_lineno or first):
                return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    return ""
