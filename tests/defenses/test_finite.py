"""What is not finite counts as zero, record by record, before any noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.contract.poison import overflowing
from leakboard.core.randomness import derive_key
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.finite import LIMIT, bounded_mean, norm, or_zero
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import client_name
from leakboard.federation.task import task_of
from tests.defenses.makings import create, flat, images_of, public_of
from tests.defenses.small import CLASSES, SHAPE

PUBLIC = public_of(parameters={"hidden": [4]}, shape=SHAPE, classes=CLASSES)
DATA = LabelledImages(images_of(4, *SHAPE).float(), torch.tensor([0, 1, 2, 0]))
#: weights that overflow for record 1 alone
WEIGHTS = overflowing(PUBLIC, DATA, torch.arange(4) == 1)


def sent(defense: Defense, records: list[int]) -> Tensor:
    """The gradient in what a client sends for these records on the poisoned weights."""
    batch = DATA.select(torch.tensor(records))
    return flat(defense.simulate(PUBLIC, {"model": WEIGHTS}, batch.images, batch.labels, 0)["gradient"])


def test_the_weights_overflow_for_one_record_and_not_for_others() -> None:
    norms = loss_norms(task_of(PUBLIC), WEIGHTS, DATA.images, DATA.labels)
    assert norms.isfinite().tolist() == [True, False, True, True]


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("name", ["ldp", "cdp"])
def test_an_overflowing_record_counts_as_zero_and_the_others_as_ever(name: str, clip: float | None) -> None:
    settings: dict[str, Any] = {"noise": False, "clip": clip}
    whole, others = (sent(create(name, **settings), records) for records in ([0, 1, 2, 3], [0, 2, 3]))
    torch.testing.assert_close(whole, others * 3 / 4, rtol=1e-5, atol=1e-7)
    assert not sent(create(name, **settings), [1]).any()


def test_secagg_has_a_code_for_it_too() -> None:
    whole, others = (sent(create("secagg"), records) for records in ([0, 1, 2, 3], [0, 2, 3]))
    torch.testing.assert_close(whole, others * 3 / 4, rtol=1e-5, atol=1e-7)


# --- by itself -------------------------------------------------------------------------------------


def client(count: int) -> Party:
    me = Party(client_name(0), PUBLIC, derive_key(bytes(32), "finite"))
    me.batch = LabelledImages(torch.zeros(count, *SHAPE), torch.zeros(count, dtype=torch.long))
    return me


def means(rows: Tensor, wrong: float = 1.0) -> Any:
    """The mean of rows (N, D) in a slice; over the whole batch `wrong` times as large, by bad rounding."""

    def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
        own = rows[chosen]
        return ({"w": own.mean(0) * (wrong if len(own) > 1 else 1.0)},)

    return part


def test_where_all_is_well_there_is_one_pass() -> None:
    calls: list[slice] = []
    rows = torch.tensor([[0.6, 0.0], [0.0, 0.8]])

    def part(chosen: slice, weights: Tensor | None) -> tuple[Parameters]:
        calls.append(chosen)
        return ({"w": rows[chosen].mean(0)},)

    (found,) = bounded_mean(client(2), part, None, (1.0,))
    assert found["w"].tolist() == pytest.approx([0.3, 0.4])
    assert calls == [slice(None)]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 8 * LIMIT])
def test_a_record_without_numbers_is_left_out(bad: float) -> None:
    rows = torch.tensor([[1.0, 2.0], [bad, 0.0], [3.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    (found,) = bounded_mean(client(4), means(rows), None)
    assert found["w"].tolist() == [1.0, 1.0]


def test_a_record_beyond_the_bound_is_scaled_down_by_its_own_norm() -> None:
    """Where the batch's pass rounds otherwise than the pass that computed the norms, noise still covers the mean."""
    rows = torch.tensor([[1e20, 0.0], [0.0, 0.5]])
    (found,) = bounded_mean(client(2), means(rows), None, (1.0,))
    assert found["w"].tolist() == pytest.approx([0.5, 0.25])
    (found,) = bounded_mean(client(2), means(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), wrong=1e10), None, (1.0,))
    assert found["w"].tolist() == pytest.approx([0.5, 0.5])


def test_one_part_that_overflows_takes_the_record_out_of_all_parts() -> None:
    good, bad = torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [torch.nan]])

    def parts(chosen: slice, weights: Tensor | None) -> tuple[Parameters, Parameters]:
        return {"g": good[chosen].mean(0)}, {"phi": bad[chosen].mean(0)}

    first, second = bounded_mean(client(2), parts, None, (LIMIT, LIMIT))
    assert (float(first["g"]), float(second["phi"])) == (0.5, 0.5)


def test_a_gradient_without_numbers_is_zero_as_a_whole() -> None:
    sound = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    assert or_zero(sound) is sound
    for bad in (torch.nan, torch.inf, 4 * LIMIT):
        assert norm(or_zero({**sound, "b": torch.tensor([bad])})) == 0
