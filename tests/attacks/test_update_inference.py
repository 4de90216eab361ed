"""Two consecutive models of a client say who was in the others' batches, perturbed or not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipTask
from leakboard.attacks.building_blocks.stripping import Stripper, data_free, strip
from leakboard.attacks.membership.building_blocks.perturbed_steps import (
    Reference,
    SeenStep,
    first_scales,
    fitted,
    ratios,
    reference,
    seen_step,
    visible_loss,
)
from leakboard.attacks.membership.building_blocks.signals import joined
from leakboard.attacks.membership.update_inference import InferredMean, UpdateInference
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, VICTIM, Dropout, ObservedRounds, client_name
from leakboard.federation.task import task_of
from leakboard.metrics.asr import asr
from leakboard.metrics.auc import auc
from tests.defenses.makings import Run, create, flat, relative, run
from tests.defenses.small import batches, small_run

WATCH = ObservedRounds(rounds=("first", "last"), targets=2)
#: of model perturbation and its relatives, without noise
PERTURBED: dict[str, tuple[str, dict[str, Any]]] = {
    "mp": ("mp", {}),
    "mp-V1": ("mp", {"variant": "V1"}),
    "mp-dp": ("mp-dp", {"noise": False, "clip": None}),
    "pile": ("pile", {"key_bits": 256, "sample_values": 0}),
}


def known_by(made: Run, auxiliary: LabelledImages, threat: str = "client") -> Knowledge:
    return Knowledge(made.view(threat), made.defense, auxiliary, 5)


def asked(
    made: Run, insiders: LabelledImages, outsiders: LabelledImages, auxiliary: LabelledImages, index: int = 0
) -> tuple[MembershipAnswer, Tensor]:
    """The answer about some records and others, shuffled, and which of them were the former."""
    both = joined(insiders, outsiders)
    order = torch.randperm(len(both), generator=torch.Generator().manual_seed(3))
    task = MembershipTask(both.select(order), round_index=index)
    return UpdateInference().infer(known_by(made, auxiliary), task), order < len(insiders)


def others(count: int, made: Run, seed: int = 99) -> LabelledImages:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, *made.public.shape, generator=generator)
    return LabelledImages(images, torch.randint(0, made.public.classes, (count,), generator=generator))


def victims(made: Run, index: int = 0) -> LabelledImages:
    """What the victim trained on in a round."""
    context = next(o for o in made.rounds() if o.context.round == index).context
    return batches(made, context)[VICTIM]


# --- in plain -----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [4, 24])
@pytest.mark.parametrize(
    ("name", "settings"), [("fedsgd", {}), ("secagg", {}), ("ldp", {"noise": False, "clip": 0.05})]
)
def test_of_two_clients_the_other_has_no_secret(name: str, settings: dict[str, Any], batch: int) -> None:
    """Float32; batches under and over the 16 inputs: by the span of the rows, by regression."""
    made = small_run(
        create(name, **settings),
        hidden=(40,),
        clients=2,
        shard=24,
        batch_size=batch,
        precision="float32",
        observe=WATCH,
    )
    answer, truth = asked(made, victims(made), others(batch, made), others(60, made, 7))
    assert "the own part taken off" in answer.flags[0]
    assert auc(answer.scores, truth) == 1
    assert asr(answer.decisions, truth) > 0.9


def test_a_mean_over_more_clients_tells_members_too_where_all_records_are_accounted_for() -> None:
    """Five clients, 20 records each, a network with more weights than that."""
    made = run(create("fedsgd"), model="convnet", model_parameters={"width": 4}, clients=5, shard=20, batch_size=20,
               rounds=1, observe=WATCH)  # fmt: skip
    rest = joined(*(made.shards[client_name(i)] for i in range(2, 5)))
    answer, truth = asked(made, victims(made), others(40, made), rest)
    assert auc(answer.scores, truth) > 0.99


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_the_mean_gradient_is_read_off_the_step(momentum: float, decay: float) -> None:
    """All rounds are kept here, so momentum can be taken off."""
    made = small_run(
        create("fedsgd"), hidden=(6,), clients=3, rounds=3, momentum=momentum, weight_decay=decay, observe=WATCH
    )
    for index in range(3):
        if index == 1:
            continue  # no probe
        (mixture,) = UpdateInference().mixtures(known_by(made, others(20, made)), index).values()
        sent = {m.sender: m.payload["gradient"] for m in made.rounds()[index].messages if m.kind == "update"}
        true = (flat(sent["client:0"]) + flat(sent["client:2"])) / 2
        assert relative(flat(mixture.mean.values), true) < 1e-9
        assert (mixture.mean.clients, mixture.mean.records) == (2, 8)


def test_momentum_that_cannot_be_taken_off_is_flagged() -> None:
    made = small_run(create("fedsgd"), rounds=3, momentum=0.9, observe=WATCH, record_all=False)
    flags = [asked(made, victims(made, i), others(4, made), others(60, made, 7), i)[0].flags[0] for i in (0, 2)]
    assert ["momentum in it" in flag for flag in flags] == [False, True]


@pytest.mark.parametrize("missing", [(2,), (0, 1, 2)])
def test_momentum_is_taken_off_unless_the_round_before_was_lost(missing: tuple[int, ...]) -> None:
    """A step was made without those who were missing; a round without anybody changes nothing."""
    gone = tuple(Dropout(client=client, round=1, step="update") for client in missing)
    made = small_run(create("fedsgd"), hidden=(6,), clients=3, rounds=3, momentum=0.9, observe=WATCH, dropouts=gone)
    (mixture,) = UpdateInference().mixtures(known_by(made, others(20, made)), 2).values()
    assert isinstance(mixture, InferredMean)
    assert mixture.exact == (len(missing) < 3)
    sent = {m.sender: m.payload["gradient"] for m in made.rounds()[2].messages if m.kind == "update"}
    true = (flat(sent["client:0"]) + flat(sent["client:2"])) / 2
    assert (relative(flat(mixture.mean.values), true) < 1e-9) == mixture.exact


def test_a_lost_round_has_no_step_to_attack() -> None:
    """Momentum of the round before must not be taken for the mean of a round that changed nothing."""
    gone = tuple(Dropout(client=client, round=2, step="update") for client in range(3))
    made = small_run(create("fedsgd"), hidden=(6,), clients=3, rounds=3, momentum=0.9, observe=WATCH, dropouts=gone)
    with pytest.raises(Unsupported, match="the round was lost"):
        UpdateInference().mixtures(known_by(made, others(20, made)), 2)


def test_where_somebody_dropped_out_nothing_is_taken_off() -> None:
    """The mean may be over all or over those who stayed; the attacker's records beside the candidates remain."""
    made = small_run(create("fedsgd"), clients=4, observe=WATCH, dropouts=(Dropout(client=3, round=0, step="update"),))
    answer, _ = asked(made, victims(made), others(4, made), others(60, made, 7))
    assert "taken off" not in answer.flags[0]


# --- through perturbation -----------------------------------------------------------------------


@cache
def perturbed(title: str, batch: int = 20) -> Run:
    """Three clients whose batches are their whole shards; one step."""
    name, settings = PERTURBED[title]
    return run(create(name, **settings), model="convnet", model_parameters={"width": 4}, clients=3, shard=batch,
               batch_size=batch, rounds=1, observe=WATCH, seed=5)  # fmt: skip


def distributed(made: Run, kind: str) -> Parameters:
    """The server's own model, in float64."""
    model: Parameters = made.rounds(kind)[0].states[SERVER]["distributed"]
    return {name: value.double() for name, value in model.items()}


def seen_by_client(made: Run) -> tuple[SeenStep, Stripper]:
    assert isinstance(made.defense, ModelPerturbation)
    stripper = Stripper(made.view("client"), made.defense, "labelled", None)
    before, after = stripper.of("train", 0), stripper.of("probe", 0)
    assert before is not None
    assert after is not None
    return seen_step(before, after, stripper.expanded, made.public), stripper


@pytest.mark.parametrize("title", PERTURBED)
def test_the_step_is_seen_in_every_layer_whatever_r_is(title: str) -> None:
    made = perturbed(title)
    seen, stripper = seen_by_client(made)
    network = stripper.expanded.plain
    forms = [canonical_form(distributed(made, kind), network) for kind in ("train", "probe")]
    true = seen.cleaned({n: (v - forms[1][n]) / made.public.training.learning_rate for n, v in forms[0].items()})
    for name, value in seen.values.items():
        cosine = torch.cosine_similarity(value.flatten(), true[name].flatten(), dim=0)
        assert float(cosine) > 0.9999, name
    kept = seen.values[seen.last].norm() / (forms[0][seen.last] - forms[1][seen.last]).norm()
    assert float(kept) * made.public.training.learning_rate > 0.3  # the part along u and u' alone is gone


def test_the_visible_parts_of_records_add_up_to_the_visible_step() -> None:
    """With the true model: the mean of P J(g_b) over all clients' records is the seen step, to first order."""
    made = perturbed("mp")
    seen, _ = seen_by_client(made)
    true, everyone = distributed(made, "train"), joined(*made.shards.values())
    loss = visible_loss(task_of(made.public), true, seen)
    zero = {name: torch.zeros_like(value) for name, value in seen.values.items()}
    targets = torch.nn.functional.one_hot(everyone.labels, made.public.classes).double()
    found = torch.func.grad(lambda x: loss(x, everyone.images.double(), targets))(zero)
    for name, value in seen.values.items():
        assert relative(found[name], value) < 0.02, name


def test_scales_and_r_are_found_where_the_reference_is_the_true_gradient() -> None:
    made = perturbed("mp")
    seen, stripper = seen_by_client(made)
    before = stripper.of("train", 0)
    assert before is not None
    r, true = data_free(before, seen.expanded), distributed(made, "train")
    known = reference(seen, before, r, made.public, joined(*made.shards.values()), torch.ones(60))
    fit = fitted(seen, known, 0.0, free_r=True)
    assert fit.misfit < 1e-3
    for name, value in true.items():
        assert relative(fit.model[name], value) < 0.05, name  # the step is not infinitely small
    first, last, right = (
        canonical_form(model, seen.expanded.plain)[seen.last]
        for model in (strip(before, r, seen.expanded), fit.model, true)
    )
    assert relative(last, right) < 0.5 * relative(first, right)
    held = fitted(seen, known, 0.0, free_r=False)
    assert fit.misfit < held.misfit


def test_the_reference_is_quadratic_in_r() -> None:
    made = perturbed("mp-V1")
    seen, stripper = seen_by_client(made)
    before, own = stripper.of("train", 0), made.shards["client:1"]
    assert before is not None
    r = stripper.r(before)
    known: Reference = reference(seen, before, r, made.public, own, torch.ones(len(own)))
    errors = torch.linspace(-1, 2, made.public.classes, dtype=torch.float64)
    form, gradient = known.at(errors, seen.last)
    exact = task_of(made.public).gradient(form, own.images.double(), own.labels)[0]
    assert all(relative(gradient[name], exact[name]) < 1e-9 for name in exact)


def test_scales_turn_a_canonical_form_into_a_model_that_computes_the_same() -> None:
    made = perturbed("mp")
    _, stripper = seen_by_client(made)
    wiring, network = stripper.expanded.wiring, stripper.expanded.plain
    form = canonical_form(distributed(made, "train"), network)
    scales = [scale * (1 + torch.arange(len(scale))) for scale in first_scales(wiring)]
    ratio = ratios(form, wiring, scales)
    again = canonical_form({name: value * ratio[name] for name, value in form.items()}, network)
    assert all(torch.allclose(again[name], value) for name, value in form.items())
    assert [round(float(scale[0]), 6) for scale in first_scales(wiring)] == [0.57735, 0.333333, 0.19245]


@pytest.mark.parametrize("title", PERTURBED)
def test_members_are_found_through_the_perturbation(title: str) -> None:
    """The other clients' records are among the auxiliary ones.

    20 members, 60 others: a coin has an AUC over 0.75 in fewer than 0.1 % of all runs (Mann-Whitney: sd 0.075).
    """
    made = perturbed(title)
    dealt = run(create("fedsgd"), clients=8, shard=20, batch_size=20, rounds=1, seed=5).shards
    outsiders = joined(*(dealt[client_name(i)] for i in range(3, 6)))
    auxiliary = joined(made.shards["client:2"], *(dealt[client_name(i)] for i in range(6, 8)))
    answer, truth = asked(made, victims(made), outsiders, auxiliary)
    assert auc(answer.scores, truth) > 0.8
    # a null control: of records that nobody trained on some are called members
    answer, called = asked(made, dealt["client:6"], outsiders, dealt["client:7"])
    assert abs(auc(answer.scores, called) - 0.5) < 3.3 * 0.075


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedsgd", "mp"])
def test_a_client_without_two_models_is_refused(name: str) -> None:
    made = small_run(create(name), observe=WATCH, record_all=False)
    task = MembershipTask(others(4, made), round_index=0)
    known = known_by(made, others(20, made, 7))
    for kind in ("train", "probe"):
        kept = tuple(replace(o, messages=()) if o.context.kind == kind else o for o in known.view.observations)
        absent = replace(known, view=replace(known.view, observations=kept))
        with pytest.raises(
            Unsupported, match="client:1 did not receive the models before and after the step of round 0"
        ):
            UpdateInference().infer(absent, task)
    with pytest.raises(Unsupported, match="round 5 was not observed"):
        UpdateInference().infer(known, replace(task, round_index=5))


@pytest.mark.parametrize("name", ["fedsgd", "mp"])
def test_a_training_that_diverged_is_refused(name: str) -> None:
    made = small_run(create(name), observe=WATCH, record_all=False)
    known = known_by(made, others(20, made, 7))

    def spoilt(value: Any) -> Any:
        return {key: tensor * torch.nan for key, tensor in value.items()} if isinstance(value, dict) else value

    kept = []
    for o in known.view.observations:
        messages = tuple(
            replace(m, payload={key: spoilt(value) for key, value in m.payload.items()}) for m in o.messages
        )
        kept.append(replace(o, messages=messages) if o.context.kind == "probe" else o)
    broken = replace(known, view=replace(known.view, observations=tuple(kept)))
    with pytest.raises(Unsupported, match="diverged"):
        UpdateInference().infer(broken, MembershipTask(others(4, made), round_index=0))


def test_only_the_first_probe_counts() -> None:
    """Later ones show the same model under fresh perturbations, which no training does."""
    made = perturbed("mp")
    known = known_by(made, others(20, made, 7))
    cut = tuple(o for o in known.view.observations if not o.context.probe)
    assert len(cut) < len(known.view.observations)
    task = MembershipTask(others(8, made), round_index=0)
    found = [
        UpdateInference().infer(k, task) for k in (known, replace(known, view=replace(known.view, observations=cut)))
    ]
    assert torch.equal(found[0].scores, found[1].scores)


def test_row_spaces_are_for_plain_means_of_one_round() -> None:
    """A canonical step is no combination of inputs, and momentum brings those of other rounds."""
    late = small_run(create("fedsgd"), rounds=3, momentum=0.9, observe=WATCH, record_all=False)
    for made, index, exact in ((perturbed("mp"), 0, False), (late, 0, True), (late, 2, False)):
        (mixture,) = UpdateInference().mixtures(known_by(made, others(20, made)), index).values()
        assert isinstance(mixture, InferredMean)
        assert mixture.exact is exact
