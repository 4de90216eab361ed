"""Soteria, sign and top-k: what is sent differs from the gradient as it should, and what attackers imitate is that."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from leakboard.attacks.building_blocks.candidate_transform import candidate_transform_of
from leakboard.core.errors import UserError
from leakboard.defenses.base import Gradient
from leakboard.defenses.soteria import feature_scores, last_linear
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import ObservedRounds
from leakboard.federation.task import task_of
from tests.defenses.makings import Run, create, flat, images_of, key, public_of, updates
from tests.defenses.small import small_run

STILL: dict[str, Any] = {"learning_rate": 1e-12, "rounds": 3, "shard": 4}  # one batch: the same gradient in all rounds


def sent(run: Run, index: int = 0, client: str = "client:0") -> Parameters:
    found: Parameters = updates(run.rounds()[index])[client]["gradient"]
    return found


# --- error feedback ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "parameters"), [("sign", {}), ("top-k", {"ratio": 0.8})])
def test_nothing_is_lost_over_the_rounds(name: str, parameters: dict[str, Any]) -> None:
    """All messages and the kept error add up to the sum of the gradients; no message is the gradient."""
    run, plain = small_run(create(name, **parameters), **STILL), small_run(create("fedsgd"), **STILL)
    error = run.rounds()[-1].states["client:0"]["error"]
    total = sum(flat(sent(run, index)) for index in range(3)) + flat(error)
    expected = sum(flat(sent(plain, index)) for index in range(3))
    assert torch.allclose(torch.as_tensor(total), torch.as_tensor(expected), atol=1e-9)
    for index in range(3):
        assert not torch.allclose(flat(sent(run, index)), flat(sent(plain, index)), atol=1e-3)


@pytest.mark.parametrize("name", ["sign", "top-k"])
def test_without_feedback_every_round_is_compressed_by_itself(name: str) -> None:
    run = small_run(create(name, feedback=False), **STILL)
    assert torch.allclose(flat(sent(run, 0)), flat(sent(run, 2)), atol=1e-9)
    assert "error" not in run.rounds()[-1].states["client:0"]
    kept = small_run(create(name), **STILL)
    assert not torch.allclose(flat(sent(kept, 0)), flat(sent(kept, 2)), atol=1e-9)


def test_a_sign_message_has_one_size_per_layer_and_top_k_the_largest_values() -> None:
    plain = sent(small_run(create("fedsgd")))
    for layer, value in sent(small_run(create("sign"))).items():
        assert torch.equal(value.sign(), plain[layer].sign())
        assert torch.allclose(value.abs()[value != 0], plain[layer].abs().mean())
    for layer, value in sent(small_run(create("top-k", ratio=0.75))).items():
        kept = value != 0
        assert int(kept.sum()) == value.numel() - math.floor(0.75 * value.numel())
        assert float(plain[layer][kept].abs().min()) >= float(plain[layer][~kept].abs().max())


def test_messages_count_what_they_take_on_the_wire() -> None:
    """16 x 3 and 3 x 3 weights in float64."""
    sizes = {}
    for name, given in (("sign", {}), ("top-k", {"ratio": 0.75})):
        messages = small_run(create(name, **given)).rounds()[0].messages
        sizes[name] = {m.size for m in messages if m.kind == "update"}
    assert sizes == {"sign": {6 + 8 + 2 + 8}, "top-k": {(12 + 3) * 12}}


def test_a_gradient_that_is_not_finite_does_not_stay() -> None:
    defense = create("sign")
    public = public_of(defense=defense)
    model = {name: torch.full_like(value, torch.nan) for name, value in task_of(public).initial(0).items()}
    found = defense.simulate(public, {"model": model}, images_of(2, 1, 8, 8).float(), torch.tensor([0, 1]), 0)
    assert all(bool(value.isfinite().all()) for value in found["gradient"].values())


def test_probes_leave_the_error_alone() -> None:
    watched = small_run(create("top-k"), rounds=3, observe=ObservedRounds(rounds=("first",), targets=2))
    assert torch.equal(flat(watched.outcome.model), flat(small_run(create("top-k"), rounds=3).outcome.model))


# --- Soteria -------------------------------------------------------------------------------------------


def test_soteria_zeroes_whole_columns_of_the_last_layer_alone() -> None:
    run, plain = small_run(create("soteria"), hidden=(10,)), small_run(create("fedsgd"), hidden=(10,))
    found, full = sent(run), sent(plain)
    name, _ = last_linear(task_of(run.public).skeleton())
    for layer, value in found.items():
        if layer != f"{name}.weight":
            assert torch.equal(value, full[layer])
    columns = (found[f"{name}.weight"] == 0).all(0)
    live = (full[f"{name}.weight"] != 0).any(0)
    assert int((~columns).sum()) <= 4
    assert int((columns & live).sum()) > 0  # something that the plain gradient shows is gone
    kept = found[f"{name}.weight"][:, ~columns]
    assert torch.equal(kept, full[f"{name}.weight"][:, ~columns])


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_scores_are_those_of_the_exact_derivatives(model: str) -> None:
    """The estimate of 500 directions against one backward pass per feature: within 15 %."""
    public = public_of(model, {"hidden": [6]} if model == "mlp" else {"width": 2}, precision="float64")
    task, images = task_of(public), images_of(3, 1, 8, 8)
    weights, (_, layer) = task.initial(0), last_linear(task.skeleton())
    kept: list[torch.Tensor] = []
    given = images.clone().requires_grad_()
    hook = layer.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    task.logits(weights, given)
    hook.remove()
    expected = torch.stack(
        [
            (
                torch.autograd.grad(column.sum(), given, retain_graph=True)[0].flatten(1).norm(dim=1) / (column + 0.1)
            ).sum()
            for column in kept[0].T
        ]
    )
    found = feature_scores(task, weights, images, 500, key("soteria"))
    assert torch.allclose(found, expected.detach(), rtol=0.15)


def test_soteria_needs_a_linear_layer() -> None:
    with pytest.raises(UserError, match=r"'soteria' needs a network with a linear layer; given: none\.$"):
        last_linear(torch.nn.Conv2d(1, 1, 3))


# --- what attackers imitate ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sign", "top-k", "soteria"])
def test_the_true_gradient_of_the_first_round_is_imitated_exactly(name: str) -> None:
    run, plain = small_run(create(name)), small_run(create("fedsgd"))
    imitation = candidate_transform_of(run.defense, Gradient(sent(run), 1, 4), run.public)
    assert imitation is not None
    made = imitation({layer: value[None] for layer, value in sent(plain).items()})
    assert all(torch.allclose(made[layer][0], value, atol=1e-12) for layer, value in sent(run).items())
    assert any(not torch.allclose(value, sent(run)[layer], atol=1e-6) for layer, value in sent(plain).items())


@pytest.mark.parametrize("name", ["sign", "top-k"])
@pytest.mark.parametrize("feedback", [True, False])
def test_a_probe_of_the_first_round_is_imitated_exactly_only_without_feedback(name: str, feedback: bool) -> None:
    """Probes run after the training step, in which the client has already kept something."""
    seen = ObservedRounds(rounds=("first",), targets=1)
    run, plain = (
        small_run(made, learning_rate=1e-12, observe=seen)
        for made in (create(name, feedback=feedback), create("fedsgd"))
    )
    found, true = (updates(one.rounds("probe")[0])["client:0"]["gradient"] for one in (run, plain))
    imitation = candidate_transform_of(run.defense, Gradient(found, 1, 1), run.public)
    assert imitation is not None
    made = imitation({layer: value[None] for layer, value in true.items()})
    assert all(torch.allclose(made[layer][0], found[layer], atol=1e-9) for layer in found) is not feedback
