"""A server that makes one record overflow: certain to tell two worlds apart as it was, blind as it is (issue 17, 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import AuditAnswer, AuditAttack, AuditTask, Knowledge
from leakboard.contract.poison import overflowing, starting_from
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats, Integers
from leakboard.defenses.hybridalpha import HybridAlpha
from leakboard.defenses.ldp import Ldp
from leakboard.defenses.mp_dp_plus import MpDpPlus
from leakboard.defenses.perturbation.client import part_norms, train
from leakboard.defenses.tp_smc import TpSmc
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, VICTIM, Public, client_name
from leakboard.federation.task import task_of
from leakboard.federation.view import parse_threat
from leakboard.leaderboard.goals.questions.audit_game import Game, Trials
from leakboard.leaderboard.ranking.intervals import rate_difference
from leakboard.metrics.epsilon_lower import epsilon_lower
from tests.defenses.makings import images_of, public_of
from tests.defenses.small import CLASSES, KEYS, SHAPE

#: enough to refute epsilon = 3 where no trial is wrong
TRIALS = 360
#: of the share of untouched values; that of codes of 16 bits is about 1e-4 by chance
THRESHOLD = 0.1


class UntouchedValues(AuditAttack):
    """Counts the values of the victim's gradient, or the sum, that no noise touched: exactly zero, or no numbers."""

    name: ClassVar[str] = "untouched-values"
    threats: ClassVar[tuple[str, ...]] = ("server:active",)

    def distinguish(self, knowledge: Knowledge, task: AuditTask) -> AuditAnswer:
        """The share of such values."""
        scores = []
        for trial in task.trials:
            opened = trial.states[SERVER].get("aggregate")
            sent = [m.payload for m in trial.messages if m.kind == "update" and m.sender == VICTIM]
            body = sent[0] if opened is None else opened["update"]
            values = torch.cat([value.double().flatten() for value in body["gradient"].values()])
            scores.append(float(((values == 0) | ~values.isfinite()).double().mean()))
        return AuditAnswer(torch.tensor(scores, dtype=torch.float64))


# --- the defenses as they were: nothing is replaced before the noise, codes of no numbers are zero ----------------


@dataclass(frozen=True)
class OldCodec(FixedPoint):
    """Not-a-number becomes zero."""

    def encode(self, values: Floats) -> Integers:
        clipped = np.nan_to_num(np.clip(values, -self.bound, self.bound), nan=0.0)
        return np.rint(clipped / self.step).astype(np.int64) + self.offset


class OldClipped(Clipped):
    """Clips by norms that may be no numbers, and replaces nothing."""

    def clipped_gradient(self, me: Party) -> Parameters:
        assert me.batch is not None
        assert self.clip is not None
        task, model = task_of(me.public), me.expect("model")["model"]
        norms = loss_norms(task, model, me.batch.images, me.batch.labels)
        factors = (self.clip / norms.clamp(min=1e-12)).clamp(max=1.0)
        return task.gradient(model, me.batch.images, me.batch.labels, factors)[0]


class OldLdp(OldClipped, Ldp):
    """ldp as it was."""


class OldTpSmc(OldClipped, TpSmc):
    """tp-smc as it was."""

    def codec(self, public: Public, batch: int) -> FixedPoint:
        now = super().codec(public, batch)
        return OldCodec(now.bits, now.bound)


class OldHybridAlpha(OldClipped, HybridAlpha):
    """hybridalpha as it was."""

    def codec(self, public: Public, batch: int) -> FixedPoint:
        now = super().codec(public, batch)
        return OldCodec(now.bits, now.bound)


class OldMpDpPlus(MpDpPlus):
    """mp-dp+ as it was."""

    def local_parts(self, me: Party) -> tuple[Parameters, Parameters, Parameters]:
        given = self.inputs(me)
        factors = torch.ones(len(given[2]))
        for norms, bound in zip(part_norms(self.expanded(me.public), *given), self.bounds(), strict=True):
            factors = torch.minimum(factors, (bound / norms.clamp(min=1e-12)).float())
        return train(self.expanded(me.public), *given, factors)

    def codecs(self, public: Public, batch: int) -> dict[str, FixedPoint]:
        return {part: OldCodec(now.bits, now.bound) for part, now in super().codecs(public, batch).items()}


# --- the game ----------------------------------------------------------------------------------------------------


def played(defense: Defense) -> tuple[Tensor, Tensor]:
    """Scores (trials,) of the attack, and which trials were world 1. Every client has one record.

    The server knows all records but which of the two is the victim's, as differential privacy assumes. Its weights
    overflow for world 1's record, and for everybody else's, so that the others' noise is gone as well.
    """
    public = public_of(parameters={"hidden": [4]}, shape=SHAPE, classes=CLASSES, defense=defense, shard=1, batch_size=1)
    data = LabelledImages(images_of(4, *SHAPE).float(), torch.tensor([0, 1, 2, 0]))
    worlds = data.select(torch.tensor([0])), data.select(torch.tensor([1]))
    shards = {client_name(i): data.select(torch.tensor([max(1, i + 1)])) for i in range(3)}
    active = starting_from(defense, overflowing(public, data, torch.arange(4) > 0))
    bits = torch.rand(TRIALS, generator=torch.Generator().manual_seed(0)) < 0.5
    threat = parse_threat("server:active", 3)
    trials = Trials(active, public, shards, None, 0, worlds=worlds, bits=bits, threat=threat)
    trials.prepare()
    game = Game(trials, worlds, torch.arange(2))
    attack = UntouchedValues(trials=TRIALS)
    return torch.cat([attack.distinguish(Knowledge(t.view, active, data, 0), t).scores for t in game.portions()]), bits


PAIRS: list[tuple[Defense, Defense]] = [
    (OldLdp(), Ldp()),
    (OldTpSmc.model_validate(KEYS["tp-smc"]), TpSmc.model_validate(KEYS["tp-smc"])),
    (OldHybridAlpha(sample_values=0), HybridAlpha(sample_values=0)),
    (OldMpDpPlus(), MpDpPlus()),
]


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[new.name for _, new in PAIRS])
def test_overflowing_weights_told_two_worlds_apart_for_certain_and_do_so_no_more(old: Defense, new: Defense) -> None:
    """The interval of the advantage holds with 99.9 %; that of a blind attack leaves out zero in 0.1 % of all keys."""
    scores, bits = played(old)
    assert torch.equal(scores > THRESHOLD, bits)
    bound = epsilon_lower(scores, bits)
    assert bound.epsilon == bound.ceiling > 3, "the claimed epsilon was refuted"

    scores, bits = played(new)
    said = scores > THRESHOLD
    right, wrong = int(said[bits].sum()), int(said[~bits].sum())
    assert rate_difference(right, int(bits.sum()), wrong, int((~bits).sum()), confidence=0.999).contains(0)
    assert epsilon_lower(scores, bits).epsilon < 1
