"""Mistakes in settings: one sentence each, all of them at once, and no mapping is repeated to the user."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError, model_validator

from leakboard.core.errors import Problems, UserError
from leakboard.core.explaining import Faults, explain
from leakboard.core.plugins import Settings


class Part(Settings):
    name: str
    who: tuple[str, ...] = Field(min_length=1, description="who attacks: server, client")
    sizes: int | tuple[int, ...] = 1

    @model_validator(mode="after")
    def _rule(self) -> Part:
        if self.name == "rule":
            raise ValueError("no part may be called rule.")
        if self.name == "rules":
            raise Faults("the first is broken", "the second too")
        return self


class Whole(Settings):
    parts: tuple[Part, ...] = Field(min_length=1)
    more: dict[str, float] = Field(default_factory=dict)
    rounds: int = Field(1, ge=1)
    sub: Part | None = None


def problems_of(**given: Any) -> tuple[str, ...]:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(given)
    return explain(caught.value, "The suite", Whole).problems


GOOD = {"name": "one", "who": ["server"]}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"parts": "one"}, "The suite: 'parts' is wrong: it must be a list, such as [a, b]; given: 'one'."),
        ({"parts": []}, "The suite: 'parts' is wrong: it must have at least 1 entry; given: []."),
        (
            {"parts": [GOOD], "rounds": 0},
            "The suite: 'rounds' is wrong: it must be greater than or equal to 1; given: 0.",
        ),
        ({"parts": [GOOD], "rounds": "x"}, "The suite: 'rounds' is wrong: it must be a whole number; given: 'x'."),
        ({"parts": [GOOD], "sub": 5}, "The suite: 'sub' is wrong: it must be a mapping of settings; given: 5."),
        (
            {"parts": [GOOD], "rounds": {"a": 1}},
            "The suite: 'rounds' is wrong: it must be a whole number; given: a mapping.",
        ),
        (
            {"parts": [GOOD], "rounds": [[1], {"a": 1}]},
            "The suite: 'rounds' is wrong: it must be a whole number; given: a list of 2.",
        ),
        ({"parts": [GOOD], "more": {"a": "x"}}, "The suite: 'more.a' is wrong: it must be a number; given: 'x'."),
        (
            {"parts": [{"name": "one"}]},
            "The suite: the setting 'parts.0.who' (who attacks: server, client) is missing.",
        ),
        (
            {"parts": [{**GOOD, "whom": 1}]},
            "The suite has no setting 'parts.0.whom': did you mean 'who'? Allowed: name, who, sizes.",
        ),
        (
            {"parts": [GOOD], "sub": {**GOOD, "nam": 1}},
            "The suite has no setting 'sub.nam': did you mean 'name'? Allowed: name, who, sizes.",
        ),
        (
            {"parts": [{**GOOD, "sizes": "x"}]},
            "The suite: 'parts.0.sizes' is wrong: it must be a whole number or a list, such as [a, b]; given: 'x'.",
        ),
        ({"parts": [{**GOOD, "name": "rule"}]}, "The suite: 'parts.0' is wrong: no part may be called rule."),
    ],
)
def test_one_mistake_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    assert problems_of(**given) == (sentence,)


def test_all_mistakes_are_told_in_the_order_of_the_settings() -> None:
    told = problems_of(parts=[{"name": "one"}, {**GOOD, "whom": 1}], rounds=-1, subb=None)
    assert [sentence.split("'")[1] for sentence in told] == ["parts.0.who", "parts.1.whom", "rounds", "subb"]


def test_a_rule_about_all_settings_needs_no_location() -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate({"name": "rule", "who": ["server"]})
    assert explain(caught.value, "The part", Part).problems == ("The part: no part may be called rule.",)


def test_collected_problems_are_told_once_each() -> None:
    problems = Problems()
    for sentences in (("One.",), ("Two.", "One.")):
        with problems.collected():
            raise UserError(*sentences)
    with pytest.raises(UserError) as caught:
        problems.refuse()
    assert caught.value.problems == ("One.", "Two.")
    assert str(caught.value) == "One. Two."
    Problems().refuse()  # nothing was found, so nothing is refused


def test_several_broken_rules_of_one_part_are_several_sentences() -> None:
    assert problems_of(parts=[{**GOOD, "name": "rules"}]) == (
        "The suite: the first is broken.",
        "The suite: the second too.",
    )
