"""The contract itself: results, time bounds, and rules about overflow that find something."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from pydantic import Field

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.contract import apply, check_plugin, overflow, rules, sentence_of
from leakboard.contract.attack import check_answers_in_the_right_form
from leakboard.contract.channels import check_no_party_acts_on_more_than_its_own_knowledge
from leakboard.contract.small import small
from leakboard.core import registry
from leakboard.core.errors import Unsupported, UserError
from leakboard.core.plugins import Plugin
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public


class BareNoise(Defense):
    """Adds noise to whatever a client has, numbers or not."""

    name: ClassVar[str] = "bare-noise"

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        stream = me.stream("noise")
        return {n: g + 0.01 * torch.from_numpy(stream.normal(*g.shape)).to(g) for n, g in gradient.items()}


class HalfPrivate(FedSGD):
    """Claims privacy and sends the plain gradient."""

    def claims(self, public: Public) -> dict[str, Any]:
        return {"dp_holds": True}


class HalfCentral(FedSGD):
    """Claims central noise and adds none."""

    def claims(self, public: Public) -> dict[str, Any]:
        return {"sigma_central": 1.0}


@pytest.mark.parametrize(
    ("defense", "rule", "sentence"),
    [
        (BareNoise(), overflow.check_noise_covers_every_value, "carry no noise for the records"),
        (
            HalfPrivate(),
            overflow.check_claimed_privacy_noises_every_part,
            "'gradient' of a client's message carries no",
        ),
        (HalfCentral(), overflow.check_central_noise_is_on_every_value, "not finite"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Defense) else None,
)
def test_noise_that_is_missing_is_found(defense: Defense, rule: Any, sentence: str) -> None:
    result = apply(rule, defense)
    assert result.outcome == "broken"
    assert sentence in result.reason


def test_every_rule_is_a_sentence_and_no_two_are_alike() -> None:
    found = {rule for kind in registry.FOLDERS for rule in rules(kind)}
    assert len(found) > 30
    assert all(sentence_of(rule).endswith(".") and len(sentence_of(rule)) < 120 for rule in found)
    assert len({sentence_of(rule) for rule in found}) == len({rule.__name__ for rule in found}) == len(found)


def test_a_kind_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="There is no kind of plugin 'defence': allowed are defense, attack"):
        rules("defence")


def test_a_rule_ends_by_the_cpu_that_it_used_whatever_the_plugin_catches() -> None:
    def check_forever(plugin: Plugin) -> None:
        """It ends."""
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    result = apply(check_forever, FedSGD(), cpu_seconds=0.2)
    assert result.outcome == "broken"
    assert result.reason == "It was not done after 0.2 CPU seconds."
    assert apply(rules("metric")[0], FedSGD(), cpu_seconds=60).outcome == "ok"


class Demanding(FedSGD):
    """Has a parameter without a default."""

    size: int = Field(gt=0)


def test_a_class_without_defaults_needs_an_instance() -> None:
    with pytest.raises(UserError, match="so it cannot be checked: the setting 'size' is missing"):
        next(check_plugin(Demanding))
    assert next(check_plugin(Demanding(size=1))).outcome == "ok"


def test_a_class_that_no_other_process_can_import_is_not_replayed() -> None:
    class Local(FedSGD):
        """Lives in a function, as one of a notebook does in no file."""

    result = apply(check_no_party_acts_on_more_than_its_own_knowledge, Local())
    assert (result.outcome, result.reason) == (
        "not applicable",
        "no other process can import the class: write it into a file and check that.",
    )


class Refuses(MembershipAttack):
    """Works nowhere."""

    name: ClassVar[str] = "refuses"

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        raise Unsupported(f"nothing to attack in '{knowledge.defense.name}'")


def test_an_attack_that_refuses_everything_is_broken() -> None:
    result = apply(check_answers_in_the_right_form, Refuses())
    assert result.outcome == "broken"
    assert result.reason == "It refuses every federation of the contract: nothing to attack in 'fedsgd'."


def test_a_parameter_of_another_type_leaves_the_others_small() -> None:
    class Learning(FedSGD):
        name: ClassVar[str] = "learning"
        hidden: int = 1000
        epochs: int = 30

    made = small(Learning)
    assert (made.hidden, made.epochs) == (1000, 2)
