"""A client that knows model perturbation has the model: the additive noise is found, the rest is a symmetry."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakboard.attacks.base import ExtractionTask, Knowledge, MembershipTask
from leakboard.attacks.building_blocks import stripping as _stripping
from leakboard.attacks.building_blocks.stripping import (
    Outputs,
    Received,
    StrippedKnowledge,
    Stripper,
    data_free,
    label_free,
    labelled,
    others_gradient,
    outputs_of,
    received,
    strip,
    update_between,
)
from leakboard.attacks.extraction.stripped_model import StrippedModel
from leakboard.attacks.membership.building_blocks import shadows as _shadows
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.loss_threshold import LossThreshold
from leakboard.attacks.membership.strip_membership import StripMembership
from leakboard.contract.worlds import World, make_world
from leakboard.core import registry
from leakboard.core.errors import Unsupported, UserError
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.fedsgd import FedSGD
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.defenses.perturbation.client import Expanded, expanded_of
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of
from leakboard.metrics.auc import auc
from tests.defenses.makings import hidden_of, images_of, public_of, relative, secret_for, weights_of

NETWORKS = Path(__file__).parents[1] / "defenses" / "networks.py"
#: with and without transitional layers; an identity and a projection shortcut, pooling, biases
KINDS = [("mlp", True), ("convnet", True), ("convnet", False), (f"module:{NETWORKS}:pooled", True)]
each_kind = pytest.mark.parametrize(("model", "transitional"), KINDS, ids=["mlp", "convnet", "no-diagonals", "pooled"])
each_variant = pytest.mark.parametrize("variant", ["V1", "V2"])


# --- algebra, in float64 ------------------------------------------------------------------------


def small(model: str, transitional: bool) -> tuple[Public, Expanded]:
    sizes: dict[str, dict[str, Any]] = {"mlp": {"hidden": [12, 8]}, "convnet": {"width": 2}}
    parameters = sizes.get(model, {})
    public = public_of(model, parameters, precision="float64")
    return public, expanded_of(public, transitional=transitional)


def send(model: Parameters, expanded: Expanded, variant: str, seed: int = 3) -> tuple[Received, Tensor]:
    """What a client gets for a model, and the true r."""
    secret = secret_for(expanded, variant, seed=seed)
    direction = secret.direction if variant == "V2" else None
    context = RoundContext(0, None, "train", ("client:1",), 4)
    return Received(context, hidden_of(model, expanded, secret), direction), secret.additive


def fitted(public: Public, expanded: Expanded, images: Tensor, labels: Tensor) -> Parameters:
    """Random layers, and the last one fitted to the labels by least squares: sum_i a_i (y_i - ybar_i)^T = 0."""
    model = weights_of(expanded.plain, seed=4)
    last = expanded.wiring.last.name
    kept: list[Tensor] = []
    handle = expanded.plain.get_submodule(last).register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    bias = model.get(f"{last}.bias", torch.zeros(public.classes, dtype=torch.float64))
    try:
        task_of(public).logits(model, images)
    finally:
        handle.remove()
    targets = nn.functional.one_hot(labels, public.classes).double() - bias
    model[f"{last}.weight"] = (torch.linalg.pinv(kept[0].detach()) @ targets).T.contiguous()
    return model


@each_kind
@each_variant
def test_a_fitted_last_layer_gives_r_and_the_true_outputs(model: str, transitional: bool, variant: str) -> None:
    public, expanded = small(model, transitional)
    images, labels = images_of(40, *public.shape, seed=5), torch.arange(40) % public.classes
    true = fitted(public, expanded, images, labels)
    got, r = send(true, expanded, variant)

    found = labelled(outputs_of(expanded, got, images, public), labels, got.direction)
    others = images_of(20, *public.shape, seed=6)
    task = task_of(public)

    assert torch.allclose(found, r, rtol=1e-8, atol=1e-10)
    stripped = strip(got, found, expanded)
    assert torch.allclose(task.predict(stripped, others), task.predict(true, others), rtol=1e-7, atol=1e-8)
    assert not torch.allclose(task.predict(strip(got, 0 * r, expanded), others), task.predict(true, others), atol=1e-2)


@each_kind
def test_two_models_that_compute_the_same_have_one_canonical_form(model: str, transitional: bool) -> None:
    public, expanded = small(model, transitional)
    true = weights_of(expanded.plain, seed=4)
    got, r = send(true, expanded, "V1")
    form, stolen = (canonical_form(m, expanded.plain) for m in (true, strip(got, r, expanded)))
    for name, value in form.items():
        assert torch.allclose(stolen[name], value, rtol=1e-9, atol=1e-10), name
    task, images = task_of(public), images_of(6, *public.shape, seed=6)
    assert torch.allclose(task.predict(form, images), task.predict(true, images), rtol=1e-9, atol=1e-10)


@each_variant
def test_two_perturbations_of_one_model_give_both_r_without_a_label(variant: str) -> None:
    """In a converged model a step changes nothing; then the estimate is exact."""
    public, expanded = small("mlp", True)
    true = weights_of(expanded.plain, seed=4)
    images = images_of(30, *public.shape, seed=5)
    sent = [send(true, expanded, variant, seed) for seed in (3, 4)]
    seen = [outputs_of(expanded, got, images, public) for got, _ in sent]
    found = label_free(seen, [got.direction for got, _ in sent])
    for estimate, (_, r) in zip(found, sent, strict=True):
        assert torch.allclose(estimate, r, rtol=1e-8, atol=1e-9)


@each_variant
def test_weights_of_balanced_signs_give_r_without_data(variant: str) -> None:
    """As many positive as negative weights in a row and one zero: the median is r whatever the factors are."""
    public = public_of("mlp", {"hidden": [9]}, precision="float64")
    expanded = expanded_of(public, transitional=True)
    true = weights_of(expanded.plain, seed=4)
    last = f"{expanded.wiring.last.name}.weight"
    size = true[last].abs()
    true[last] = torch.cat([size[:, :4], 0 * size[:, 4:5], -size[:, 5:]], dim=1)
    got, r = send(true, expanded, variant)
    assert torch.allclose(data_free(got, expanded), r, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("known", [True, False])
def test_two_models_give_the_others_gradient(known: bool) -> None:
    """Two clients, one step of a small rate: the other's gradient, exactly with the rows' norms, nearly without."""
    public = public_of("mlp", {"hidden": [12, 8]}, shape=(1, 24, 24), precision="float64")
    expanded, task = expanded_of(public, transitional=True), task_of(public)
    start = task.initial(8)
    batches = [(images_of(4, *public.shape, seed=s), torch.arange(4)) for s in (5, 6)]
    own, other = (task.gradient(start, images, labels)[0] for images, labels in batches)
    rate = 1e-5
    end = {name: value - rate * (own[name] + other[name]) / 2 for name, value in start.items()}
    sent = [send(model, expanded, "V1", seed) for model, seed in ((start, 3), (end, 4))]
    first, second = (strip(got, r, expanded) for got, r in sent)

    moved = update_between(first, second, expanded.plain)
    form = canonical_form(first, expanded.plain)
    norms = start["1.weight"].norm(dim=1) if known else torch.full((12,), 1 / 3).sqrt().double()
    mine = task.gradient(form, *batches[0])[0]["1.weight"]
    found = others_gradient(moved["1.weight"], form["1.weight"], mine, 2, rate, norms)

    true = task.gradient(form, *batches[1])[0]["1.weight"]
    true = true - (true * form["1.weight"]).sum(1, keepdim=True) * form["1.weight"]
    assert relative(found, true) < (1e-3 if known else 0.2)
    assert relative(found + mine, true) > 0.5  # the own part matters


def test_the_step_between_two_models_is_seen_through_their_perturbations() -> None:
    _, expanded = small("convnet", True)
    start, end = (weights_of(expanded.plain, seed=seed) for seed in (4, 5))
    first, second = (strip(*send(model, expanded, "V1", seed), expanded) for model, seed in ((start, 6), (end, 7)))
    seen, true = (update_between(*pair, expanded.plain) for pair in ((first, second), (start, end)))
    for name, value in true.items():
        assert torch.allclose(seen[name], value, rtol=1e-8, atol=1e-9), name


def test_where_all_units_are_off_r_changes_nothing() -> None:
    seen = Outputs(torch.zeros(3, 2).double(), torch.zeros(3).double())
    assert not labelled(seen, torch.tensor([0, 1, 0]), None).any()


def test_in_v2_only_one_number_is_estimated() -> None:
    direction = torch.tensor([1.0, 2.0], dtype=torch.float64)
    seen = Outputs(torch.tensor([[3.0, 5.0], [6.0, 14.0]], dtype=torch.float64), torch.tensor([1.0, 2.0]).double())
    labels = torch.tensor([1, 0])
    # residuals (3, 4) and (5, 14); alpha-weighted mean (13, 32) / 5; its part along r^a: 77 / 25 times r^a
    assert torch.allclose(labelled(seen, labels, None), torch.tensor([2.6, 6.4]).double())
    assert torch.allclose(labelled(seen, labels, direction), 77 / 25 * direction)


# --- federations --------------------------------------------------------------------------------


PERTURBED: dict[str, tuple[str, dict[str, Any]]] = {
    "mp-V1": ("mp", {"variant": "V1"}),
    "mp-dp": ("mp-dp", {}),
    "pile": ("pile", {"key_bits": 256, "sample_values": 0}),
    "mp-dp+": ("mp-dp+", {}),
}


@cache
def memorising(title: str) -> World:
    """One round, at a rate that changes nothing, on a model that has learned the members' labels (half are noise)."""
    name, parameters = PERTURBED[title]
    settings: dict[str, Any] = {
        "model_parameters": {"hidden": [150]},
        "shard": 50,
        "rounds": 1,
        "learning_rate": 1e-9,
        "seed": 11,
        "label_noise": 0.5,
        "auxiliary": 60,
        "unseen": 100,
    }
    dealt = make_world(FedSGD(), **settings)
    members = joined(*dealt.shards.values())
    task = task_of(dealt.outcome.public)
    model = task.initial(12)
    hidden = torch.relu(task.normalise(members.images).flatten(1) @ model["1.weight"].T)
    targets = nn.functional.one_hot(members.labels, 10).float()
    ridge = hidden.T @ hidden + 1e-1 * torch.eye(150)
    model["3.weight"] = torch.linalg.solve(ridge, hidden.T @ targets).T.contiguous()

    def initialise(self: Defense, me: Party) -> None:
        me.state["model"] = {name: value.clone() for name, value in model.items()}

    scheme = registry.load("defense", name)
    made = type("Memorising", (scheme,), {"initialise": initialise, "__module__": scheme.__module__})(**parameters)
    assert isinstance(made, Defense)
    return make_world(made, **settings)


def question(world: World) -> tuple[MembershipTask, Tensor]:
    """Members of clients 0 and 2 (client 1 attacks), and records that nobody has."""
    members = joined(world.shards["client:0"], world.shards["client:2"])
    records = joined(members, world.unseen)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(1))
    return MembershipTask(records.select(order)), order < len(members)


def known_by(world: World, threat: str = "client") -> Knowledge:
    return Knowledge(world.view(threat), world.defense, world.auxiliary, 9)


def area(knowledge: Knowledge, attack: Any, world: World) -> float:
    task, truth = question(world)
    return float(auc(attack.infer(knowledge, task).scores, truth))


@pytest.mark.parametrize("title", PERTURBED)
def test_stripping_brings_back_the_membership_signal(title: str) -> None:
    """The server holds the true model: what it finds in it, the client finds in its own."""
    world = memorising(title)
    true = area(known_by(world, "server"), LossThreshold(), world)
    stripped = area(known_by(world), StripMembership(attack="loss-threshold"), world)
    assert true > 0.9
    assert stripped > true - 0.02
    # mp-dp+ has a gamma that hides next to nothing, and that of pile shrinks with the gradients of a model that fits
    if title in ("mp-V1", "mp-dp"):
        assert area(known_by(world), LossThreshold(), world) < 0.7


@pytest.mark.parametrize("title", PERTURBED)
@pytest.mark.parametrize("settings", [{}, {"samples": 10}, {"estimate": "label-free"}])
def test_the_stolen_model_predicts_as_the_true_one(title: str, settings: dict[str, Any]) -> None:
    world = memorising(title)
    answer = StrippedModel(**settings).extract(known_by(world), ExtractionTask("last", 0))
    task, images = task_of(world.outcome.public), world.unseen.images
    true, stolen = (task.predict(m, images).argmax(1) for m in (world.outcome.model, answer.model))
    assert {name: v.shape for name, v in answer.model.items()} == {n: v.shape for n, v in world.outcome.model.items()}
    assert float((true == stolen).double().mean()) > (0.85 if title == "mp-V1" else 0.95)  # ten numbers, not one
    rows = answer.model["1.weight"].norm(dim=1)
    assert torch.allclose(rows, torch.ones_like(rows), atol=1e-5)


def test_gamma_is_found_to_a_thousandth_in_a_model_that_fits_its_data() -> None:
    world = memorising("mp-dp")
    got = received(world.view("client").of_kind("final")[0])
    secret = world.view("server").of_kind("final")[0].states[SERVER]["secret"]
    assert got is not None
    assert got.direction is not None
    assert isinstance(world.defense, ModelPerturbation)
    r = Stripper(world.view("client"), world.defense, "labelled", None).r(got)
    gamma = float(r.norm() / got.direction.double().norm())
    assert gamma == pytest.approx(float(secret["gamma"]), rel=1e-3)


def test_only_so_many_own_records_are_used() -> None:
    world = memorising("mp-dp")
    answer = StrippedModel(samples=7).extract(known_by(world), ExtractionTask("last", 0))
    assert answer.diagnostics["records"] == 7
    more = StrippedModel(samples=1000).extract(known_by(world), ExtractionTask("last", 0))
    assert any("only 50 own records" in flag for flag in more.flags)


def test_shadow_models_of_stripped_and_of_received_outputs_are_kept_apart() -> None:
    world = memorising("mp-dp")
    plain = known_by(world)
    given: dict[str, Any] = {"view": plain.view, "defense": plain.defense, "auxiliary": plain.auxiliary, "seed": 9}
    keys = {
        known.reading_key().__repr__(): _shadows.shadow_pool(known, world.unseen, 2, online=False).signals.final
        for known in (plain, StrippedKnowledge(**given), StrippedKnowledge(**given, samples=20))
    }
    assert len(keys) == 3
    received_outputs, stripped, fewer = keys.values()
    assert not torch.allclose(received_outputs, stripped)
    assert not torch.equal(stripped, fewer)


def test_where_nothing_is_perturbed_there_is_nothing_to_strip() -> None:
    world = make_world(FedSGD(), model_parameters={"hidden": [4]}, rounds=1)
    with pytest.raises(Unsupported, match="nothing to strip"):
        StripMembership().infer(known_by(world), MembershipTask(world.unseen))
    with pytest.raises(Unsupported, match="nothing to strip"):
        StrippedModel().extract(known_by(world), ExtractionTask("last", 0))


def test_a_round_that_was_not_seen_cannot_be_stolen() -> None:
    world = memorising("mp-dp")
    with pytest.raises(Unsupported, match="round 7"):
        StrippedModel().extract(known_by(world), ExtractionTask("last", 7))


@pytest.mark.parametrize(
    ("estimate", "value"),
    [(estimate, value) for estimate in ("labelled", "label-free") for value in (torch.nan, 1e300)],
)
def test_a_model_that_gives_no_numbers_is_not_stripped(estimate: Any, value: float) -> None:
    world = memorising("mp-dp")
    assert isinstance(world.defense, ModelPerturbation)
    stripper = Stripper(world.view("client"), world.defense, estimate, None)
    got = stripper.of("train", 0)
    assert got is not None
    broken = {name: torch.full_like(tensor.double(), value) for name, tensor in got.perturbed.items()}
    with pytest.raises(Unsupported, match="diverged"):
        stripper.r(replace(got, perturbed=broken))


def test_a_final_model_without_numbers_is_left_to_the_other_attack() -> None:
    world = memorising("mp-dp")
    view = world.view("client")
    last = view.observations[-1]
    payload = {
        **last.messages[0].payload,
        "model": {n: v * torch.nan for n, v in last.messages[0].payload["model"].items()},
    }
    broken = replace(last, messages=(replace(last.messages[0], payload=payload),))
    known = replace(known_by(world), view=replace(view, observations=(*view.observations[:-1], broken)))
    answer = StripMembership(attack="loss-threshold").infer(known, MembershipTask(world.unseen))
    assert answer.scores.isfinite().all()


@pytest.mark.parametrize("name", ["strip-membership", "prior", "rmai"])
def test_it_runs_another_membership_attack_or_none(name: str) -> None:
    with pytest.raises(UserError, match=r"another membership attack|did you mean 'rmia'"):
        registry.create("attack", "strip-membership", {"attack": name})


def test_the_other_attacks_parameters_are_checked_and_its_costs_counted() -> None:
    with pytest.raises(UserError, match="references"):
        registry.create("attack", "strip-membership", {"attack": "rmia", "params": {"references": 0}})
    made = StripMembership(attack="rmia", params={"references": 4})
    assert made.budget() == {"shadows": 4}
    assert made.work(1) == (0.0, 2.0)
    assert made.runs() == ("rmia",)


def test_the_view_offers_no_second_probe() -> None:
    """Later probes show one model under fresh noise, which no training does."""
    world = memorising("mp-dp")
    assert isinstance(world.defense, ModelPerturbation)
    stripper = Stripper(world.view("client"), world.defense, "label-free", None)
    probe = stripper.of("probe", 0)
    assert probe is not None
    assert probe.context.probe == 0
    assert _stripping.received(world.view("client").of_kind("setup")[0]) is None
