from __future__ import annotations

from typing import ClassVar, Literal

import pytest
from pydantic import Field, ValidationError

from leakboard.core.errors import UserError
from leakboard.core.plugins import Plugin, Settings, is_plugin


class Base(Plugin):
    """Base of the test's plugins."""

    kind: ClassVar[str] = "test-only"


class Sample(Base):
    """A plugin of the test.

    With more to say below its first line.
    """

    name: ClassVar[str] = "sample"
    citation: ClassVar[str] = "Nobody 2020"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)

    epsilon: float = Field(1.0, gt=0, le=10, description="the budget")
    rounds: int = Field(3, ge=1)
    mode: Literal["paper", "corrected"] = "paper"
    path: str = ""


class Other(Base):
    """Of another kind."""

    kind: ClassVar[str] = "other"
    name: ClassVar[str] = "other"


class Inherits(Sample):
    """Sets no name of its own."""


def parse(**given: object) -> Sample:
    return Sample.parse(given, "The plugin 'sample'")


def test_defaults_and_parameters_as_json() -> None:
    assert parse().parameters() == {"epsilon": 1.0, "rounds": 3, "mode": "paper", "path": ""}


def test_instances_are_frozen() -> None:
    sample = parse()
    with pytest.raises(ValidationError, match="frozen"):
        sample.epsilon = 2.0  # type: ignore[misc]
    with pytest.raises((ValidationError, ValueError, AttributeError)):
        sample.anything = 1  # type: ignore[attr-defined]


def test_unknown_parameter_is_one_sentence_with_a_suggestion() -> None:
    with pytest.raises(UserError) as caught:
        parse(epsilom=2)
    assert str(caught.value) == (
        "The plugin 'sample' has no setting 'epsilom': did you mean 'epsilon'? Allowed: epsilon, rounds, mode, path."
    )


def test_unknown_parameter_that_is_like_nothing() -> None:
    with pytest.raises(UserError) as caught:
        parse(zzz=2)
    assert str(caught.value) == "The plugin 'sample' has no setting 'zzz': Allowed: epsilon, rounds, mode, path."


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"epsilon": 0}, ["'epsilon'", "greater than 0", "given: 0"]),
        ({"epsilon": 11}, ["'epsilon'", "less than or equal to 10", "given: 11"]),
        ({"epsilon": float("nan")}, ["'epsilon'", "finite", "given: nan"]),
        ({"epsilon": float("inf")}, ["'epsilon'", "given: inf"]),
        ({"rounds": 1.5}, ["'rounds'", "whole number", "given: 1.5"]),
        ({"rounds": "many"}, ["'rounds'", "whole number", "given: 'many'"]),
        ({"mode": "papr"}, ["'mode'", "'paper' or 'corrected'", "given: 'papr'"]),
        ({"mode": "x" * 500}, ["'mode'", "..."]),
    ],
)
def test_a_wrong_value_says_what_is_allowed_and_what_was_given(given: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse(**given)
    message = str(caught.value)
    assert message.startswith("The plugin 'sample': ")
    assert all(part in message for part in parts), message
    assert "\n" not in message
    assert len(message) < 250


def test_identity_and_location_split_the_parameters() -> None:
    sample = parse(path="/data/here", epsilon=2)
    assert sample.identity() == {"epsilon": 2.0, "rounds": 3, "mode": "paper"}
    assert sample.location() == {"path": "/data/here"}
    assert {**sample.identity(), **sample.location()} == sample.parameters()


def test_what_list_prints() -> None:
    described = Sample.describe()
    assert described["name"] == "sample"
    assert described["kind"] == "test-only"
    assert described["summary"] == "A plugin of the test."
    assert described["citation"] == "Nobody 2020"
    assert described["parameters"]["epsilon"] == {
        "default": 1.0,
        "description": "the budget",
        "exclusiveMinimum": 0,
        "maximum": 10,
        "type": "number",
    }


def test_only_a_class_that_sets_its_name_is_a_plugin() -> None:
    assert is_plugin(Sample)
    assert is_plugin(Sample, "test-only")
    assert not is_plugin(Sample, "other")
    assert is_plugin(Other, "other")
    assert not is_plugin(Base)
    assert not is_plugin(Inherits)
    assert not is_plugin(parse())
    assert not is_plugin(Settings)
