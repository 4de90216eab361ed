"""Rules for attacks that steal the global model."""

from __future__ import annotations

from dataclasses import replace

from leakboard.attacks.base import ExtractionAttack, ExtractionTask
from leakboard.contract.checking import Broken
from leakboard.contract.trials import EXTRACTION, check_form, fingerprint, knowledge, same, trial_world


def check_answers_for_a_hidden_model(attack: ExtractionAttack) -> None:
    """It answers where the model is hidden from clients too (mp-dp), repeats itself and leaves its view alone."""
    world = trial_world("mp-dp")
    known = knowledge(world, "client")
    before = fingerprint(known)
    first, second = attack.extract(known, EXTRACTION), attack.extract(known, EXTRACTION)
    check_form(attack, first, EXTRACTION, world)
    if not same(first, second):
        raise Broken("Two answers with one seed differ: draw from `knowledge.generator()`.")
    if fingerprint(known) != before:
        raise Broken("A tensor of the view has other values after the attack: work on a copy.")


def check_uses_the_first_probe_of_the_round_alone(attack: ExtractionAttack) -> None:
    """It uses nothing after the first probe of its round.

    Later probes show one model under fresh perturbations; later rounds are not there yet when the model is stolen.
    """
    world = trial_world("mp-dp")
    known = knowledge(world, "client")
    view, task = known.view, ExtractionTask("first", 0)
    past = tuple(o for o in view.observations if o.context.kind != "final" and o.context.round == 0)
    cut = replace(view, observations=tuple(o for o in past if not o.context.probe))
    assert 0 < len(cut.observations) < len(past) < len(view.observations)
    if not same(attack.extract(known, task), attack.extract(replace(known, view=cut), task)):
        raise Broken("The model of round 0 is another one when later probes and rounds are not in the view.")
