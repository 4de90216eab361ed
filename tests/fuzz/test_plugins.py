"""Parameters: for every plugin, any value of any field gives a valid plugin or an error that names the field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.registry import FOLDERS
from tests.fuzz.harness import examples, leaf, survives, tree

ALL = [(kind, name) for kind in FOLDERS for name in registry.entries(kind)]
#: includes values that YAML has and JSON has not
value = st.one_of(leaf, tree, st.floats(), st.binary(max_size=4), st.dates(), st.sets(st.integers(), max_size=3))


@pytest.mark.parametrize(("kind", "name"), ALL, ids=[f"{kind} {name}" for kind, name in ALL])
def test_any_parameters_are_taken_or_named(kind: str, name: str) -> None:
    fields = sorted(registry.load(kind, name).model_fields)

    @examples(5, slower=len(ALL) // 4)
    @given(st.dictionaries(st.sampled_from([*fields, "unknown"]), value, min_size=1, max_size=3))
    def check(parameters: dict[str, Any]) -> None:
        made = survives("plugin parameters", lambda: _make(kind, name, parameters))
        if made is not None:
            numbers = [v for v in made.parameters().values() if isinstance(v, float)]
            assert all(map(math.isfinite, numbers))
            assert registry.create(kind, name, made.parameters()) == made  # as from a record

    check()


def _make(kind: str, name: str, parameters: dict[str, Any]) -> Any:
    try:
        return registry.create(kind, name, parameters)
    except UserError as error:
        if not any(str(word) in str(error) for word in (name, *parameters)):
            raise ValueError(f"{error} names neither the plugin nor the parameter") from None
        raise


@examples(25)
@given(
    kind=st.sampled_from(sorted(FOLDERS)), spec=st.text(max_size=20) | st.sampled_from([n for _, n in ALL]), more=value
)
def test_any_name_is_known_or_answered(kind: str, spec: str, more: Any) -> None:
    survives("plugin names", lambda: registry.create(kind, f"{spec}:{more}"))
