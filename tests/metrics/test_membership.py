"""ASR, AUC, TPR at FPR and the best threshold against scikit-learn and torchmetrics."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from leakboard.metrics.asr import Asr, asr
from leakboard.metrics.auc import Auc, auc
from leakboard.metrics.base import MembershipMetric
from leakboard.metrics.best_asr import BestThresholdAsr, best_threshold_asr
from leakboard.metrics.tpr_at_fpr import TprAt01, TprAt1, tpr_at_fpr
from tests.metrics.helpers import membership

ALL: list[MembershipMetric] = [Asr(), Auc(), TprAt1(), TprAt01(), BestThresholdAsr()]
#: few distinct scores, so that most are tied
records = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60).filter(
    lambda rows: len({member for _, member in rows}) == 2
)
quick = settings(max_examples=60, deadline=None)


def tensors(rows: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([float(s) for s, _ in rows]), torch.tensor([m for _, m in rows])


@quick
@given(records)
def test_asr_against_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    scores, members = tensors(rows)
    assert asr(scores > 0, members) == pytest.approx(balanced_accuracy_score(members, scores > 0))


@quick
@given(records)
def test_auc_against_scikit_learn_and_torchmetrics(rows: list[tuple[int, bool]]) -> None:
    scores, members = tensors(rows)
    assert auc(scores, members) == pytest.approx(roc_auc_score(members, scores))
    probabilities = torch.sigmoid(scores)  # else torchmetrics applies it where a score leaves [0, 1]
    assert auc(scores, members) == pytest.approx(float(binary_auroc(probabilities, members.long())), abs=1e-6)


@quick
@given(records, st.sampled_from([0.0, 0.01, 0.1, 0.25, 1.0]))
def test_tpr_and_best_threshold_against_scikit_learn(rows: list[tuple[int, bool]], level: float) -> None:
    scores, members = tensors(rows)
    fpr, tpr, _ = roc_curve(members, scores, drop_intermediate=False)
    assert tpr_at_fpr(scores, members, level) == pytest.approx(tpr[fpr <= level].max())
    assert best_threshold_asr(scores, members) == pytest.approx(((1 + tpr - fpr) / 2).max())


def test_continuous_scores_against_scikit_learn() -> None:
    scores, members = torch.randn(3000), torch.rand(3000) < 0.4
    scores = scores + members * 0.7
    fpr, tpr, _ = roc_curve(members, scores, drop_intermediate=False)
    assert auc(scores, members) == pytest.approx(roc_auc_score(members, scores))
    for level in (0.01, 0.001):
        assert tpr_at_fpr(scores, members, level) == tpr[fpr <= level].max()


def test_all_scores_tied_is_a_coin() -> None:
    scores, members = torch.ones(400), torch.arange(400) < 200
    assert auc(scores, members) == 0.5
    assert best_threshold_asr(scores, members) == 0.5
    assert tpr_at_fpr(scores, members, 0.01) == 0.0  # not 1 %: tied records pass together or not at all
    assert asr(scores > 0, members) == 0.5


def test_the_level_is_met_exactly() -> None:
    # 1 of 100 non-members over all members but one: FPR 1/100 is allowed at 1 %, 2/100 is not
    members = torch.cat([torch.ones(4, dtype=torch.bool), torch.zeros(100, dtype=torch.bool)])
    scores = torch.cat([torch.tensor([9.0, 7.0, 7.0, 5.0]), torch.zeros(100)])
    scores[4], scores[5] = 8.0, 6.0
    assert tpr_at_fpr(scores, members, 0.01) == 0.75
    scores[5] = 7.0  # tied with two members: taking them takes the second false positive
    assert tpr_at_fpr(scores, members, 0.01) == 0.25


def test_higher_means_member() -> None:
    members = torch.arange(200) < 100
    assert auc(members.double(), members) == 1.0
    assert auc(-members.double(), members) == 0.0
    assert best_threshold_asr(-members.double(), members) == 0.5  # the direction is the attack's, never ours


@pytest.mark.parametrize(("metric", "needed"), [(TprAt1(), 100), (TprAt01(), 1000)])
def test_too_few_nonmembers_is_none_with_the_reason(metric: MembershipMetric, needed: int) -> None:
    def at(nonmembers: int) -> float | None:
        score = metric.score(membership([1.0] * 5 + [0.0] * nonmembers, [True] * 5 + [False] * nonmembers))
        assert (score.value is None) == (f"needs {needed}" in score.reason)
        return score.value

    assert at(needed - 1) is None
    assert at(needed) == 1.0


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
@pytest.mark.parametrize("member", [True, False])
def test_one_class_only_is_none_with_the_reason(metric: MembershipMetric, member: bool) -> None:
    score = metric.score(membership([0.1, 0.9] * 600, [member] * 1200))
    assert score.value is None
    assert "one class only" in score.reason


@pytest.mark.parametrize("metric", ALL[1:], ids=lambda m: m.name)
def test_scores_that_are_not_finite_are_none_with_the_reason(metric: MembershipMetric) -> None:
    score = metric.score(membership([math.nan, math.inf] + [0.5] * 2000, [True, False] * 1001))
    assert score.value is None
    assert "2 of 2002 scores are not finite" in score.reason


@pytest.mark.parametrize("function", [auc, best_threshold_asr, lambda s, m: tpr_at_fpr(s, m, 0.1)])
def test_the_pure_functions_refuse(function: Callable[[Tensor, Tensor], float]) -> None:
    members = torch.tensor([True, False])
    with pytest.raises(ValueError, match="finite"):
        function(torch.tensor([math.nan, 1.0]), members)
    with pytest.raises(ValueError, match="one class only"):
        function(torch.ones(2), members | True)
    with pytest.raises(ValueError, match="one bool a record"):
        function(torch.ones(3), members)
    with pytest.raises(ValueError, match="one bool a record"):
        function(torch.ones(2), members.long())


def test_asr_takes_decisions_and_not_scores() -> None:
    with pytest.raises(ValueError, match="must be bool"):
        asr(torch.tensor([0.7, 0.2]), torch.tensor([True, False]))
    score = Asr().score(membership([0.9, 0.1, 0.1], [True, True, False]))
    assert score.value == 0.75
    assert score.details == {"members": 2.0, "nonmembers": 1.0, "tpr": 0.5, "tnr": 1.0}


def test_the_best_threshold_is_biased_up() -> None:
    # the figure that the docstring and DESIGN give for a useless score on 500 + 500
    members = torch.arange(1000) < 500
    found = [best_threshold_asr(torch.randn(1000), members) for _ in range(100)]
    assert np.mean(found) == pytest.approx(0.52, abs=0.004)
