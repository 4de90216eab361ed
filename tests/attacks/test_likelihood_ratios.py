"""The formulas of lira and rmia, against hand computations and scipy on small matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leakboard.attacks.membership.building_blocks.signals import confidence_logit, log_confidence, probabilities
from leakboard.attacks.membership.lira import Lira, law
from leakboard.attacks.membership.rmia import Rmia, dominance, log_rise
from leakboard.contract.worlds import make_world
from leakboard.core.errors import UserError
from leakboard.core.registry import create
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.task import Task, task_of

PUBLIC = make_world(FedSGD(), model_parameters={"hidden": [4]}, rounds=1).outcome.public
LABELS = torch.tensor([0, 2, 1])


def task(loss: str) -> Task:
    training = PUBLIC.training.model_copy(update={"loss": loss})
    return task_of(PUBLIC.model_copy(update={"training": training}))


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


seeds = st.integers(0, 10_000)


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_confidence_under_cross_entropy_is_the_softmax_at_the_label(seed: int) -> None:
    logits = 3 * drawn(seed, 2, 3, 10)
    p = logits.softmax(-1).gather(-1, LABELS.expand(2, 3)[..., None]).squeeze(-1)
    torch.testing.assert_close(confidence_logit(task("ce"), logits, LABELS), (p / (1 - p)).log())
    torch.testing.assert_close(log_confidence(task("ce"), logits, LABELS), p.log())
    torch.testing.assert_close(probabilities(task("ce"), logits), logits.softmax(-1))


def test_a_sure_prediction_does_not_saturate() -> None:
    logits = torch.zeros(1, 1, 10)
    logits[..., 3] = 100.0
    assert confidence_logit(task("ce"), logits, torch.tensor([3])).item() == pytest.approx(100 - math.log(9))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_confidence_under_squared_error_is_the_normal_likelihood_over_its_largest_value(seed: int) -> None:
    logits = drawn(seed, 3, 10)
    target = torch.nn.functional.one_hot(LABELS, 10)
    densities = np.asarray(stats.norm.logpdf(logits.numpy(), loc=target.numpy()))
    p = np.exp(densities.sum(1) - 10 * stats.norm.logpdf(0))
    torch.testing.assert_close(log_confidence(task("mse"), logits, LABELS), torch.from_numpy(np.log(p)))
    expected = torch.from_numpy(np.log(p / (1 - p)))
    torch.testing.assert_close(confidence_logit(task("mse"), logits, LABELS), expected)


@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_broken_outputs_give_finite_signals(loss: str) -> None:
    broken = torch.tensor([[torch.nan] * 10, [torch.inf] * 10, [1e38] * 10])
    for signal in (confidence_logit, log_confidence):
        assert signal(task(loss), broken, LABELS).isfinite().all()
    assert probabilities(task(loss), broken).isfinite().all()


def test_outputs_of_squared_error_are_probabilities_as_they_are() -> None:
    logits = torch.tensor([[0.6, 0.2, -0.1, *[0.0] * 7]])
    expected = torch.tensor([[0.75, 0.25, *[0.0] * 8]], dtype=torch.float64)
    torch.testing.assert_close(probabilities(task("mse"), logits), expected, atol=1e-7, rtol=0)


def membership(seed: int, models: int, records: int) -> Tensor:
    """Half of the models for every record."""
    return drawn(seed + 1, models, records).argsort(0) < models // 2


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_lira_is_scipys_likelihood_ratio(seed: int) -> None:
    seen, shadows, member = drawn(seed, 5), drawn(seed + 2, 6, 5), membership(seed, 6, 5)
    online = Lira(mode="online", variance="record").score(seen, shadows, member)
    offline = Lira(mode="offline", variance="record").score(seen, shadows, member)
    for a in range(5):
        inside, outside = shadows[member[:, a], a].numpy(), shadows[~member[:, a], a].numpy()
        top = stats.norm.logpdf(seen[a], inside.mean(), inside.std(ddof=1))
        bottom = stats.norm.logpdf(seen[a], outside.mean(), outside.std(ddof=1))
        assert online[a].item() == pytest.approx(top - bottom)
        one_sided = stats.norm.cdf(seen[a], outside.mean(), outside.std(ddof=1))
        assert stats.norm.cdf(offline[a].item()) == pytest.approx(one_sided)


def test_the_global_spread_by_hand() -> None:
    shadows = torch.tensor([[1.0, 5.0, 7.0], [3.0, 9.0, 0.0], [50.0, 60.0, 70.0]], dtype=torch.float64)
    chosen = torch.tensor([[True, True, True], [True, True, False], [False, False, False]])
    mean, spread = law(shadows, chosen, "global")
    assert mean.tolist() == [2.0, 7.0, 7.0]
    # residuals 1, 1 and 2, 2; one degree of freedom from each of the first two records, none from the third
    assert spread.tolist() == pytest.approx([math.sqrt((1 + 1 + 4 + 4) / 2)] * 3)
    _, alone = law(shadows[:1], chosen[:1], "global")
    assert alone.tolist() == [1.0] * 3


def test_offline_lira_is_one_sided() -> None:
    """A record on which the target is unusually unsure is no member; the reference code's logpdf calls it one."""
    shadows = drawn(0, 8, 3)
    seen = torch.tensor([-50.0, 0.0, 50.0], dtype=torch.float64)
    scores = Lira(mode="offline").score(seen, shadows, torch.zeros(8, 3, dtype=torch.bool))
    assert scores[0] < scores[1] < scores[2]


def test_lira_without_a_model_that_did_not_learn_the_record_says_so() -> None:
    member = torch.tensor([[True, False], [True, False]])
    scores = Lira(mode="offline").score(torch.zeros(2), torch.randn(2, 2), member)
    assert scores.isnan().tolist() == [True, False]


def by_hand(p: Tensor, refs: Tensor, member: Tensor, a: float | None) -> Tensor:
    """p(x | theta) / p(x), record by record, without logarithms."""
    found = []
    for x in range(len(p)):
        outside = refs[~member[:, x], x].mean()
        marginal = (refs[member[:, x], x].mean() + outside) / 2 if a is None else ((1 + a) * outside + (1 - a)) / 2
        found.append(p[x] / marginal)
    return torch.stack(found)


@given(seeds, st.sampled_from([None, 0.0, 0.3, 1.0]), st.floats(0.5, 2.0))
@settings(max_examples=40, deadline=None)
def test_rmia_is_the_share_of_pairs_that_the_record_wins(seed: int, a: float | None, gamma: float) -> None:
    p, refs, member = drawn(seed, 9).sigmoid(), drawn(seed + 2, 4, 9).sigmoid(), membership(seed, 4, 9)
    ratio = by_hand(p, refs, member, a)
    raised = log_rise(p.log(), refs.log(), member, a)
    torch.testing.assert_close(raised, ratio.log())
    scores = dominance(raised, raised[4:], gamma)
    expected = (ratio[:, None] / ratio[None, 4:] >= gamma * (1 - 1e-12)).double().mean(1)
    slack = (ratio[:, None] / ratio[None, 4:] / gamma - 1).abs().min()  # ties within rounding may fall either way
    if slack > 1e-9:
        torch.testing.assert_close(scores, expected)


def test_rmia_by_hand() -> None:
    # one reference; x0, x1 were not learned by it, z0 was, z1 and z2 were not
    p = torch.tensor([0.8, 0.3, 0.5, 0.5, 0.1], dtype=torch.float64)
    refs = torch.tensor([[0.4, 0.6, 0.9, 0.5, 0.5]], dtype=torch.float64)
    member = torch.tensor([[False, False, True, False, False]])
    raised = log_rise(p.log(), refs.log(), member, 1.0)  # a = 1: p(x) = p_out(x)
    assert raised.exp()[:2].tolist() == pytest.approx([2.0, 0.5])
    assert raised.isnan().tolist() == [False, False, True, False, False]
    z = raised[2:]
    assert dominance(raised, z[z.isfinite()], 1.0)[:2].tolist() == [1.0, 0.5]  # 2 > 1, 2 > 0.2; 0.5 < 1, 0.5 > 0.2
    assert dominance(raised, z[z.isfinite()], 3.0)[:2].tolist() == [0.5, 0.0]


def test_references_whose_likelihood_vanishes_do_not_divide_by_zero() -> None:
    raised = log_rise(
        torch.tensor([-3e38, 0.0]), torch.full((2, 2), -3e38), torch.tensor([[True] * 2, [False] * 2]), None
    )
    assert raised.isfinite().all()


def test_online_rmia_needs_pairs() -> None:
    assert Rmia(mode="offline", references=1).references == 1
    with pytest.raises(UserError, match="even number"):
        create("attack", "rmia", {"mode": "online", "references": 3})
