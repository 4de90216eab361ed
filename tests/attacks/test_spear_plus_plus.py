"""SPEAR++: batches come apart that `analytic` cannot separate; without zeros of a ReLU, or with noise, none does."""

from __future__ import annotations

import torch

from leakboard.attacks.reconstruction.closed_form.dictionary import COINCIDE, learned, sparser_pairs
from leakboard.attacks.reconstruction.spear_plus_plus import SpearPlusPlus
from tests.attacks.test_analytic import attacked, errors, world_with

ATTACK = SpearPlusPlus(samples=512)


def test_sixteen_records_are_exact_where_draws_of_rows_would_not_do() -> None:
    """One draw in 2^15 would find a record."""
    world = world_with(bias=True)
    batch = world.unseen.select(torch.arange(16))
    answer = attacked(world, batch, attack=ATTACK)
    assert answer.flags == ()
    assert float(errors(answer, batch).max()) < 1e-3


def test_noise_is_flagged_and_gets_the_mean_image() -> None:
    world = world_with(bias=True)
    answer = attacked(world, world.unseen.select(torch.arange(8)), attack=ATTACK, noise=0.1)
    assert any("not told apart" in flag for flag in answer.flags)
    assert torch.equal(answer.images[0][0], world.auxiliary.images.mean(0))


def test_a_factor_without_zeros_is_not_taken_apart() -> None:
    """As behind a GELU: no direction is sparse, and so no guess is made."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 40, generator=random, dtype=torch.float64)
    dense = torch.randn(80, 6, generator=random, dtype=torch.float64)
    assert list(learned(dense @ rows, 6, 256, random)) == []
    sparse = torch.where(torch.rand(80, 6, generator=random) < 0.5, 0.0, dense)
    found = list(learned(sparse @ rows, 6, 256, random))[-1]
    unit = torch.nn.functional.normalize
    assert float((unit(found.rows) @ unit(rows).T).abs().max(0).values.min()) > 1 - 1e-9


def test_a_mixture_of_two_columns_is_taken_apart() -> None:
    random = torch.Generator().manual_seed(0)
    columns = torch.randn(60, 2, generator=random, dtype=torch.float64)
    columns[torch.rand(60, 2, generator=random) < 0.5] = 0
    mixed = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)  # the first column, and a mixture of both
    found = sparser_pairs(mixed, columns)
    assert float(found[:, 1].abs().max()) > 1 - 1e-9


def test_few_rows_share_nothing() -> None:
    rows = torch.randn(COINCIDE, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert sparser_pairs(torch.eye(2, dtype=torch.float64), rows).shape == (0, 2)
