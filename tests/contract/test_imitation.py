"""The rules about hooks find something: each of these defenses says one thing and does another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import pytest
import torch
from torch import Tensor

from leakboard.contract import Rule, apply
from leakboard.contract import imitation as rules
from leakboard.defenses.base import Defense, Gradient, JointNoise, Noise, Transform, even_noise
from leakboard.defenses.ddp_mf import DdpMf
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.ldp import Ldp
from leakboard.defenses.secagg import SecAgg
from leakboard.federation.party import Party
from leakboard.federation.payload import Payload
from leakboard.federation.settings import Public
from leakboard.federation.transcript import Observation


class TooQuiet(Ldp):
    """Says half of its noise."""

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        laws = super().noise_scale(observation, public)
        return {o: Noise({n: d / 2 for n, d in law.deviation.items()}) for o, law in laws.items()}


class WrongShape(FedSGD):
    """Gives one deviation for a whole tensor."""

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        found = self.read(observation, public).gradients
        return {o: Noise({n: torch.ones(1) for n in g.values}) for o, g in found.items()}


class Nobody(FedSGD):
    """Names noise of somebody whose gradient is not there."""

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        return {"client:9": even_noise({}, 1.0)}


class TooBounded(Ldp):
    """Gaussian noise with a bound."""

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        return {o: Noise(n.deviation, n.deviation) for o, n in super().noise_scale(observation, public).items()}


class Correlated(Ldp):
    """Says that independent noise goes along."""

    def joint_noise(self, observation: Observation, public: Public) -> JointNoise:
        found = super().joint_noise(observation, public)
        count = len(found.laws)
        return JointNoise(found.laws, 0.5 * torch.eye(count) + 0.5 * torch.ones(count, count))


class Mixes(FedSGD):
    """Takes the mean over the gradients that it should treat one by one."""

    def mimic(self, observed: Gradient, public: Public) -> Transform:
        return lambda gradients: {n: v - v.mean(0, keepdim=True) for n, v in gradients.items()}


class Cuts(FedSGD):
    """Lets no derivative through."""

    def mimic_records(self, observed: Gradient, public: Public) -> Transform:
        return lambda gradients: {name: value.detach() for name, value in gradients.items()}


class Draws(FedSGD):
    """Draws in a hook that must not."""

    def mimic(self, observed: Gradient, public: Public) -> Transform:
        return lambda gradients: {n: v + torch.rand_like(v) for n, v in gradients.items()}


class Flattens(FedSGD):
    """Changes the form."""

    def mimic(self, observed: Gradient, public: Public) -> Transform:
        return lambda gradients: {name: value.flatten() for name, value in gradients.items()}


class OtherModel(FedSGD):
    """Rehearses another training."""

    steps: int = 1

    def rehearsal(self) -> Self:
        return self.model_copy(update={"steps": 0})

    def aggregate(self, me: Party) -> None:
        if self.steps:
            super().aggregate(me)


class OtherForm(FedSGD):
    """Deviates by a message that no client expects."""

    extra: bool = False

    def deviate(self) -> Self:
        return self.model_copy(update={"extra": True})

    def distribute(self, me: Party) -> None:
        more = {"more": torch.ones(1)} if self.extra else {}
        me.broadcast(me.participants, "model", {"model": me.state["model"], **more})


class Uncounted(SecAgg):
    """Calls a mean over clients a single update."""

    def open_updates(self, observation: Observation, public: Public) -> Mapping[str, tuple[Payload, int]]:
        return {owner: (parts, 1) for owner, (parts, _) in super().open_updates(observation, public).items()}


class Louder(DdpMf):
    """Says twice the noise that it adds."""

    def noise_over_rounds(self, public: Public, batch: int) -> Tensor | None:
        found = super().noise_over_rounds(public, batch)
        return None if found is None else 2 * found


@pytest.mark.parametrize(
    ("defense", "rule", "sentence"),
    [
        (TooQuiet(), rules.check_noise_scale_agrees_with_drawn_noise, "is 2.0"),
        (WrongShape(), rules.check_noise_scale_agrees_with_drawn_noise, "must have the shape (8, 1024)"),
        (Nobody(), rules.check_noise_scale_agrees_with_drawn_noise, "of whom `read` finds no gradient"),
        (TooBounded(), rules.check_noise_scale_agrees_with_drawn_noise, "larger than its `bound`"),
        (Correlated(), rules.check_joint_noise_agrees_with_drawn_noise, "it says 0.50"),
        (Louder(), rules.check_noise_over_rounds_agrees_with_noise_scale, "`noise_scale` says"),
        (Mixes(), rules.check_mimic_is_a_function_of_gradients, "each must be treated on its own"),
        (Cuts(), rules.check_mimic_records_is_a_function_of_gradients, "No derivative goes through it"),
        (Draws(), rules.check_mimic_is_a_function_of_gradients, "two different values"),
        (Flattens(), rules.check_mimic_is_a_function_of_gradients, "must keep the shape (3, 8, 1024)"),
        (OtherModel(), rules.check_a_rehearsal_trains_the_same_model, "of the trained model differs"),
        (OtherForm(), rules.check_a_deviating_server_keeps_the_form, "a client gets messages of another form"),
        (Uncounted(), rules.check_open_updates_agree_with_the_reading, "it has 'aggregate' of 1 clients"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Defense) else None,
)
def test_a_hook_that_says_something_else_is_found(defense: Defense, rule: Rule, sentence: str) -> None:
    result = apply(rule, defense)
    assert result.outcome == "broken"
    assert sentence in result.reason


def test_a_defense_without_hooks_is_asked_for_none() -> None:
    names = [name for name in vars(rules) if name.startswith("check_") and "simulate" not in name]
    results = [apply(getattr(rules, name), FedSGD()) for name in names]
    assert len(results) == 8
    assert {result.outcome for result in results} == {"not applicable"}
