"""Every plugin of ours keeps every rule of the contract that applies to it."""

from __future__ import annotations

import pytest

from leakboard.attacks.base import STOPPED, Attack
from leakboard.contract import Rule, apply, rules
from leakboard.contract.trials import LONG_AGO, answer_to, home_of
from leakboard.core import registry
from leakboard.core.plugins import Plugin
from leakboard.defenses.base import Defense
from tests.contract.plugins import attacks, defenses, title

DEFENSES, ATTACKS = defenses(), attacks()


def keeps(rule: Rule, plugin: Plugin) -> None:
    result = apply(rule, plugin)
    if result.outcome == "not applicable":
        pytest.skip(result.reason)
    assert result.outcome == "ok", result.line


def test_there_are_plugins_of_all_kinds() -> None:
    """An empty list of plugins or rules would pass by saying nothing."""
    assert "fedsgd" in {defense.name for defense in DEFENSES}
    by_goal: dict[str, set[str]] = {}
    for attack in ATTACKS:
        by_goal.setdefault(attack.goal, set()).add(attack.name)
    assert "received-model" in by_goal["extraction"]
    assert "audit" in by_goal["audit"]
    assert {"prior", "inverting-gradients"} <= by_goal["reconstruction"]
    assert {"loss-threshold", "shadow", "lira", "rmia", "nasr", "known-members"} <= by_goal["membership"]
    for kind in registry.FOLDERS:
        assert rules(kind)


@pytest.mark.parametrize(
    ("defense", "rule"),
    [pytest.param(d, r, id=f"{title(d)}-{r.__name__}") for d in DEFENSES for r in rules("defense")],
)
def test_a_defense_keeps_the_rule(defense: Defense, rule: Rule) -> None:
    keeps(rule, defense)


@pytest.mark.parametrize(
    ("attack", "rule"),
    [pytest.param(a, r, id=f"{a.name}-{r.__name__}") for a in ATTACKS for r in rules("attack", a.goal)],
)
def test_an_attack_keeps_the_rule(attack: Attack, rule: Rule) -> None:
    keeps(rule, attack)


@pytest.mark.parametrize("kind", sorted(set(registry.FOLDERS) - {"defense", "attack"}))
def test_plugins_of_other_kinds_keep_the_rules_for_all(kind: str) -> None:
    for name in registry.entries(kind):
        plugin = registry.load(kind, name)
        if any(field.is_required() for field in plugin.model_fields.values()):
            assert plugin.summary()  # it needs a file or a folder: its own tests make one
            continue
        for rule in rules(kind):
            keeps(rule, plugin())


#: attacks on one kind of scheme, and a defense that they work on
HOMES = {
    "extraction": "mp-dp",
    "phi-inversion": "mp-dp",
    "phi-membership": "mp-dp",
    "mix-and-match": "hybridalpha",
    "strip-membership": "mp-dp",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_tried_where_it_works(attack: Attack) -> None:
    assert home_of(attack).defense.name == HOMES.get(attack.name, "fedsgd")


@pytest.mark.parametrize(
    "attack",
    [a for a in ATTACKS if a.goal == "reconstruction" and a.name not in ("prior", "analytic", *HOMES)],
    ids=lambda attack: attack.name,
)
def test_each_search_of_ours_stops_when_time_is_over(attack: Attack) -> None:
    answer = answer_to(attack, home_of(attack), "server", deadline=LONG_AGO)
    assert any(flag.startswith(STOPPED) for flag in answer.flags)
