"""Attacks that know the law of the noise, and a server that chooses it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from leakboard.attacks.base import NOTHING_TO_IMITATE, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.adversarial_r import AdversarialR
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.likelihood import (
    ImagePrior,
    Law,
    LikelihoodMatcher,
    Scales,
    law_of,
    references,
)
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Defense, Noise
from leakboard.defenses.building_blocks.model_perturbation import SKEW, unpack_secret
from leakboard.defenses.noise.budget import clipping
from leakboard.defenses.perturbation.server import skewed
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, VICTIM, ObservedRounds, client_name
from leakboard.federation.task import task_of
from tests.defenses.makings import Run, create, flat, relative, run, true_gradient
from tests.defenses.small import KEYS, chi_square_fits, is_gaussian, small_run

WATCH = ObservedRounds(rounds=("first", "last"), targets=2)


def reconstruction(made: Run, index: int = 0) -> ReconstructionTask:
    return ReconstructionTask("first", index, 2, 1, None, (1, 1))


def knows(made: Run, threat: str) -> Knowledge:
    auxiliary = [made.shards[client_name(i)] for i in range(1, len(made.shards))]
    images = torch.cat([shard.images for shard in auxiliary])
    labels = torch.cat([shard.labels for shard in auxiliary])
    return Knowledge(made.view(threat), made.defense, LabelledImages(images, labels), 5)


def noise_of(made: Run, threat: str, kind: str = "probe") -> list[tuple[Parameters, Noise]]:
    """What is wrong with the victim's gradient as it is read, and the law that the defense tells; by context."""
    found = []
    for at in [o for o in made.view(threat).observations if o.context.kind == kind]:
        reading = made.defense.read(at, made.public)
        assert reading.model is not None
        true = true_gradient(made, reading.model, made.batch(at.context, 0))
        # one record: clipped to norm 1
        length = float(flat(true).norm())
        true = {name: value * min(1.0, 1 / length) for name, value in true.items()}
        seen = reading.gradients[VICTIM].values
        wrong = {name: seen[name] - true[name] for name in true}
        found.append((wrong, made.defense.noise_scale(at, made.public)[VICTIM]))
    assert found
    return found


# --- the law that a defense tells --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "threat"),
    [
        ("mp-dp", {}, "server"),
        ("mp-dp", {}, "server+clients:1"),
        ("mp-dp", {"variant": "V1", "mode": "corrected"}, "server+clients:2"),
        ("mp-dp", {"neighbours": 1}, "server+clients:2"),
        ("mp-ldp", {}, "server"),
        ("mp-dp-naive", {}, "server"),
        ("ldp", {}, "server"),
        ("tp-smc", {}, "server+keys"),
    ],
)
def test_noise_divided_by_its_deviation_has_variance_one(name: str, settings: dict[str, Any], threat: str) -> None:
    """Sums of uniforms vary less than normals, so the chi-square bounds (0.1 % of all keys) are wide enough."""
    made = small_run(create(name, **KEYS.get(name, {}), **settings), hidden=(20,), observe=WATCH)
    scaled = torch.cat([flat(wrong) / flat(law.deviation) for wrong, law in noise_of(made, threat)])
    assert chi_square_fits(float(scaled.square().sum()), len(scaled), 1e-3)


@pytest.mark.parametrize(("name", "settings"), [("mp-dp+", {"honest": 2}), ("tp-smc", {}), ("hybridalpha", {})])
def test_the_noise_of_a_mean_over_clients_has_the_deviation_that_is_told(name: str, settings: dict[str, Any]) -> None:
    """The same keys without noise give the same round but for it; rounding to codes is far smaller."""
    noisy, clean = (
        small_run(create(name, **KEYS.get(name, {}), **settings, noise=noise), hidden=(20,), observe=WATCH)
        for noise in (True, False)
    )
    at, same = (next(o for o in made.view("server").of_kind("train", 0)) for made in (noisy, clean))
    seen, exact = (
        made.defense.read(o, made.public).gradients[AGGREGATE].values for made, o in ((noisy, at), (clean, same))
    )
    law = noisy.defense.noise_scale(at, noisy.public)[AGGREGATE]
    scaled = flat({n: (seen[n] - exact[n]) / law.deviation[n] for n in seen})
    assert chi_square_fits(float(scaled.square().sum()), len(scaled), 1e-3)


def test_of_normal_noise_the_whole_law_is_right() -> None:
    made = small_run(create("mp-dp-naive"), hidden=(20,), observe=WATCH)
    for wrong, law in noise_of(made, "server"):
        assert law.bound is None
        assert is_gaussian(flat(wrong) / flat(law.deviation), 1.0, 1e-3)


def test_when_all_neighbours_collude_the_noise_is_uniform_within_the_bound() -> None:
    """K = 3, both others collude: given R only eta is left (Kolmogorov-Smirnov, 0.1 % of all keys)."""
    made = small_run(create("mp-dp"), hidden=(20,), observe=WATCH)
    assert all(law.bound is None for _, law in noise_of(made, "server+clients:1"))
    for wrong, law in noise_of(made, "server+clients:2"):
        assert law.bound is not None
        share = flat(wrong) / flat(law.bound)
        assert float(share.abs().max()) <= 1
        assert stats.kstest(share.numpy(), "uniform", args=(-1, 2)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["fedsgd", "mp", "mp-cdp", "pile", "secagg", "grad-prune"])
def test_gradients_without_noise_have_no_law(name: str) -> None:
    made = small_run(create(name, **KEYS.get(name, {})), observe=WATCH)
    assert all(not made.defense.noise_scale(at, made.public) for at in made.view("server").observations)


# --- the likelihood ----------------------------------------------------------------------------


def test_the_misfit_is_minus_twice_the_log_likelihood_less_that_of_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    observed, candidate = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    deviation = torch.rand(50, generator=generator, dtype=torch.float64) + 0.1
    law = Law(observed, 1 / deviation, None)

    def log_density(mean: Tensor) -> float:
        return float(np.sum(stats.norm.logpdf(observed.numpy(), mean.numpy(), deviation.numpy())))

    expected = -2 * (log_density(candidate) - log_density(torch.zeros(50)))
    assert float(law.misfit(candidate[None])) == pytest.approx(expected)


def test_the_excess_is_zero_within_the_bounds_alone() -> None:
    law = Law(torch.zeros(3), torch.ones(3), torch.tensor([1.0, 2.0, 3.0]))
    inside, outside = torch.tensor([[1.0, -2.0, 3.0]]), torch.tensor([[2.0, -2.0, 6.0]])
    assert float(law.excess(inside)) == 0
    assert float(law.excess(outside)) == 2  # 2/1 - 1 + 6/3 - 1
    assert (float(law.outside(inside)), float(law.outside(outside))) == (0, 2)


def test_costs_are_those_of_the_law_and_their_slopes_its_derivatives() -> None:
    made = small_run(create("mp-dp", noise=False, clip=None), hidden=(20,), observe=WATCH)
    task = task_of(made.public)
    problems = reconstruction(made).problems(knows(made, "server"))
    generator = torch.Generator().manual_seed(1)
    deviations = {n: torch.rand(v.shape, generator=generator) + 0.5 for n, v in problems[0].model.items()}
    labels = torch.tensor([[0], [2]])
    images = torch.rand(2, 1, *made.public.shape, generator=generator)
    for bound in (None, {n: 0.01 * d for n, d in deviations.items()}):
        laws = tuple(law_of(task, p, Noise(deviations, bound), (clipping(0.1),), "cpu") for p in problems)
        scales = (Scales(300.0, 2.0, 9.0), Scales(50.0, 4.0, 9.0))
        costs, slopes = LikelihoodMatcher(task, problems, labels, 1, "cpu", laws, scales).slopes(images)
        for i in range(2):
            x = images[i].double().requires_grad_()
            weights = {n: v.double().requires_grad_() for n, v in problems[i].model.items()}
            loss = task.loss(task.logits(weights, x), labels[i])
            g = torch.cat([v.flatten() for v in torch.autograd.grad(loss, list(weights.values()), create_graph=True)])
            g = g * (0.1 / g.norm()).clamp(max=1)
            seen, s = flat(problems[i].gradient.values), flat(deviations)
            if bound is None:
                cost = ((g - seen).square() - seen.square()) / s.square()
                cost = cost.sum() / scales[i].energy * (1.0 if i == 0 else 0.5)
            else:
                cost = ((g - seen).abs() / (0.01 * s) - 1).clamp(min=0).sum() / scales[i].excess
            assert float(costs[i]) == pytest.approx(float(cost.detach()), rel=1e-3, abs=1e-6)
            (slope,) = torch.autograd.grad(cost, x)
            assert relative(slopes[i], slope) < 1e-3


def test_the_image_prior_is_a_gaussian_and_its_slope_a_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    data, x = torch.rand(30, 1, 3, 3, generator=generator), torch.rand(2, 2, 1, 3, 3, generator=generator).double()
    cost, slope = ImagePrior(data, 0.7, "cpu").slopes(x)
    centred = data.double().flatten(1) - data.double().flatten(1).mean(0)
    covariance = centred.T @ centred / 30 + 1e-3 * torch.eye(9, dtype=torch.float64)
    y = x.clone().requires_grad_()
    away = y.flatten(2) - data.double().flatten(1).mean(0)
    expected = 0.7 * 0.5 * torch.einsum("pmi,ij,pmj->p", away, torch.linalg.inv(covariance), away) / (2 * 9)
    assert torch.allclose(cost, expected)
    assert torch.allclose(slope, torch.autograd.grad(expected.sum(), y)[0])


# --- the attack --------------------------------------------------------------------------------


def error(made: Run, answer: ReconstructionAnswer) -> float:
    """Mean squared error over the victim's first two records."""
    true = made.shards[VICTIM].images[:2]
    return float((torch.cat(answer.images) - true).square().mean())


def digits_run(defense: Defense, **settings: Any) -> Run:
    return run(
        defense,
        model="convnet",
        model_parameters={"width": 4},
        shard=60,
        rounds=1,
        observe=ObservedRounds(rounds=("first",), targets=2),
        **settings,
    )


def test_with_all_neighbours_colluding_the_box_gives_the_label_and_more_than_the_mean_image() -> None:
    made = digits_run(create("mp-dp", epsilon=30.0))  # so small a network needs less noise to show it
    known, task = knows(made, "server+clients:2"), reconstruction(made)
    attack = NoiseAware(iterations=30)
    answer = attack.reconstruct(known, task)
    mean = known.auxiliary.images.mean(0, keepdim=True)
    assert error(made, answer) < error(made, ReconstructionAnswer((mean, mean)))
    laws = attack._laws(known, task, task.problems(known))
    assert laws is not None
    seen = references(known, task.problems(known)[0].model, laws, 120)
    assert int(seen.outside.min()) > 0  # no other record is possible, and the true one is
    for i, law in enumerate(laws):
        true = true_gradient(made, task.problems(known)[i].model, made.shards[VICTIM].select(torch.tensor([i])))
        assert float(law.outside(law.sent(flat(true)[None].float()))) == 0
    assert [int(seen.label(i, 10)) for i in range(2)] == made.shards[VICTIM].labels[:2].tolist()


def test_what_drowns_in_noise_is_answered_by_the_mean_image() -> None:
    made = digits_run(create("mp-dp", epsilon=0.01))
    known = knows(made, "server")
    answer = NoiseAware(iterations=2).reconstruct(known, reconstruction(made))
    assert any(flag.startswith("drowned in noise") for flag in answer.flags)
    mean = known.auxiliary.images.mean(0)
    assert all(float((image[0] - mean).abs().max()) < 0.05 for image in answer.images)


def test_without_noise_it_is_inverting_gradients() -> None:
    made = digits_run(create("fedsgd"))
    settings: dict[str, Any] = {"iterations": 3, "learning_rate": 0.1, "tv": 0.01}
    ours = NoiseAware(**settings, mimic=False).reconstruct(knows(made, "server"), reconstruction(made))
    theirs = InvertingGradients(**settings).reconstruct(knows(made, "server"), reconstruction(made))
    assert all(torch.equal(a, b) for a, b in zip(ours.images, theirs.images, strict=True))
    assert any(flag.startswith(NOTHING_TO_IMITATE) for flag in ours.flags)


def test_all_rounds_together_add_up_their_energy() -> None:
    made = run(
        create("mp-ldp", epsilon=1e3),
        model="convnet",
        model_parameters={"width": 2},
        shard=20,
        learning_rate=1e-9,
        observe=WATCH,
    )
    one, both = (
        NoiseAware(iterations=1, rounds=rounds).reconstruct(knows(made, "server"), reconstruction(made))
        for rounds in ("one", "all")
    )
    # the model has not moved, and R is another one: E[1 / R^2] is finite but wide
    assert 1.2 < both.diagnostics["energy"] / one.diagnostics["energy"] < 5


# --- a server that deviates --------------------------------------------------------------------

NETWORKS: dict[str, dict[str, Any]] = {"mlp": {"hidden": [12, 8]}, "convnet": {"width": 2}, "resnet8": {"width": 2}}


@pytest.mark.parametrize("variant", ["V1", "V2"])
@pytest.mark.parametrize("model", NETWORKS)
def test_clients_see_the_same_transitional_layers_and_the_recovery_stays_exact(model: str, variant: str) -> None:
    """The same keys, so the same draws: all that differs is the skew. Float32 clients, as in runs."""
    honest = create("mp-dp", noise=False, clip=None, variant=variant)
    bent = honest.deviate()
    assert bent is not None
    assert bent.parameters() == honest.parameters()
    usual, skewed_ = (
        run(d, model=model, model_parameters=NETWORKS[model], rounds=1, observe=WATCH) for d in (honest, bent)
    )
    sent, expected = (
        next(m.payload["model"] for m in made.rounds()[0].messages if m.kind == "model") for made in (skewed_, usual)
    )
    assert all(torch.allclose(sent[n], expected[n], rtol=1e-6) for n in expected if n.endswith("scale"))
    # what gives the server away to whoever looks: a clean layer has small weights, a drowned one large ones
    weights = [n for n in expected if n.endswith("weight")]
    grown = [float((sent[n].double() / expected[n].double()).median()) for n in weights]
    first = SKEW if model == "mlp" else 1 / SKEW
    assert grown == pytest.approx([first, *[1.0] * (len(weights) - 2), 1 / first], rel=1e-4)
    for made in (usual, skewed_):
        probe = made.rounds("probe")[0]
        found = honest.read(probe, made.public).gradients[VICTIM].values  # honest code: R is in the server's state
        true = true_gradient(made, probe.states[SERVER]["distributed"], made.batch(probe.context, 0))
        assert relative(flat({n: found[n] for n in true}), flat(true)) < 1e-3


@pytest.mark.parametrize("name", ["mp-ldp", "mp-dp-naive"])
def test_the_ablations_with_noise_on_the_gradient_alone_are_open_to_it_too(name: str) -> None:
    assert create(name).deviate() is not None


@pytest.mark.parametrize(("model", "clean"), [("mlp", 0), ("convnet", -1)])
def test_the_noise_on_one_layer_falls_by_the_skew(model: str, clean: int) -> None:
    settings = {"hidden": [12]} if model == "mlp" else {"width": 2}
    bent = create("mp-dp").deviate()
    assert bent is not None
    deviations = []
    for defense in (create("mp-dp"), bent):
        made = run(defense, model=model, model_parameters=settings, rounds=1, observe=WATCH)
        law = defense.noise_scale(made.rounds("probe")[0], made.public)[VICTIM]
        deviations.append(list(law.deviation.values()))
    ratios = [float((b / a).mean()) for a, b in zip(*deviations, strict=True)]
    expected = [1.0] * len(ratios)
    expected[clean], expected[-1 - clean] = SKEW, 1 / SKEW
    assert ratios == pytest.approx(expected, rel=1e-6)


def test_the_deviating_server_does_not_train_what_it_drowned() -> None:
    bent = create("mp-dp").deviate()
    assert bent is not None
    made = run(bent, model="convnet", model_parameters={"width": 2}, rounds=3, observe=WATCH)
    first, last = made.rounds()[0].states[SERVER]["distributed"], made.outcome.model
    moved = {name: float((last[name] - first[name]).abs().max()) for name in last}
    assert moved["0.weight"] == 0
    assert min(value for name, value in moved.items() if name != "0.weight") > 0


@pytest.mark.parametrize("name", ["mp", "mp-cdp", "mp-dp+", "pile"])
def test_others_have_no_such_strategy(name: str) -> None:
    assert create(name, **KEYS.get(name, {})).deviate() is None


def test_an_adversarial_server_reads_images_off_a_fully_connected_layer() -> None:
    bent = create("mp-dp").deviate()
    assert bent is not None
    made = replace(
        run(
            bent,
            model_parameters={"hidden": [32]},
            shard=60,
            rounds=1,
            observe=ObservedRounds(rounds=("first",), targets=2),
        ),
        defense=create("mp-dp"),
    )
    answer = AdversarialR().reconstruct(knows(made, "server:active"), reconstruction(made))
    assert error(made, answer) < 1e-4  # 40 dB


def test_a_skewed_secret_hides_the_same_function() -> None:
    """r s, gamma alpha and every R between two activations are what they were."""
    made = run(create("mp-dp"), model_parameters={"hidden": [6, 5]}, rounds=1, observe=WATCH)
    secret = unpack_secret(made.rounds()[0].states[SERVER]["secret"])
    other = skewed(secret, 1e-3)
    for (r, s), (r2, s2) in zip(zip(secret.r, secret.s, strict=True), zip(other.r, other.s, strict=True), strict=True):
        assert torch.allclose(r * s, r2 * s2)
    assert torch.allclose(secret.additive / secret.s[-1].mean(), other.additive / other.s[-1].mean())
