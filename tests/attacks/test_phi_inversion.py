"""Phi inversion: exact where the algebra is, and far above the plain attack where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from leakboard.attacks.base import STOPPED, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.perturbation.phi_layer import Found, solve
from leakboard.attacks.reconstruction.perturbation.psi import by_auxiliary, features_of, settle
from leakboard.attacks.reconstruction.phi_inversion import PhiInversion
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.settings import SERVER, ObservedRounds
from leakboard.metrics.psnr import psnr
from tests.attacks.clock import LONG_AGO
from tests.defenses.makings import Run, create, run

VARIANTS = pytest.mark.parametrize("variant", ["V1", "V2"])
#: rounds after which the victim's 16 records are learned
ROUNDS = 150
#: no noise is on Phi either way
NOISE = pytest.mark.parametrize("noise", [True, False])


def finished(name: str, *, batch: int = 1, targets: int = 4, model: str = "mlp", **settings: Any) -> Run:
    """One round of float64 (unless told otherwise), with probes of `batch` records."""
    network = settings.pop("network", {"hidden": [64, 32]} if model == "mlp" else {"width": 4})
    precision = settings.pop("precision", "float64")
    observe = ObservedRounds(rounds=("first",), targets=targets // batch, probe_batch=batch)
    defense = create(name, **settings)
    return run(defense, model=model, model_parameters=network, observe=observe, rounds=1, precision=precision)


def known(made: Run, threat: str = "server") -> Knowledge:
    """What a threat knows; the auxiliary images are the last ones of the order in which `run` deals."""
    pool = load_pool(Digits())
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(derive_seed("run", 0)))
    return Knowledge(made.view(threat), made.defense, pool.take(order[-80:]), 3)


def task_for(made: Run) -> ReconstructionTask:
    assert made.observe is not None
    (batch,), probes = made.observe.sizes, made.observe.targets
    return ReconstructionTask("first", 0, probes, batch, None, (batch,) * probes)


def attacked(made: Run, threat: str = "server", **settings: Any) -> ReconstructionAnswer:
    return PhiInversion(**settings).reconstruct(known(made, threat), task_for(made))


def truth(made: Run) -> LabelledImages:
    assert made.observe is not None
    return made.shards["client:0"].select(torch.arange(made.observe.targets * made.observe.sizes[0]))


def parts_of(made: Run, threat: str = "server") -> list[CleanParts]:
    assert isinstance(made.defense, ModelPerturbation)
    view = made.view(threat)
    return [made.defense.clean_parts(o, view.public)["client:0"] for o in view.of_kind("probe")]


def solved(made: Run) -> list[Found]:
    knowledge = known(made)
    answers = [solve(knowledge, p, 40_000, 1e-3, torch.Generator().manual_seed(0)) for p in parts_of(made)]
    assert all(found is not None for found in answers)
    return [found for found in answers if found is not None]


def error(found: Found, batch: LabelledImages) -> float:
    """The largest pixel error of any record, each against its nearest answer."""
    return float((found.images[:, None] - batch.images[None]).abs().amax((2, 3, 4)).min(0).values.max())


# --- closed form ---------------------------------------------------------------------------------


@VARIANTS
@NOISE
@pytest.mark.parametrize("bias", [False, True])
def test_one_record_is_exact_whatever_noise_is_on_the_gradient(variant: str, noise: bool, bias: bool) -> None:
    """Tolerance: 1e-6 of the image range in float64, for images that came as float32."""
    network = {"hidden": [64, 32], "bias": bias}
    made = finished("mp-dp", variant=variant, noise=noise, clip=None, network=network)
    for index, found in enumerate(solved(made)):
        assert error(found, truth(made).select(torch.tensor([index]))) < 1e-6
        assert torch.equal(found.labels, truth(made).labels[index : index + 1])


@VARIANTS
@pytest.mark.parametrize("bias", [False, True])
def test_a_clipped_record_is_exact_too(variant: str, bias: bool) -> None:
    """The clipping factor follows from Psi; the oracle computes it in the model's precision."""
    made = finished("mp-dp", variant=variant, network={"hidden": [64, 32], "bias": bias})
    for index, found in enumerate(solved(made)):
        assert error(found, truth(made).select(torch.tensor([index]))) < 1e-5
        assert torch.equal(found.labels, truth(made).labels[index : index + 1])


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("bias", [False, True])
def test_four_records_are_taken_apart(clip: float | None, bias: bool) -> None:
    made = finished("mp-dp", batch=4, clip=clip, network={"hidden": [256, 32], "bias": bias})
    (found,) = solved(made)
    assert error(found, truth(made)) < 1e-5
    assert torch.equal(found.labels.sort().values, truth(made).labels.sort().values)


@pytest.mark.parametrize("name", ["mp", "mp-dp-naive", "mp-ldp", "mp-cdp", "mp-dp"])
def test_every_scheme_that_sends_phi_is_open(name: str) -> None:
    """Default settings, float32 messages: the answer of the attack itself, without a flag."""
    made = finished(name, precision="float32")
    answer = attacked(made)
    assert answer.flags == ()
    assert answer.diagnostics == {"solved": 4.0}
    assert float((torch.cat(answer.images) - truth(made).images).abs().max()) < 1e-2


def test_keys_open_pile_and_the_server_alone_does_not() -> None:
    made = finished("pile", crypto="sampled", key_bits=256, sample_values=30, precision="float32")
    answer = attacked(made, "server+keys")
    assert float((torch.cat(answer.images) - truth(made).images).abs().max()) < 1e-2
    with pytest.raises(Unsupported, match=r"\(server\) of pile does not hold the victim's own Phi without noise"):
        attacked(made)


# --- labels from Psi -----------------------------------------------------------------------------


@VARIANTS
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    ("model", "network"),
    [("convnet", {"width": 4}), ("convnet", {"width": 4, "bias": True}), ("resnet8", {"width": 4})],
)
def test_labels_and_clipping_factors_of_one_record(
    variant: str, clip: float | None, model: str, network: dict[str, Any]
) -> None:
    """Any network, no image yet: all labels, and the factors that the oracle gave."""
    made = finished("mp-dp", model=model, network=network, variant=variant, clip=clip, targets=8)
    knowledge = known(made)
    records = truth(made)
    model_ = parts_of(made)[0].model
    for index, parts in enumerate(parts_of(made)):
        features = features_of(parts)
        expected = by_auxiliary(knowledge.task, parts, features, knowledge.auxiliary)
        found = settle(features.label, parts.directions, features.factor, expected)
        image, label = records.images[index : index + 1], records.labels[index : index + 1]
        gradient, _ = knowledge.task.gradient(model_, image, label)
        norm = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
        assert int(found.label) == int(label)
        assert float(found.factor) == pytest.approx(min(1.0, (clip or torch.inf) / float(norm)), rel=1e-3)


# --- matching ------------------------------------------------------------------------------------


@VARIANTS
def test_matching_is_far_above_the_plain_attack_on_the_noisy_gradient(variant: str) -> None:
    """The control: the same optimiser on the gradient that the scheme means the server to have; margin 6 dB."""
    made = finished("mp-dp", model="convnet", network={"width": 8}, variant=variant, precision="float32")
    settings: dict[str, Any] = {"iterations": 150, "tv": 0.01}
    ours = psnr(torch.cat(attacked(made, **settings).images), truth(made).images)
    plain = InvertingGradients(**settings).reconstruct(known(made), task_for(made))
    theirs = psnr(torch.cat(plain.images), truth(made).images)
    assert bool((ours > theirs + 6).all()), (ours, theirs)


def test_a_model_that_has_learned_its_records_hides_nothing() -> None:
    """V1's exact gradient alone fades with the residuals (8 dB here); margin 6 dB over the mean image."""
    observe = ObservedRounds(rounds=("last",), targets=4, probe_batch=1)
    made = run(
        create("mp-dp", variant="V1", noise=False),
        model="convnet",
        model_parameters={"width": 8},
        observe=observe,
        rounds=ROUNDS,
        batch_size=16,
        learning_rate=0.1,
        momentum=0.9,
    )
    asked = ReconstructionTask("last", ROUNDS - 1, 4, 1, None, (1,) * 4)
    answer = PhiInversion(iterations=150, tv=0.01).reconstruct(known(made), asked)
    records = truth(made).images
    guess = psnr(records.mean(0, keepdim=True).expand_as(records), records)
    assert float((psnr(torch.cat(answer.images), records) - guess).mean()) > 6


def test_a_batch_through_a_convolution_is_matched_without_labels() -> None:
    made = finished("mp-dp", model="convnet", network={"width": 8}, batch=2, precision="float32")
    answer = attacked(made, iterations=150, tv=0.01)
    assert answer.flags == ()
    assert answer.diagnostics["matching_cost"] < 0.01
    assert all(images.shape == (2, 1, 32, 32) for images in answer.images)


def test_at_its_deadline_it_says_so() -> None:
    made = finished("mp-dp", model="convnet", targets=2, precision="float32")
    late = replace(known(made), deadline=LONG_AGO)
    answer = PhiInversion().reconstruct(late, task_for(made))
    assert any(flag.startswith(STOPPED) for flag in answer.flags)


# --- where it says no, and what it remarks ---------------------------------------------------------


@pytest.mark.parametrize("name", ["fedsgd", "secagg"])
def test_without_model_perturbation_there_is_no_phi(name: str) -> None:
    made = finished(name, precision="float32")
    with pytest.raises(Unsupported, match=f"clients of '{name}' send no Phi"):
        attacked(made)


def test_the_hardened_scheme_shows_no_phi_to_anybody() -> None:
    made = finished("mp-dp+", precision="float32")
    for threat in ("server", "server+clients:2", "client"):
        with pytest.raises(Unsupported, match="does not hold the victim's own Phi without noise"):
            attacked(made, threat)


def test_a_phi_of_zeros_is_flagged() -> None:
    made = finished("mp", targets=2, precision="float32")
    knowledge = known(made)
    observations = []
    for o in knowledge.view.observations:
        messages = tuple(
            replace(m, payload={**m.payload, **{part: _zeros(m.payload[part]) for part in ("psi", "phi")}})
            if m.kind == "update"
            else m
            for m in o.messages
        )
        observations.append(replace(o, messages=messages))
    blank = replace(knowledge, view=replace(knowledge.view, observations=tuple(observations)))
    answer = PhiInversion(iterations=2).reconstruct(blank, task_for(made))
    assert "Phi all zero" in answer.flags
    assert all(bool(images.isfinite().all()) for images in answer.images)


def _zeros(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in values.items()}


def test_it_is_always_adaptive() -> None:
    assert PhiInversion().adaptive
    assert PhiInversion.can_adapt
    assert not PhiInversion.allows("client")
    assert SERVER in PhiInversion.threats
