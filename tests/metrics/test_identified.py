from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from leakboard.metrics.identified import NO_DECOYS, Identified, identified
from tests.metrics.helpers import images, truth


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 3))
def test_identified_against_scikit_learn(seed: int, noise: float) -> None:
    original, decoys = images(5, 1, 3, seed), images(40, 1, 3, seed + 1)
    reconstruction = original + noise * (images(5, 1, 3, seed + 2) - 0.5)
    hits = identified(reconstruction, original, decoys)
    for i in range(5):
        candidates = torch.cat([original[i : i + 1], decoys]).flatten(1).double().numpy()
        query = reconstruction[i : i + 1].clamp(0, 1).flatten(1).double().numpy()
        nearest = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(candidates).kneighbors(query)[1]
        assert bool(hits[i]) == (nearest[0, 0] == 0)


def test_a_tie_counts_against_the_attack() -> None:
    original, decoy = torch.full((1, 1, 4, 4), 0.25), torch.full((1, 1, 4, 4), 0.75)
    assert identified(torch.full_like(original, 0.5), original, decoy).tolist() == [0.0]
    assert identified(torch.full_like(original, 0.49), original, decoy).tolist() == [1.0]


def test_a_tie_of_rounded_sums_counts_against_too() -> None:
    # the decoy differs from the reconstruction by the same numbers, mirrored: equal only if summed in one order.
    # Steps of 2^-40 keep 0.5 + step and 0.5 - step exact while their squares are rounded
    step = torch.floor(images(1, 3, 16).double() * math.pi * 2**36) / 2**40
    grey = torch.full_like(step, 0.5)
    assert identified(grey, grey + step, grey - step).tolist() == [0.0]


def test_copies_of_the_original_are_no_decoys() -> None:
    original = images(2)
    decoys = torch.cat([original[:1], original[:1] + 1e-8, images(7, seed=3)]).clamp(0, 1)
    score = Identified().score(truth(original, original, decoys))
    assert score.per_item == (1.0, 1.0)
    assert score.details["chance"] == pytest.approx((1 / 8 + 1 / 10) / 2)
    assert score.details["decoys"] == 9


def test_a_perfect_a_swapped_and_a_broken_reconstruction() -> None:
    original, decoys = images(3), images(20, seed=4)
    reconstruction = torch.stack([original[0], decoys[7], torch.full_like(original[2], math.nan)])
    score = Identified().score(truth(reconstruction, original, decoys))
    assert score.per_item[:2] == (1.0, 0.0)
    assert score.details["non_finite_images"] == 1
    assert score.details["chance"] == pytest.approx(1 / 21)


def test_grey_identifies_nobody_beyond_chance() -> None:
    original, decoys = images(50), images(99, seed=4)
    score = Identified().score(truth(torch.full_like(original, 0.5), original, decoys))
    assert score.value is not None
    assert score.value <= 0.1


@pytest.mark.parametrize("decoys", [None, images(0), images(1)])
def test_without_decoys_there_is_no_identification(decoys: torch.Tensor | None) -> None:
    score = Identified().score(truth(images(1), images(1), decoys))  # images(1) is the original itself
    assert score.value is None
    assert score.reason == NO_DECOYS
