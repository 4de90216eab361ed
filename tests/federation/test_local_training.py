"""Local steps: the schedule, the update, and settings that older records do not have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.federation.local_training import client_update
from leakboard.federation.settings import LOCAL, Training
from leakboard.federation.task import task_of
from tests.defenses.makings import images_of, public_of

SCHEDULE: dict[str, Any] = {"local_steps": 5, "local_batches": 2, "local_learning_rate": 0.05}


def test_without_local_steps_settings_are_stored_as_before() -> None:
    plain = Training(rounds=3)
    assert not set(LOCAL) & plain.model_dump(mode="json").keys()
    assert Training.model_validate_json(plain.model_dump_json()) == plain
    local = Training(rounds=3, **SCHEDULE)
    assert {name: local.model_dump()[name] for name in LOCAL} == SCHEDULE
    assert Training.model_validate_json(local.model_dump_json()) == local


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"local_steps": 2}, "need a local_learning_rate"),
        ({"local_steps": 2, "local_batches": 3, "local_learning_rate": 0.1}, r"local_batches \(3\) must be at most"),
        ({"local_steps": 9, "local_batches": 9, "local_learning_rate": 0.1, "batch_size": 8}, r"batch_size \(8\)"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_in_a_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Training.parse({"rounds": 1, **given}, "training")


def test_there_are_never_more_batches_than_records() -> None:
    assert Training(rounds=1, **SCHEDULE).local_schedule(1) == (slice(0, 1),) * 5


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("loss", ["mse", "ce"])
def test_the_update_is_that_of_torchs_own_optimiser(norm: str, loss: str) -> None:
    public = public_of("convnet", {"norm": norm, "width": 2}, precision="float64", batch_size=7, loss=loss, **SCHEDULE)
    task = task_of(public)
    model, images, labels = task.initial(0), images_of(7, 1, 8, 8), torch.arange(7) % 4
    update, buffers = client_update(task, model, images, labels)
    network = task.skeleton().double()
    network.load_state_dict(model)
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in (slice(0, 3), slice(3, 7), slice(0, 3), slice(3, 7), slice(0, 3)):
        optimiser.zero_grad()
        task.loss(network(task.normalise(images[batch])), labels[batch]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    after = network.state_dict()
    for name in task.parameter_names:
        torch.testing.assert_close(update[name], model[name] - after[name], atol=1e-12, rtol=0)
    for name in task.buffer_names:
        torch.testing.assert_close(buffers[name], after[name], atol=1e-12, rtol=0)


def test_one_step_is_the_gradient_times_the_rate() -> None:
    plain, one = public_of(precision="float64"), public_of(precision="float64", local_learning_rate=0.05)
    images, labels = images_of(4, 1, 8, 8), torch.arange(4)
    model = task_of(plain).initial(0)
    gradient, _ = client_update(task_of(plain), model, images, labels)
    update, _ = client_update(task_of(one), model, images, labels)
    for name, value in gradient.items():
        torch.testing.assert_close(update[name], 0.05 * value)
