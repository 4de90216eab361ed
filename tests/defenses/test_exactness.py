"""In float64 the algebra of model perturbation is exact, for every network, variant and layer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from leakboard.defenses.perturbation.client import Expanded, collapse, expanded_of, forward, train
from leakboard.defenses.perturbation.server import Secret, recover
from leakboard.federation.payload import Parameters
from leakboard.federation.task import task_of
from tests.defenses.makings import hidden_of, images_of, public_of, relative, secret_for, weights_of

CLASSES = 4
CUSTOM = str(Path(__file__).with_name("networks.py"))
Shape = tuple[int, int, int]
#: network -> its parameters and the images that it is tried on
NETWORKS: dict[str, tuple[str, dict[str, Any], Shape]] = {
    "mlp": ("mlp", {"hidden": (7, 5)}, (1, 4, 4)),
    "convnet": ("convnet", {"width": 3}, (3, 8, 8)),
    **{f"resnet{n}": (f"resnet{n}", {"width": 3}, (3, 8, 8)) for n in (8, 11, 20, 56)},
}
CASES = [
    *((name, {"bias": bias}) for name, bias in itertools.product(NETWORKS, (False, True))),
    ("pooled", {}),
]


@dataclass(frozen=True)
class Case:
    """A plain network and the same one perturbed, with a batch."""

    plain: nn.Module
    expanded: Expanded
    model: Parameters
    secret: Secret
    hidden: Parameters
    images: Tensor
    targets: Tensor
    known: Tensor | None

    def logits(self, parameters: Parameters) -> Tensor:
        return cast(Tensor, functional_call(self.plain, parameters, (self.images,)))

    def true_gradient(self, weights: Tensor | None = None) -> Parameters:
        """By autograd on the original network."""
        leaves = {name: value.clone().requires_grad_() for name, value in self.model.items()}
        losses = 0.5 * (self.logits(leaves) - self.targets).square().sum(1)
        loss = (losses if weights is None else weights * losses).mean()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def messages(self, weights: Tensor | None = None) -> tuple[Parameters, Parameters, Parameters]:
        return train(self.expanded, self.hidden, self.known, self.images, self.targets, weights)

    def recovered(self, weights: Tensor | None = None) -> Parameters:
        return recover(*self.messages(weights), self.expanded.wiring, self.secret)


def make_case(
    name: str, extra: dict[str, Any], variant: str, *, transitional: bool, batch: int = 3, seed: int = 0
) -> Case:
    custom: tuple[str, dict[str, Any], Shape] = ("module", {"target": f"{CUSTOM}:{name}"}, (2, 8, 8))
    model, parameters, shape = NETWORKS.get(name, custom)
    public = public_of(model, {**parameters, **extra}, shape=shape, classes=CLASSES, precision="float64")
    expanded = expanded_of(public, transitional=transitional)
    plain = task_of(public).skeleton()
    weights = weights_of(plain, seed)
    secret = secret_for(expanded, variant, CLASSES, seed=seed)
    images = 2 * images_of(batch, *shape, seed=seed) - 1
    targets = nn.functional.one_hot(torch.arange(batch) % CLASSES, CLASSES).double()
    known = secret.direction if variant == "V2" else None
    return Case(plain, expanded, weights, secret, hidden_of(weights, expanded, secret), images, targets, known)


@pytest.fixture(scope="module", params=[(c, v, t) for c in CASES for v in ("V1", "V2") for t in (False, True)], ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    (name, extra), variant, transitional = request.param
    return make_case(name, extra, variant, transitional=transitional)


def test_the_perturbed_logits_are_the_true_ones_plus_alpha_r(case: Case) -> None:
    run = forward(case.expanded, case.hidden, case.images)
    true = case.logits(case.model)
    assert relative(run.logits, true + run.alpha[:, None] * case.secret.additive) < 1e-9
    assert relative(run.logits, true) > 1e-3  # there is something to recover from


def test_every_layer_of_the_gradient_is_recovered(case: Case) -> None:
    true, found = case.true_gradient(), case.recovered()
    assert set(found) == set(true)
    worst = max(relative(found[name], value) for name, value in true.items() if bool(value.any()))
    assert worst < 1e-6
    assert all(bool((found[name].abs() < 1e-9).all()) for name, value in true.items() if not bool(value.any()))
    noisy = case.messages()[0]
    assert max(relative(noisy[name], value) for name, value in true.items() if bool(value.any())) > 1e-3


def test_phi_is_zero_in_the_last_layer_only(case: Case) -> None:
    _, psi, phi = case.messages()
    last = case.expanded.wiring.last.name
    assert all(not bool(value.any()) for name, value in phi.items() if name.startswith(f"{last}."))
    assert all(bool(phi[f"{w.name}.weight"].any()) for w in case.expanded.wiring.weights if w.name != last)
    leading = () if case.known is not None else (CLASSES,)
    assert all(value.shape == (*leading, *case.model[name].shape) for name, value in psi.items())


def test_the_collapsed_network_computes_the_same_logits(case: Case) -> None:
    """Transitional layers add nothing: a plain network of the original shape gives y_hat."""
    plain = collapse(case.hidden, case.expanded)
    assert set(plain) == set(case.model)
    assert relative(case.logits(plain), forward(case.expanded, case.hidden, case.images).logits) < 1e-9


def test_transitional_layers_stand_behind_every_relu_and_identity_shortcut() -> None:
    case = make_case("pooled", {}, "V2", transitional=True)
    wiring = case.expanded.wiring
    assert len(wiring.relus) == 6  # the doubled ReLU counts once
    assert len(wiring.skips) == 1
    assert {name for name in case.hidden if name.endswith(".scale")} == {
        *(f"{path}.scale" for path in wiring.relus),
        *(f"{skip.path}.scale" for skip in wiring.skips),
    }


@settings(max_examples=25, deadline=None)
@given(
    variant=st.sampled_from(["V1", "V2"]),
    transitional=st.booleans(),
    batch=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_example_weights_act_on_all_three_messages(
    variant: str, transitional: bool, batch: int, seed: int, data: st.DataObject
) -> None:
    """Clipping factors c_b: what the server recovers is the gradient of the weighted loss."""
    case = make_case("mlp", {}, variant, transitional=transitional, batch=batch, seed=seed)
    factors = st.floats(0.01, 1.0, allow_subnormal=False)
    weights = torch.tensor(data.draw(st.lists(factors, min_size=batch, max_size=batch)), dtype=torch.float64)
    true, found = case.true_gradient(weights), case.recovered(weights)
    for name, value in true.items():
        assert float((found[name] - value).norm()) <= 1e-6 * float(value.norm()) + 1e-9


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), power=st.integers(-3, 2))
def test_recovery_is_linear_and_does_not_depend_on_the_secret(seed: int, power: int) -> None:
    """Two other draws of the noise, of any size, recover the same gradient."""
    case = make_case("pooled", {}, "V2", transitional=True, seed=1)
    secret = secret_for(case.expanded, "V2", CLASSES, scale=10.0**power, seed=seed)
    hidden = hidden_of(case.model, case.expanded, secret)
    messages = train(case.expanded, hidden, secret.direction, case.images, case.targets)
    found = recover(*messages, case.expanded.wiring, secret)
    for name, value in case.true_gradient().items():
        assert relative(found[name], value) < 1e-6
