"""What pydantic found wrong with settings, in one sentence per mistake."""

from __future__ import annotations

import inspect
import reprlib
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from leakboard.core.errors import UserError, nearest

LONGEST_VALUE = 80


class Faults(ValueError):
    """Several broken rules of one model, each as a sentence without its stop; a validator raises it."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


#: pydantic's kinds of errors whose own words are those of a programmer
PLAIN = {
    "int_parsing": "it must be a whole number",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "string_type": "it must be a text",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "tuple_type": "it must be a list, such as [a, b]",
    "list_type": "it must be a list, such as [a, b]",
    "dict_type": "it must be a mapping, such as {key: value}",
    "model_type": "it must be a mapping of settings",
}


def explain(error: ValidationError, what: str, model: type[BaseModel]) -> UserError:
    """Turn pydantic's report into a `UserError`: each sentence says what was wrong, what is allowed, what was given.

    A value that may be of several kinds has one report per kind; these become one sentence.
    """
    found: dict[str, str] = {}  # by location; empty: a value whose broken rules are in `rules`
    rules: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    reported = error.errors(include_url=False)
    for problem in reported:
        owner, place = _locate(model, problem["loc"])
        where = ".".join(map(str, place))
        if problem["type"] == "too_short" and any(_is_below(other["loc"], problem["loc"]) for other in reported):
            continue  # pydantic counts the entries that have no mistake of their own
        faults = problem.get("ctx", {}).get("error")
        if isinstance(faults, Faults):
            found |= {f"{where}#{n}": f"{what}: {fault}" for n, fault in enumerate(faults.args)}
        elif problem["type"] == "extra_forbidden":
            found[where] = _unknown(what, where, str(place[-1]), list(owner.model_fields))
        elif problem["type"] == "missing":
            found[where] = _missing(what, where, owner, str(place[-1]))
        else:
            found.setdefault(where, "")
            rules.setdefault(where, []).append(_rule(problem))
            shown[where] = _shown(problem)
    return UserError(*(f"{told or _broken(what, at, rules[at], shown[at])}." for at, told in found.items()))


def _broken(what: str, where: str, rules: Sequence[str], given: str) -> str:
    """A rule about several settings has no location: its words say which they are."""
    at = f"'{where}' is wrong: " if where else ""
    first, *others = dict.fromkeys(rules)
    return f"{what}: {at}{' or '.join([first, *(rule.removeprefix('it must be ') for rule in others)])}{given}"


def _unknown(what: str, where: str, name: str, allowed: Sequence[str]) -> str:
    guess = nearest(name, allowed)
    hint = f"did you mean '{guess}'? " if guess else ""
    return f"{what} has no setting '{where}': {hint}Allowed: {', '.join(allowed) or 'none'}"


def _missing(what: str, where: str, owner: type[BaseModel], name: str) -> str:
    field = owner.model_fields.get(name)
    meaning = f" ({field.description})" if field is not None and field.description else ""
    return f"{what}: the setting '{where}'{meaning} is missing"


def _is_below(loc: Sequence[int | str], other: Sequence[int | str]) -> bool:
    return len(loc) > len(other) and tuple(loc[: len(other)]) == tuple(other)


def _rule(problem: Any) -> str:
    """The rule that was broken: `it must be greater than 0`."""
    if problem["type"] == "too_short":
        return f"it must have at least {problem['ctx']['min_length']} entry"
    if problem["type"] == "too_long":
        return f"it must have at most {problem['ctx']['max_length']} entries"
    text = PLAIN.get(problem["type"]) or str(problem["msg"]).replace("Input should ", "it must ", 1)
    return text.removeprefix("Value error, ").rstrip(".")  # a rule of ours has its own words


def _shown(problem: Any) -> str:
    """`; given: VALUE`, as a user recognises it. A mapping is not repeated: it may be the whole file."""
    given = problem.get("input")
    if isinstance(given, Mapping):
        return "" if problem["type"] == "value_error" else "; given: a mapping"
    if isinstance(given, list | tuple) and any(isinstance(one, list | tuple | Mapping) for one in given):
        return f"; given: a list of {len(given)}"
    text = reprlib.repr(given)  # a small file of nested aliases must not become a large text
    return f"; given: {text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + '...'}"


def _locate(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], tuple[int | str, ...]]:
    """The settings that own a location, and the location without pydantic's own words, such as `tuple[int, ...]`."""
    owner, kinds = model, [model]
    for depth, part in enumerate(loc):
        below: list[Any] = []
        for kind in kinds:
            if _is_model(kind) and isinstance(part, str):
                owner = kind
                below += [kind.model_fields[part].annotation] if part in kind.model_fields else [Any]
            elif get_origin(kind) in (tuple, list) and isinstance(part, int):
                below.append(get_args(kind)[0])
            elif get_origin(kind) is dict and isinstance(part, str):
                below.append(get_args(kind)[1])
        if not below:
            return owner, tuple(loc[:depth])
        kinds = [kind for one in below for kind in _alternatives(one)]
    return owner, tuple(loc)


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def _alternatives(annotation: Any) -> list[Any]:
    """The kinds that an annotation allows: `Entry | None` has two."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for one in get_args(annotation) for kind in _alternatives(one)]
    return [annotation]
