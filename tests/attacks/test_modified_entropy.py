"""The modified entropy against its definition, and the thresholds of every class."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.attacks.membership.building_blocks.shadows import ShadowPool, Signals
from leakboard.attacks.membership.modified_entropy import class_thresholds, modified_entropy
from leakboard.datasets.base import LabelledImages


@given(st.integers(0, 10_000), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_it_is_the_papers_formula(seed: int, label: int) -> None:
    logits = torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p = logits.softmax(0).tolist()
    expected = -(1 - p[label]) * math.log(p[label])
    expected -= sum(p[i] * math.log(1 - p[i]) for i in range(4) if i != label)
    found = modified_entropy(logits.softmax(0)[None], torch.tensor([label]))
    assert found.item() == pytest.approx(expected)


def test_sure_and_right_is_least_and_sure_and_wrong_is_most() -> None:
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    found = modified_entropy(p, torch.zeros(3, dtype=torch.int64))
    assert found[0] == 0
    assert found[0] < found[1] < found[2]
    assert found.isfinite().all()


def test_every_class_has_its_own_threshold() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2])
    records = LabelledImages(torch.zeros(5, 1, 2, 2), labels)
    member = torch.tensor([[True, False, True, False, True]])
    pool = ShadowPool(records, slice(0, 0), slice(0, 0), slice(0, 5), False, member, Signals({}, {}))
    cuts = class_thresholds(pool, torch.tensor([[2.0, 0.0, 12.0, 10.0, 30.0]]), 4)
    assert cuts[:2].tolist() == [1.0, 11.0]
    # of class 2 only a member is known, of class 3 nothing: the cut of all, here above every non-member
    assert cuts[2] == cuts[3]
    assert 10 < cuts[2] < 30
