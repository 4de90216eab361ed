"""Rules for every attack: it answers in the right form, repeats itself, leaves its view alone, keeps its promises."""

from __future__ import annotations

import torch

from leakboard.attacks.base import STOPPED, Attack
from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.trials import (
    CONTROL,
    LONG_AGO,
    answer_to,
    checked_answer,
    fingerprint,
    first_threat,
    home_of,
    knowledge,
    run,
    same,
    task_for,
    threats_of,
    trial_world,
)
from leakboard.core.errors import Unsupported
from leakboard.federation.view import THREATS


def check_names_known_threats(attack: Attack) -> None:
    """It names the threats that it makes sense under, and `can_adapt` is True where `adaptive` is."""
    known = {threat.partition(":m")[0] for threat in THREATS}
    odd = sorted(set(attack.threats) - known)
    if odd or not attack.threats:
        raise Broken(f"`threats` must be some of {', '.join(sorted(known))}; given: {', '.join(odd) or 'none'}.")
    if attack.adaptive and not attack.can_adapt:
        raise Broken("`adaptive` is True and `can_adapt` is False: an attack that adapts says so in `can_adapt`.")


def check_answers_in_the_right_form(attack: Attack) -> None:
    """It answers its task with the right number of finite values in the right shapes."""
    try:
        world = home_of(attack)
    except NotApplicable as nowhere:
        raise Broken(str(nowhere).capitalize()) from None
    checked_answer(attack, world)


def check_leaves_its_view_alone(attack: Attack) -> None:
    """It changes nothing in its view."""
    world = home_of(attack)
    known = knowledge(world, first_threat(attack))
    before = fingerprint(known)
    run(attack, known, task_for(attack, world))
    if fingerprint(known) != before:
        raise Broken("A tensor of the view has other values after the attack: work on a copy.")


def check_draws_from_its_own_seed_alone(attack: Attack) -> None:
    """It gives the same answer for the same seed, whatever the global random state of torch is."""
    world = home_of(attack)
    torch.manual_seed(1)
    first = answer_to(attack, world)
    torch.manual_seed(2)
    torch.rand(100)
    if not same(first, answer_to(attack, world)):
        raise Broken("Two answers with one seed differ: draw from `knowledge.generator()`.")


def check_works_under_every_threat_that_it_names(attack: Attack) -> None:
    """It answers under every threat that it names."""
    threats = threats_of(attack)
    if not threats:
        raise NotApplicable("it names the server that deviates alone, and the control has no such strategy.")
    world = home_of(attack)
    for threat in threats:
        if not attack.allows(threat):
            raise Broken(f"`allows` refuses the threat '{threat}', which it names.")
        try:
            checked_answer(attack, world, threat)
        except Unsupported as refusal:
            raise Broken(f"It names the threat '{threat}' and refuses it: {refusal}.") from None


def check_a_refusal_names_the_defense(attack: Attack) -> None:
    """An attack on one kind of scheme refuses others by `Unsupported`, with the name of the defense."""
    if home_of(attack).defense.name == CONTROL:
        raise NotApplicable("it works without a defense too.")
    try:
        answer_to(attack, trial_world(CONTROL))
    except Unsupported as refusal:
        if f"'{CONTROL}'" not in str(refusal):
            raise Broken(f"The refusal does not name the defense: {refusal}.") from None


def check_says_when_time_ended_its_work(attack: Attack) -> None:
    """Without time it still answers; where the answer is another one, a flag begins with `STOPPED`."""
    world = home_of(attack)
    torch.manual_seed(1)
    late = checked_answer(attack, world, deadline=LONG_AGO)
    told = any(flag.startswith(STOPPED) for flag in late.flags)
    torch.manual_seed(1)  # whether it repeats itself is another rule
    if not told and not same(late, answer_to(attack, world)):
        raise Broken("Without time the answer is another one, and no flag begins with `STOPPED`.")
