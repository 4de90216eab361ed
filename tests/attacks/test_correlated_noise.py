"""Noise that is correlated over rounds: found out where it is used twice, of no use where it is calibrated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipTask
from leakboard.attacks.membership.building_blocks.batch import BatchMembership
from leakboard.attacks.membership.building_blocks.noisy_means import combinations, estimate
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.correlated_noise import CorrelatedNoise
from leakboard.attacks.membership.gradient_membership import GradientMembership
from leakboard.attacks.membership.update_inference import UpdateInference
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense
from leakboard.defenses.ddp_mf import DdpMf
from leakboard.defenses.mf import Mf
from leakboard.defenses.noise.correlated import Floats
from leakboard.federation.party import Party
from leakboard.federation.settings import VICTIM, Dropout, ObservedRounds, Public
from leakboard.metrics.auc import auc
from tests.attacks.test_batch_membership import others
from tests.defenses.makings import Run, create
from tests.defenses.small import chi_square_fits, small_run

#: 6 records of each of 2 clients in a round, 4 rounds per epoch, and hardly a step
SETTING: dict[str, Any] = {
    "clients": 2,
    "shape": (1, 8, 8),
    "hidden": (40,),
    "shard": 24,
    "batch_size": 6,
    "rounds": 8,
    "momentum": 0.5,
    "learning_rate": 1e-6,
    "observe": ObservedRounds(rounds=("first", "middle", "last"), targets=1),
    "record_all": False,
}


class _Reused:
    """The noise of the first round in every round: a mistake that no single round shows."""

    def next_noise(self, me: Party, purpose: str, size: int) -> Floats:
        if "noise" not in me.state:
            me.state["noise"] = [torch.from_numpy(me.stream(purpose).normal(size))]
        found: Floats = me.state["noise"][0].numpy()
        return found

    def noise_over_rounds(self, public: Public, batch: int) -> Tensor | None:
        assert isinstance(self, DdpMf | Mf)
        return torch.full((public.total_rounds + 1, 1), self.mean_sigma(public, batch), dtype=torch.float64)


class ReusedShares(_Reused, DdpMf):
    """ddp-mf with the same shares of noise in every round."""


class ReusedCentral(_Reused, Mf):
    """mf with the same noise in every round."""


def knowledge_of(made: Run, threat: str) -> Knowledge:
    return Knowledge(made.view(threat), made.defense, others(60, made.public.shape, made.public.classes, seed=7), 5)


def asked(attack: BatchMembership, made: Run, threat: str = "server") -> tuple[MembershipAnswer, Tensor]:
    """The answer about the victim's batch of the last round, 6 records, and 24 others; and the truth."""
    last = made.public.total_rounds - 1
    batch = made.shards[VICTIM].select(made.outcome.batches[last])
    pool = joined(batch, others(24, made.public.shape))
    answer = attack.infer(knowledge_of(made, threat), MembershipTask(pool, round_index=last))
    return answer, torch.arange(len(pool)) < len(batch)


def mean_auc(attack: BatchMembership, defense: Defense, threat: str = "server", seeds: int = 4) -> float:
    """Over several runs; a coin has a standard error of 0.07."""
    answers = [asked(attack, small_run(defense, seed=seed, **SETTING), threat) for seed in range(seeds)]
    return sum(auc(answer.scores, truth) for answer, truth in answers) / seeds


@pytest.mark.parametrize(("name", "threat"), [("ddp-mf", "server"), ("mf", "client")])
def test_what_the_view_says_has_the_noise_that_is_said(name: str, threat: str) -> None:
    """Noise alone, which is a run minus one without noise: white with deviation 1 by its own covariance."""
    noisy, bare = (small_run(create(name, noise=on, band=3), **SETTING) for on in (True, False))
    seen = list(combinations(knowledge_of(noisy, threat)))
    clean = list(combinations(Knowledge(bare.view(threat), noisy.defense, others(9), 5)))
    added = torch.stack([one.values - two.values for one, two in zip(seen, clean, strict=True)])
    mixing = torch.stack([one.noise for one in seen])
    sizes, axes = torch.linalg.eigh(mixing @ mixing.T)
    kept = sizes > 1e-9 * sizes[-1]  # the first step is the first sum again
    white = (axes[:, kept].T @ added) / sizes[kept, None].sqrt()
    assert len(seen) == {"server": 4 + 5, "client": 5}[threat]  # three sums and a probe; steps between six models
    assert chi_square_fits(float(white.square().sum()), white.numel(), 1e-6)


def test_the_estimate_has_the_error_that_it_says_and_less_than_the_sum_alone() -> None:
    made, bare = (small_run(create("ddp-mf", noise=on, band=4), **SETTING) for on in (True, False))
    seen = list(combinations(knowledge_of(made, "server")))
    clean = list(combinations(Knowledge(bare.view("server"), made.defense, others(9), 5)))
    found, left, plain = estimate(seen, 7, 0.0)
    true, _, _ = estimate(clean, 7, 0.0)
    assert chi_square_fits(float(((found - true) / left).square().sum()), len(found), 1e-6)
    assert left < 0.95 * plain


@pytest.mark.parametrize(
    ("made", "threat", "plain"),
    [(ReusedShares(band=4), "server", GradientMembership()), (ReusedCentral(band=4), "client", UpdateInference())],
)
def test_noise_that_is_used_twice_is_taken_off(made: Defense, threat: str, plain: BatchMembership) -> None:
    """One round alone hides the batch."""
    assert mean_auc(CorrelatedNoise(), made, threat) > 0.8
    assert mean_auc(plain, made, threat) < 0.7


@pytest.mark.parametrize(("name", "threat"), [("ddp-mf", "server"), ("mf", "client")])
def test_calibrated_noise_gives_nothing_away(name: str, threat: str) -> None:
    assert abs(mean_auc(CorrelatedNoise(), create(name, band=4, epsilon=0.5), threat) - 0.5) < 3.3 * 0.07


def test_noise_that_is_too_small_gives_the_batch_away() -> None:
    assert mean_auc(CorrelatedNoise(), create("ddp-mf", band=4, epsilon=1e5)) > 0.8


def test_the_record_says_how_much_noise_was_taken_off() -> None:
    made = small_run(create("ddp-mf", band=4), **SETTING)
    answer, _ = asked(CorrelatedNoise(), made)
    assert answer.flags == ("by ridge regression of the mean with less noise",)
    assert 0.3 < answer.diagnostics["noise_over_plain"] < 1


@pytest.mark.parametrize(
    ("defense", "training", "reason"),
    [
        (create("ddp"), {}, "'ddp' is independent from round to round"),
        (create("ddp-mf", noise=False), {}, "independent from round to round"),
        (create("mf"), {"weight_decay": 0.1}, "weight decay"),
        (create("mf"), {"dropout": 0.1}, "missing clients"),
        (create("mf"), {"dropouts": (Dropout(client=1, round=0, step="update"),)}, "missing clients"),  # asked: round 1
    ],
)
def test_what_it_cannot_do_is_said(defense: Defense, training: dict[str, Any], reason: str) -> None:
    made = small_run(defense, **{**SETTING, "rounds": 2, **training})
    with pytest.raises(Unsupported, match=reason):
        asked(CorrelatedNoise(), made)
