"""Every plugin of ours keeps every rule of the contract that applies to it."""

from __future__ import annotations

import pytest

from leakboard.attacks.base import STOPPED, Attack
from leakboard.contract import NotApplicable, Rule, apply, rules
from leakboard.contract.trials import CONTROL, LONG_AGO, answer_to, home_of, trial_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported
from leakboard.core.plugins import Plugin
from leakboard.defenses.base import Defense
from leakboard.defenses.pile import Pile
from tests.contract.plugins import attacks, defenses, title

DEFENSES, ATTACKS = defenses(), attacks()
#: rule -> a plugin of ours to which it applies: a rule that applies to nobody would be kept by everybody
APPLIES = {
    "check_says_what_it_is": "fedsgd",
    "check_parameters_survive_json": "fedsgd",
    "check_a_federation_runs": "fedsgd",
    "check_trains_a_finite_model": "fedsgd",
    "check_the_same_seed_gives_the_same_run": "fedsgd",
    "check_the_reading_is_whole": "fedsgd",
    "check_readings_have_the_form_of_gradients": "fedsgd",
    "check_no_view_holds_what_no_message_carried": "fedsgd",
    "check_a_view_holds_all_of_its_own_parties": "fedsgd",
    "check_no_party_acts_on_more_than_its_own_knowledge": "fedsgd",
    "check_noise_covers_every_value": "ldp",
    "check_claimed_privacy_noises_every_part": "ldp",
    "check_an_active_server_reads_finite_values": "ldp",
    "check_central_noise_is_on_every_value": "cdp",
    "check_simulate_gives_a_clients_message": "fedsgd",
    "check_mimic_is_a_function_of_gradients": "secagg",
    "check_mimic_records_is_a_function_of_gradients": "ldp",
    "check_noise_scale_agrees_with_drawn_noise": "ldp",
    "check_joint_noise_agrees_with_drawn_noise": "mp-dp",
    "check_noise_over_rounds_agrees_with_noise_scale": "ddp-mf",
    "check_open_updates_agree_with_the_reading": "secagg",
    "check_a_deviating_server_keeps_the_form": "mp-dp",
    "check_goes_on_from_a_snapshot_of_every_round": "fedsgd",
    "check_a_rehearsal_trains_the_same_model": "hybridalpha",
    "check_names_known_threats": "loss-threshold",
    "check_answers_in_the_right_form": "loss-threshold",
    "check_leaves_its_view_alone": "loss-threshold",
    "check_draws_from_its_own_seed_alone": "loss-threshold",
    "check_works_under_every_threat_that_it_names": "loss-threshold",
    "check_a_refusal_names_the_defense": "phi-membership",
    "check_says_when_time_ended_its_work": "loss-threshold",
    "check_refuses_a_view_without_gradients": "inverting-gradients",
    "check_rebuilds_as_many_images_as_a_mean_has_records": "inverting-gradients",
    "check_a_gradient_without_numbers_spoils_its_own_problem_alone": "inverting-gradients",
    "check_the_order_of_problems_changes_nothing": "inverting-gradients",
    "check_a_search_stops_when_time_is_over": "inverting-gradients",
    "check_answers_for_a_hidden_model": "received-model",
    "check_uses_the_first_probe_of_the_round_alone": "received-model",
    "check_tells_worlds_apart_without_a_defense": "audit",
    "check_a_trial_is_scored_by_itself": "audit",
}
#: really encrypted messages of 12 gradients each: minutes, so only CI runs these. The default pile is tested everywhere
(REAL_PILE,) = (d for d in DEFENSES if isinstance(d, Pile) and d.crypto == "real")
#: the first plugin of each name: that of a defense is the one without a variant
FIRST = {plugin.name: plugin for plugin in reversed([*DEFENSES, *ATTACKS])}


def must_apply(rule: Rule, plugin: Plugin) -> bool:
    return plugin is FIRST[APPLIES[rule.__name__]]


def keeps(rule: Rule, plugin: Plugin) -> None:
    result = apply(rule, plugin)
    if result.outcome == "not applicable" and not must_apply(rule, plugin):
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


def test_every_rule_applies_to_a_plugin_of_ours() -> None:
    """Every rule is in the table, and the pair is among those that are tested below, where it may not be skipped."""
    pairs: list[tuple[Plugin, Rule]] = [(d, r) for d in DEFENSES for r in rules("defense")]
    pairs += [(a, r) for a in ATTACKS for r in rules("attack", a.goal)]
    assert {rule.__name__ for kind in registry.FOLDERS for rule in rules(kind)} == set(APPLIES)
    assert {rule.__name__ for plugin, rule in pairs if must_apply(rule, plugin)} == set(APPLIES)


def test_a_rule_that_says_nothing_about_its_plugin_is_no_skip() -> None:
    def check_trains_a_finite_model(plugin: Plugin) -> None:
        """It trains."""
        raise NotApplicable("nobody does.")

    with pytest.raises(AssertionError, match="nobody does"):
        keeps(check_trains_a_finite_model, FIRST["fedsgd"])
    with pytest.raises(pytest.skip.Exception, match="nobody does"):
        keeps(check_trains_a_finite_model, FIRST["ldp"])


@pytest.mark.parametrize(
    ("defense", "rule"),
    [
        pytest.param(d, r, id=f"{title(d)}-{r.__name__}", marks=[pytest.mark.slow] if d is REAL_PILE else [])
        for d in DEFENSES
        for r in rules("defense")
    ],
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
    "correlated-noise": "ddp-mf",
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
    [
        a
        for a in ATTACKS
        if a.goal == "reconstruction" and a.name not in ("prior", "analytic", "robbing-the-fed", *HOMES)
    ],
    ids=lambda attack: attack.name,
)
def test_each_search_of_ours_stops_when_time_is_over(attack: Attack) -> None:
    answer = answer_to(attack, home_of(attack), "server", deadline=LONG_AGO)
    assert any(flag.startswith(STOPPED) for flag in answer.flags)


@pytest.mark.parametrize(
    "attack",
    [a for a in ATTACKS if a.goal == "reconstruction" and a.name not in ("prior", *HOMES)],
    ids=lambda attack: attack.name,
)
def test_each_inversion_of_ours_says_that_a_client_has_no_gradient(attack: Attack) -> None:
    """The rule accepts any refusal; ours give the reason."""
    with pytest.raises(Unsupported, match="neither the victim's gradient"):
        answer_to(attack, trial_world(CONTROL), "client")
