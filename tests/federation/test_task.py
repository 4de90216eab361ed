from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor, nn

from leakboard.core import registry
from leakboard.federation.models.base import Model
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import Task, channels_last, mixed_precision, task_of
from tests.federation.makings import CLASSES, images, public_of, same


def ordinary(public: Public, model: Parameters) -> nn.Module:
    """The same network as an ordinary module that holds its weights."""
    plugin = registry.create("model", public.model, public.model_parameters)
    assert isinstance(plugin, Model)
    network = plugin.build(public.shape, public.classes)
    network.load_state_dict(model)
    return network


SETTINGS = {
    "mlp-mse": public_of(),
    "mlp-ce-bias": public_of(model_parameters={"hidden": [8], "bias": True}, loss="ce"),
    "convnet": public_of(model="convnet", model_parameters={"width": 2}),
    "resnet-batch": public_of(model="resnet8", model_parameters={"width": 2, "norm": "batch", "bias": True}, loss="ce"),
}


@pytest.mark.parametrize("public", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_gradient_is_that_of_an_ordinary_module(public: Public) -> None:
    # prepare
    task, data = task_of(public), images(6)
    model = task.initial(1)
    network = ordinary(public, model)
    # execute
    gradient, buffers = task.gradient(model, data.images, data.labels)
    logits = network((data.images - 0.5) / 0.25)
    if public.training.loss == "ce":
        loss = nn.functional.cross_entropy(logits, data.labels)
    else:
        loss = ((logits - nn.functional.one_hot(data.labels, CLASSES)) ** 2).sum() / 2 / len(data)
    parameters = dict(network.named_parameters())
    expected = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    # assert
    assert set(gradient) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value)
        assert not gradient[name].requires_grad
    assert same(buffers, dict(network.named_buffers()))


def test_buffers_come_back_and_the_callers_model_stays() -> None:
    task = task_of(SETTINGS["resnet-batch"])
    model = task.initial(1)
    before = {name: value.clone() for name, value in model.items()}
    data = images(6)
    _, buffers = task.gradient(model, data.images, data.labels)
    assert same(model, before)
    assert not any(value.requires_grad for value in model.values())
    assert set(buffers) == set(task.buffer_names)
    changed = [name for name in buffers if not torch.equal(buffers[name], before[name])]
    assert set(changed) == set(buffers)
    assert all(buffers[name].item() == 1 for name in buffers if name.endswith("num_batches_tracked"))


def test_evaluation_uses_the_running_statistics_and_changes_nothing() -> None:
    task = task_of(SETTINGS["resnet-batch"])
    model = task.initial(1)
    before = {name: value.clone() for name, value in model.items()}
    pictures = images(5).images
    predicted = task.predict(model, pictures, batch=2)
    assert same(model, before)
    # in eval mode an image's logits do not depend on its neighbours
    torch.testing.assert_close(predicted[3:4], task.predict(model, pictures[3:4]))
    torch.testing.assert_close(predicted, ordinary(task.public, model).eval()((pictures - 0.5) / 0.25))
    assert task.predict(model, pictures[:0]).shape == (0, CLASSES)


def test_mse_is_half_the_squared_distance_and_the_mean_over_the_batch() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    # 1/2 (1 + 1 + 0) and 1/2 (0 + 0 + 4), in the mean 1.5
    assert task_of(public_of()).loss(logits, torch.tensor([1, 2])).item() == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["mse", "ce"])
def test_soft_labels(name: str) -> None:
    public = public_of()
    loss = task_of(public.model_copy(update={"training": public.training.model_copy(update={"loss": name})})).loss
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 1])
    hard = nn.functional.one_hot(labels, 3).float()
    torch.testing.assert_close(loss(logits, hard), loss(logits, labels))
    # and gradients flow into soft labels, as attacks that optimise them need
    soft = torch.full((4, 3), 1 / 3, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(logits, soft), soft)
    expected = (soft - logits) / 4 if name == "mse" else -logits.log_softmax(1) / 4
    torch.testing.assert_close(slope, expected.detach())


def test_normalisation_is_per_channel() -> None:
    public = public_of(shape=(3, 8, 8)).model_copy(update={"mean": (0.1, 0.2, 0.3), "std": (1.0, 0.5, 0.25)})
    pictures = torch.full((2, 3, 8, 8), 0.5)
    normalised = Task(public).normalise(pictures)
    for channel, value in enumerate([0.4, 0.6, 0.8]):
        torch.testing.assert_close(normalised[:, channel], torch.full((2, 8, 8), value))
    assert Task(public).normalise(pictures.double()).dtype == torch.float64


def test_logits_are_differentiable_in_images_and_parameters() -> None:
    task = task_of(SETTINGS["mlp-mse"])
    model = {name: value.requires_grad_() for name, value in task.initial(1).items()}
    pictures = images(2).images.requires_grad_()
    slopes: tuple[Tensor, ...] = torch.autograd.grad(task.logits(model, pictures).sum(), [pictures, *model.values()])
    assert all(slope.abs().sum() > 0 for slope in slopes)


def test_the_initial_model_follows_from_its_seed_and_leaves_the_global_stream() -> None:
    task = task_of(SETTINGS["mlp-mse"])
    state = torch.random.get_rng_state()
    first, again, other = task.initial(1), task.initial(1), task.initial(2)
    Task(SETTINGS["mlp-mse"])
    assert same(first, again)
    assert not same(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_task_is_built_once_and_travels_by_its_settings() -> None:
    task = task_of(public_of())
    assert task_of(public_of()) is task
    assert pickle.loads(pickle.dumps(task)) is task
    assert task_of(public_of(loss="ce")) is not task


@pytest.mark.parametrize("width", [2, 4, 8])
def test_narrow_strided_projections_are_kept_out_of_channels_last(width: int) -> None:
    """torch 2.13 corrupts the heap there: many backward passes in a row must survive and agree."""
    public = public_of(model="resnet8", model_parameters={"width": width})
    task = task_of(public)
    assert (task.arranged is channels_last) == (width >= 8)
    data, model = images(6), task.initial(1)
    first, _ = task.gradient(model, data.images, data.labels)
    for _ in range(20):
        again, _ = task.gradient(model, data.images, data.labels)
    for name, value in first.items():
        torch.testing.assert_close(again[name], value)


def test_mixed_precision_is_near_and_ends_with_its_block() -> None:
    task, data = task_of(public_of(model="convnet", model_parameters={"width": 2})), images(6)
    model = task.initial(1)
    exact, _ = task.gradient(model, data.images, data.labels)
    with mixed_precision():
        near, _ = task.gradient(model, data.images, data.labels)
    after, _ = task.gradient(model, data.images, data.labels)
    assert all(value.dtype == torch.float32 for value in near.values())
    assert all(torch.equal(after[name], value) for name, value in exact.items())
    first, second = (torch.cat([value.flatten() for value in found.values()]) for found in (exact, near))
    assert not torch.equal(first, second)
    assert torch.cosine_similarity(first, second, dim=0) > 0.95  # eight bits, and sums over records that nearly cancel
