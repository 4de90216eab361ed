"""Metrics on stolen models, against other implementations and symmetries that are known."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor, nn

from leakboard.core.randomness import Stream
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.defenses.perturbation.client import collapse, expanded_of
from leakboard.defenses.perturbation.server import draw_secret, perturb
from leakboard.federation.models.convnet import ConvNet
from leakboard.federation.models.mlp import Mlp
from leakboard.federation.models.resnet import ResNet8, ResNet20
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public, Training
from leakboard.federation.task import task_of
from leakboard.metrics.base import ExtractionTruth
from leakboard.metrics.canonical_distance import CanonicalDistance, canonical_distance
from leakboard.metrics.fidelity import Fidelity, fidelity
from leakboard.metrics.stolen_accuracy import StolenAccuracy, hits
from tests.defenses.networks import pooled

SHAPE = (1, 8, 8)
NETWORKS = {
    "mlp": lambda: Mlp(hidden=(7, 5), bias=True).build(SHAPE, 4),
    "convnet": lambda: ConvNet(width=3).build(SHAPE, 4),
    "resnet8": lambda: ResNet8(width=3, bias=True).build(SHAPE, 4),
    "resnet20": lambda: ResNet20(width=2).build(SHAPE, 4),
    "pooled": lambda: pooled(SHAPE, 4),
}


def weights(network: nn.Module) -> Parameters:
    """Random weights in double, none of them small."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in network.state_dict().items()
    }


def truth(stolen: Tensor, true: Tensor, labels: Tensor) -> ExtractionTruth:
    return ExtractionTruth({}, {}, nn.Identity(), stolen, true, labels)


def test_fidelity_and_accuracy_against_scikit_learn() -> None:
    stolen, true, labels = torch.randn(300, 5), torch.randn(300, 5), torch.randint(0, 5, (300,))
    given = truth(stolen, true, labels)
    agreement, right = Fidelity().score(given), StolenAccuracy().score(given)
    assert agreement.value == pytest.approx(accuracy_score(true.argmax(1), stolen.argmax(1)))
    assert right.value == pytest.approx(accuracy_score(labels, stolen.argmax(1)))
    assert right.details["true_model"] == pytest.approx(accuracy_score(labels, true.argmax(1)))
    assert set(agreement.per_item) == set(right.per_item) == {0.0, 1.0}
    assert Fidelity().score(truth(true, true, labels)).value == 1.0


def test_what_is_not_finite_agrees_with_nobody() -> None:
    good, bad = torch.randn(4, 3), torch.full((4, 3), math.nan)
    for pair in ((good, bad), (bad, good), (bad, bad)):
        assert float(fidelity(*pair).sum()) == 0
    assert float(hits(bad, torch.zeros(4, dtype=torch.int64)).sum()) == 0


def test_no_test_records_is_no_number() -> None:
    nothing = truth(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    for metric in (Fidelity(), StolenAccuracy()):
        score = metric.score(nothing)
        assert score.value is None
        assert score.reason == "there are no test records"


def rescaled(network: nn.Module, model: Parameters) -> Parameters:
    """The same function with other weights, worked out by hand: channel scales between consecutive plain layers."""
    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    generator = torch.Generator().manual_seed(2)
    found, before = dict(model), torch.ones(1, dtype=torch.float64)
    for position, name in enumerate(layers):
        value = model[f"{name}.weight"]
        columns = before.repeat_interleave(value.shape[1] // len(before)) if position else before
        last = position == len(layers) - 1
        rows = torch.rand(value.shape[0], generator=generator, dtype=torch.float64) * 10 + 0.1
        rows = torch.ones_like(rows) if last else rows
        ones = [1] * (value.ndim - 2)
        found[f"{name}.weight"] = value * rows.view(-1, 1, *ones) / columns.view(1, -1, *ones)
        if f"{name}.bias" in model:
            found[f"{name}.bias"] = model[f"{name}.bias"] * rows
        before = rows
    return found


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_a_rescaled_model_is_at_distance_zero_and_another_is_not(name: str) -> None:
    network = NETWORKS[name]()
    model = weights(network)
    other = rescaled(network, model)
    images = torch.randn(3, *SHAPE, dtype=torch.float64)
    same = [torch.func.functional_call(network.double(), m, (images,)) for m in (model, other)]
    assert torch.allclose(same[0], same[1])  # it is the same function
    plain = math.sqrt(sum(float((other[n] - model[n]).square().sum()) for n in model))
    assert plain > 1
    assert canonical_distance(other, model, network)[0] < 1e-14
    assert canonical_distance({n: v + 0.1 * torch.randn_like(v) for n, v in other.items()}, model, network)[0] > 1e-3


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_canonical_form_is_the_same_function_with_unit_rows(name: str) -> None:
    network = NETWORKS[name]().double()
    model = weights(network)
    form = canonical_form(model, network)
    assert set(form) == set(model)
    images = torch.randn(3, *SHAPE, dtype=torch.float64)
    before, after = (torch.func.functional_call(network, m, (images,)) for m in (model, form))
    assert torch.allclose(before, after)
    again = canonical_form(form, network)
    assert all(torch.allclose(again[n], form[n]) for n in form)
    first = next(iter(form))  # the first layer's rows, with their biases where there are any
    row = form[first].flatten(1).square().sum(1)
    bias = form.get(first.replace("weight", "bias"))
    assert torch.allclose(row + (bias.square() if bias is not None else 0), torch.ones_like(row))


@pytest.mark.parametrize("transitional", [True, False])
@pytest.mark.parametrize("model", ["mlp", "convnet", "resnet8"])
def test_model_perturbation_s_factors_are_divided_out(model: str, transitional: bool) -> None:
    """What a client holds under mp and mp-dp, without the additive noise of the last layer: SCHEMES 7(d)."""
    parameters = {"hidden": [6, 5]} if model == "mlp" else {"width": 3}
    public = Public(
        defense="mp",
        parameters={},
        model=model,
        model_parameters=parameters,
        shape=SHAPE,
        classes=4,
        mean=(0.5,),
        std=(0.5,),
        training=Training(rounds=1, precision="float64"),
        total_rounds=1,
        shard_sizes=(8,) * 5,
    )
    task, expanded = task_of(public), expanded_of(public, transitional=transitional)
    true = task.initial(3)
    secret = draw_secret(Stream(b"1" * 32), expanded.wiring, 4, transitional=transitional, variant="V2", scale=0.0)
    perturbed = perturb(true, expanded.wiring, secret, transitional=transitional, dtype=torch.float64)
    held = collapse(perturbed, expanded)
    assert max(float((held[n] - true[n]).abs().max()) for n in true) > 0.1
    assert canonical_distance(held, true, task.skeleton())[0] < 1e-12


def test_a_dead_unit_keeps_its_scale() -> None:
    network = NETWORKS["mlp"]()
    model = weights(network)
    model["1.weight"][0] = 0
    model["1.bias"][0] = 0
    assert all(bool(value.isfinite().all()) for value in canonical_form(model, network).values())
    assert canonical_distance(model, model, network)[0] == 0


def test_batch_norm_and_models_without_numbers_give_a_reason() -> None:
    network = ResNet8(width=2, norm="batch").build(SHAPE, 4)
    model = weights(network)
    logits, labels = torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)
    score = CanonicalDistance().score(ExtractionTruth(model, model, network, logits, logits, labels))
    assert score.value is None
    assert "BatchNorm2d" in score.reason

    network = NETWORKS["mlp"]()
    model = weights(network)
    broken = copy.deepcopy(model)
    broken["1.weight"][0, 0] = math.nan
    zero = {name: torch.zeros_like(value) for name, value in model.items()}
    for stolen, true, reason in ((broken, model, "not finite"), (model, zero, "is zero")):
        score = CanonicalDistance().score(ExtractionTruth(stolen, true, network, logits, logits, labels))
        assert score.value is None
        assert reason in score.reason
