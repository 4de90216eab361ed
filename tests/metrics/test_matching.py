from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import pairwise_distances

from leakboard.metrics.building_blocks.images import sanitise
from leakboard.metrics.matching import match, pairwise_mse
from leakboard.metrics.psnr import psnr
from tests.metrics.helpers import images


def test_a_3_cycle_is_undone_and_not_applied_twice() -> None:
    # a swap is its own inverse and would hide the mistake; a 3-cycle is not
    original = images(3)
    cycle = torch.tensor([1, 2, 0])
    reconstruction = original[cycle]
    order = match(reconstruction, original)
    assert torch.equal(reconstruction[order], original)
    assert not torch.equal(order, cycle)
    assert psnr(reconstruction[order], original).tolist() == [60.0] * 3


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2), st.integers(0, 10**6))
def test_the_assignment_has_the_least_sum(count: int, extra: int, seed: int) -> None:
    original, reconstruction = images(count, 1, 2, seed), images(count + extra, 1, 2, seed + 1) * 2 - 0.5
    order = match(reconstruction, original)
    cost = pairwise_distances(
        original.flatten(1).double().numpy(), reconstruction.clamp(0, 1).flatten(1).double().numpy(), "sqeuclidean"
    )
    best = min(
        sum(cost[i, j] for i, j in enumerate(chosen)) for chosen in itertools.permutations(range(count + extra), count)
    )
    assert sum(cost[i, int(j)] for i, j in enumerate(order)) == pytest.approx(best)
    assert len(set(order.tolist())) == count


def test_pairwise_mse_against_scikit_learn() -> None:
    left, right = images(4), images(5, seed=1)
    expected = pairwise_distances(left.flatten(1).double(), right.flatten(1).double(), "sqeuclidean") / (3 * 16 * 16)
    assert torch.allclose(pairwise_mse(right, left), torch.as_tensor(expected))


def test_originals_are_found_among_the_images_of_an_aggregate() -> None:
    aggregate = images(12)
    assert match(aggregate, aggregate[[7, 2, 10]]).tolist() == [7, 2, 10]


def test_broken_pixels_do_not_break_the_matching() -> None:
    original = images(4)
    reconstruction = original[[3, 0, 1, 2]].clone()
    reconstruction[0] = math.nan
    reconstruction[2, 0, 0, 0] = math.inf
    assert match(reconstruction, original).tolist() == [1, 2, 3, 0]


def test_sanitise_counts_images_and_keeps_the_rest() -> None:
    broken = images(3) * 9
    broken[0, 0, 0, :2] = math.nan
    clean, bad = sanitise(broken)
    assert bad == 1
    assert clean[0, 0, 0, :2].tolist() == [0.5, 0.5]
    assert torch.equal(clean[1:], broken[1:])
    assert math.isnan(float(broken[0, 0, 0, 0]))  # the caller's tensor is untouched
    assert sanitise(clean)[1] == 0


def test_fewer_reconstructions_than_originals_are_refused() -> None:
    with pytest.raises(ValueError, match="for each original"):
        match(images(2), images(3))
    with pytest.raises(ValueError, match="same size"):
        match(images(3, size=8), images(3))
