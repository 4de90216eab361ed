"""The closed form is exact where that is possible, flags other answers, and is skipped if it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakboard.attacks.base import STOPPED, Inversion, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.analytic import Analytic
from leakboard.attacks.reconstruction.closed_form.disaggregation import factorisations, has_rank
from leakboard.contract.worlds import World, make_world
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from tests.attacks.clock import LONG_AGO, NEVER, time_ends_after


@dataclass(frozen=True)
class GivenTask(ReconstructionTask):
    """A task whose problems are made here."""

    made: tuple[Inversion, ...] = ()

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        return self.made


def world_with(bias: bool, model: str = "mlp") -> World:
    parameters: dict[str, object] = {"hidden": [256, 128], "bias": bias} if model == "mlp" else {"width": 2}
    return make_world(FedSGD(), model=model, model_parameters=parameters, rounds=1, unseen=64)


def attacked(
    world: World,
    batch: LabelledImages,
    *,
    noise: float = 0.0,
    weights: Tensor | None = None,
    attack: Analytic = Analytic(samples=40_000),  # noqa: B008
    deadline: float | None = None,
    copies: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> ReconstructionAnswer:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3, progress=progress, deadline=deadline)
    model = knowledge.task.initial(1)
    gradient, _ = knowledge.task.gradient(model, batch.images, batch.labels, weights)
    generator = torch.Generator().manual_seed(0)
    seen = {n: g + noise * g.abs().max() * torch.randn(g.shape, generator=generator) for n, g in gradient.items()}
    problem = Inversion(model, Gradient(seen, 1, len(batch)), None)
    return attack.reconstruct(
        knowledge, GivenTask("first", 0, copies, len(batch), None, (len(batch),) * copies, (problem,) * copies)
    )


def errors(answer: ReconstructionAnswer, batch: LabelledImages) -> Tensor:
    """The largest pixel error (B,) of each true image against its nearest answer."""
    return (answer.images[0][:, None] - batch.images[None]).abs().amax((2, 3, 4)).min(0).values


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_batches_are_recovered_exactly(bias: bool, size: int) -> None:
    world = world_with(bias)
    batch = world.unseen.select(torch.arange(size))
    answer = attacked(world, batch)
    assert float(errors(answer, batch).max()) < 1e-3
    assert answer.flags == ()
    assert answer.diagnostics["residual"] < 1e-4


@pytest.mark.parametrize("bias", [False, True])
def test_clipped_records_are_recovered_too(bias: bool) -> None:
    """Each record is scaled by its own factor, as under clipping; the attack also finds the factor."""
    world = world_with(bias)
    batch = world.unseen.select(torch.arange(2))
    answer = attacked(world, batch, weights=torch.tensor([0.3, 0.7]))
    assert float(errors(answer, batch).max()) < 1e-2


def test_noise_is_flagged_and_no_batch_is_claimed() -> None:
    world = world_with(bias=False)
    for size in (1, 4):
        answer = attacked(world, world.unseen.select(torch.arange(size)), noise=0.1)
        assert any("not consistent" in flag for flag in answer.flags)
        assert bool(answer.images[0].isfinite().all())


def test_a_zero_gradient_gets_the_mean_image_and_a_flag() -> None:
    world = world_with(bias=False)
    batch = world.unseen.select(torch.arange(2))
    answer = attacked(world, batch, weights=torch.zeros(2))
    assert "gradient all zero" in answer.flags
    torch.testing.assert_close(answer.images[0][0], world.auxiliary.images.mean(0))


def test_at_a_deadline_the_best_so_far_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is exact enough for this tolerance: the search runs until its time ends and returns its best answer."""
    world = world_with(bias=False)
    batch = world.unseen.select(torch.arange(4))
    picky = Analytic(samples=10**9, tolerance=1e-30)  # without the limit it would take hours
    time_ends_after(20, monkeypatch)
    answer = attacked(world, batch, attack=picky)
    assert f"{STOPPED} in 1 of 1 problems" in answer.flags
    assert float(errors(answer, batch).max()) < 1e-3


def test_what_was_not_begun_before_the_deadline_gets_the_mean_image(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with(bias=False)
    batch = world.unseen.select(torch.arange(1))
    late = attacked(world, batch, deadline=LONG_AGO, copies=2)
    assert f"{STOPPED} in 2 of 2 problems" in late.flags
    assert all(torch.equal(images[0], world.auxiliary.images.mean(0)) for images in late.images)
    solved: list[str] = []  # the clock stands until the first problem is reported
    monkeypatch.setattr(Knowledge, "time_left", lambda self: -1.0 if solved else 1.0)
    half = attacked(world, batch, copies=2, progress=solved.append)
    assert f"{STOPPED} in 1 of 2 problems" in half.flags
    assert float(errors(half, batch).max()) < 1e-3
    assert torch.equal(half.images[1][0], world.auxiliary.images.mean(0))


def test_an_answer_before_the_deadline_is_not_flagged() -> None:
    world = world_with(bias=False)
    assert attacked(world, world.unseen.select(torch.arange(4)), deadline=NEVER).flags == ()


def test_where_it_cannot_work_the_cell_is_skipped() -> None:
    convolutional, dense = world_with(bias=False, model="convnet"), world_with(bias=False)
    with pytest.raises(Unsupported, match="fully connected first layer"):
        attacked(convolutional, convolutional.unseen.select(torch.arange(1)))
    many = dense.unseen.select(torch.arange(257) % 64)
    with pytest.raises(Unsupported, match="can separate at most 20 records, not 257"):
        attacked(dense, many)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(0, 10_000))
def test_a_product_with_a_sparse_factor_is_taken_apart(records: int, seed: int) -> None:
    """G = S X with half of S zero: the last factorisation has the rows of X up to scale."""
    generator = torch.Generator().manual_seed(seed)
    sparse = torch.randn(200, records, generator=generator, dtype=torch.float64)
    sparse[torch.rand(sparse.shape, generator=generator) < 0.5] = 0
    rows = torch.randn(records, 60, generator=generator, dtype=torch.float64)
    matrix = sparse @ rows
    assert has_rank(matrix, records)
    assert not has_rank(matrix, records - 1)
    factors = list(factorisations(matrix, records, 8192, torch.Generator().manual_seed(0)))[-1]
    torch.testing.assert_close(factors.sparse @ factors.rows, matrix, rtol=1e-6, atol=1e-6)
    unit = torch.nn.functional.normalize
    assert float((unit(factors.rows) @ unit(rows).T).abs().max(1).values.min()) > 1 - 1e-9
