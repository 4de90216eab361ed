"""Attacks on updates of local steps: what they simulate, that they succeed, and that they fail where nothing leaks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.audit.likelihood_audit import LikelihoodAudit
from leakboard.attacks.base import AuditTask, Inversion, Knowledge, MembershipTask, ReconstructionTask
from leakboard.attacks.membership.fedmia import FedMia
from leakboard.attacks.membership.update_inference import UpdateInference
from leakboard.attacks.reconstruction.inverting_gradients import STATISTICS, InvertingGradients
from leakboard.attacks.reconstruction.matching.batch_statistics import WithStatistics
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.attacks.reconstruction.matching.local_steps import simulated_update
from leakboard.attacks.reconstruction.noise_aware import NoiseAware
from leakboard.attacks.reconstruction.resnet_inversion import ResNetInversion
from leakboard.attacks.reconstruction.ridge import RidgeInversion
from leakboard.attacks.reconstruction.sme import Sme, SurrogateMatcher
from leakboard.attacks.reconstruction.unrolled import Unrolled, UnrolledMatcher
from leakboard.contract.worlds import digits
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedavg import FedAvg
from leakboard.federation.local_training import client_update
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.federation.view import View
from leakboard.metrics.psnr import psnr
from tests.defenses.makings import public_of

STEPS: dict[str, Any] = {"local_steps": 6, "local_batches": 2, "local_learning_rate": 0.05}


def records(count: int, start: int = 0) -> LabelledImages:
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(derive_seed("local steps", start)))
    drawn = digits().take(order[:count])
    return LabelledImages(torch.nn.functional.avg_pool2d(drawn.images, 2), drawn.labels)  # 16 x 16 pixels


def public(norm: str = "none", **training: Any) -> Public:
    return public_of("convnet", {"norm": norm, "width": 16}, shape=(1, 16, 16), classes=10, clients=1, **training)


def problem_of(given: Public, batch: LabelledImages, clients: int = 1, seed: int = 0) -> Inversion:
    """What a server without a defense, or with a sum over clients, has to invert."""
    task = task_of(given)
    model = task.initial(seed)
    parts = zip(batch.images.chunk(clients), batch.labels.chunk(clients), strict=True)
    sent = [client_update(task, model, images.to(task.dtype), labels) for images, labels in parts]
    mean = {name: torch.stack([update[name] for update, _ in sent]).mean(0) for name in task.parameter_names}
    floats = [name for name in task.buffer_names if sent[0][1][name].is_floating_point()]
    statistics = {name: torch.stack([buffers[name] for _, buffers in sent]).mean(0) for name in floats}
    return Inversion.of(given, model, Gradient(mean, clients, len(batch)), batch.labels, statistics or None)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_with_true_data_and_order_the_simulated_update_is_the_clients(norm: str) -> None:
    given, batch = public(norm, precision="float64", **STEPS), records(6)
    task, problem = task_of(given), problem_of(given, batch)
    assert problem.update is not None
    labels = torch.nn.functional.one_hot(batch.labels, 10).double()
    made = simulated_update(task, problem.model, batch.images.double(), labels)
    for name, value in problem.update.values.items():
        assert float((made.update[name].detach() - value).abs().max()) < 1e-6, name
    for name, value in (problem.statistics or {}).items():
        assert float((made.statistics[name].detach() - value).abs().max()) < 1e-6, name
    assert bool(problem.statistics) == (norm == "batch")


def matchers(given: Public, problems: tuple[Inversion, ...], labels: Tensor) -> dict[str, Any]:
    task = task_of(given)
    surrogate = SurrogateMatcher(task, problems, labels, 1, "cpu", statistics=0.1).start(0.0, 0.0)
    return {"unrolled": UnrolledMatcher(task, problems, labels, 1, "cpu", statistics=0.1), "sme": surrogate}


@pytest.mark.parametrize("name", ["unrolled", "sme"])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("clients", [1, 2])
def test_after_one_step_the_truth_costs_nothing(name: str, norm: str, clients: int) -> None:
    given, batch = public(norm, local_learning_rate=0.05), records(4)
    problem = problem_of(given, batch, clients)
    matcher = matchers(given, (problem,), batch.labels[None])[name]
    assert float(matcher.slopes(batch.images[None])[0]) < 1e-5
    assert float(matcher.slopes(torch.rand(1, 4, 1, 16, 16))[0]) > 0.01


def test_after_many_steps_the_truth_costs_nothing_only_to_who_unrolls_them() -> None:
    given, batch = public(local_steps=20, local_batches=2, local_learning_rate=0.3), records(4)
    problem = problem_of(given, batch)
    found = matchers(given, (problem,), batch.labels[None])
    assert float(found["unrolled"].slopes(batch.images[None])[0]) < 1e-5
    assert float(found["sme"].slopes(batch.images[None])[0]) > 1e-3


@pytest.mark.parametrize("name", ["unrolled", "sme"])
def test_one_step_or_share_zero_is_plain_gradient_matching(name: str) -> None:
    steps = {} if name == "unrolled" else STEPS
    given, batch = public(**({"local_learning_rate": 0.05} | steps)), records(3)
    problem, candidates = problem_of(given, batch), torch.rand(1, 3, 1, 16, 16)
    expected = Matcher(task_of(given), (problem,), batch.labels[None], 1, "cpu").slopes(candidates)
    found = matchers(given, (problem,), batch.labels[None])[name].slopes(candidates)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-2)


def test_the_derivative_in_the_share_is_that_of_finite_differences() -> None:
    given, batch = public(precision="float64", local_steps=4, local_learning_rate=0.3), records(2)
    problem, images = problem_of(given, batch), torch.rand(2, 1, 16, 16, dtype=torch.float64)

    def matcher(share: float) -> SurrogateMatcher:
        labels = batch.labels[None]
        return SurrogateMatcher(task_of(given), (problem,), labels, 1, "cpu", dtype=torch.float64).start(share, 0.0)

    middle = matcher(0.5)
    middle.slopes(images[None])
    assert middle.shares.grad is not None
    low, high = (float(matcher(share).slopes(images[None])[0]) for share in (0.5 - 1e-5, 0.5 + 1e-5))
    assert float(middle.shares.grad) == pytest.approx((high - low) / 2e-5, rel=1e-3)


def test_the_share_moves_within_its_bounds() -> None:
    given, batch = public(local_steps=4, local_learning_rate=0.3), records(2)
    matcher = SurrogateMatcher(task_of(given), (problem_of(given, batch),), batch.labels[None], 1, "cpu")
    matcher.start(0.5, 0.3)
    seen = []
    for _ in range(4):
        matcher.slopes(torch.rand(1, 2, 1, 16, 16))
        seen.append(float(matcher.shares.detach()))
    assert seen[0] in (pytest.approx(0.2), pytest.approx(0.8))  # Adam's first step has the length of its rate
    assert all(0 <= share <= 1 for share in seen)


# --- whole attacks --------------------------------------------------------------------------


class Given(ReconstructionTask):
    """A task whose problem is given."""

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """The problem itself."""
        return self.found  # type: ignore[attr-defined,no-any-return]


def attacked(attack: InvertingGradients, given: Public, *problems: Inversion) -> tuple[Tensor, tuple[str, ...]]:
    view = View("server", ("server",), given, (), {}, {})
    knowledge = Knowledge(view, FedAvg(), records(100, 1), 0)
    task = Given("first", 0, len(problems), 1, None, tuple(p.gradient.records for p in problems))
    object.__setattr__(task, "found", problems)
    answer = attack.reconstruct(knowledge, task)
    return torch.cat(list(answer.images)), answer.flags


#: steps that move the model so far that the update is no longer along the first gradient
FAR: dict[str, Any] = {"local_steps": 5, "local_learning_rate": 0.05}


@pytest.mark.parametrize("attack", [Unrolled(iterations=100, tv=0.01), Sme(iterations=100, tv=0.01)], ids=["u", "s"])
def test_one_record_is_rebuilt_from_many_local_steps_and_not_from_noise(attack: InvertingGradients) -> None:
    given, batch = public(**FAR), records(1)
    problem = problem_of(given, batch)
    images, flags = attacked(attack, given, problem)
    prior = psnr(records(100, 1).images.mean(0, keepdim=True), batch.images)
    plain, _ = attacked(InvertingGradients(iterations=100, tv=0.01), given, problem)
    assert float(psnr(plain, batch.images)) > float(prior)
    assert float(psnr(images, batch.images)) > float(psnr(plain, batch.images)) + 5
    assert not [flag for flag in flags if flag.startswith("local steps")]
    generator = torch.Generator().manual_seed(0)  # the null control: an update that holds nothing of the record
    empty = {n: torch.randn(v.shape, generator=generator) for n, v in problem.gradient.values.items()}
    nothing = replace(problem, gradient=replace(problem.gradient, values=empty))
    images, flags = attacked(attack, given, nothing)
    assert float(psnr(images, batch.images)) < float(prior)
    assert any(flag.startswith("not converged") for flag in flags)


def test_a_batch_of_four_is_rebuilt_from_local_steps_where_plain_matching_is_not() -> None:
    """The positive control of the suite `realistic`: the same attacks, where the setting is easy."""
    given, batch = public(local_steps=4, local_batches=2, local_learning_rate=0.05), records(4)
    problem = problem_of(given, batch)
    prior = float(psnr(records(100, 1).images.mean(0, keepdim=True).expand_as(batch.images), batch.images).mean())
    scores = {}
    for kind in (InvertingGradients, Unrolled, Sme):
        images, _ = attacked(kind(iterations=300, tv=0.01), given, problem)
        scores[kind.name] = max(
            float(psnr(images[list(order)], batch.images).mean()) for order in itertools.permutations(range(4))
        )
    assert min(scores["unrolled"], scores["sme"]) > max(prior + 8, scores["inverting-gradients"] + 5), scores


def test_an_attack_that_takes_the_update_for_a_gradient_says_so() -> None:
    given, batch = public(**STEPS), records(1)
    _, flags = attacked(InvertingGradients(iterations=2), given, problem_of(given, batch))
    assert "local steps: the update divided by rate and steps is taken for one gradient" in flags
    _, flags = attacked(Sme(iterations=2), public(), problem_of(public(), batch))
    assert any(flag.startswith("no local steps") for flag in flags)


def test_statistics_that_the_client_sent_guide_the_images() -> None:
    """Without any gradient the statistics alone are nearer to the truth than a random image, and match at the truth."""
    given, batch = public("batch"), records(4)
    problem = problem_of(given, batch)
    task = task_of(given)

    class Nothing:
        """No cost at all."""

        def slopes(self, images: Tensor) -> tuple[Tensor, Tensor]:
            """Zeros."""
            return torch.zeros(len(images)), torch.zeros_like(images)

    matcher = WithStatistics(Nothing(), task, (problem,), 1, 1.0, "cpu")
    cost, slope = matcher.slopes(batch.images[None])
    assert float(cost) < 1e-6
    random = torch.rand(1, 4, 1, 16, 16)
    cost, slope = matcher.slopes(random)
    assert float(cost) > 0.01
    assert float(matcher.slopes(random - 0.1 * slope / slope.norm())[0]) < float(cost)
    knowledge = Knowledge(View("server", ("server",), given, (), {}, {}), FedAvg(), records(50, 1), 0)
    whole = InvertingGradients().matcher(knowledge, (problem,), batch.labels[None])
    assert isinstance(whole, WithStatistics)
    assert whole.weight == STATISTICS
    without = InvertingGradients().matcher(knowledge, (replace(problem, statistics=None),), batch.labels[None])
    assert isinstance(without, Matcher)


@pytest.mark.parametrize(
    "ask",
    [
        lambda known: NoiseAware().reconstruct(known, ReconstructionTask("first", 0, 1, 1, None, (1,))),
        lambda known: RidgeInversion().reconstruct(known, ReconstructionTask("first", 0, 1, 1, None, (1,))),
        lambda known: ResNetInversion().reconstruct(known, ReconstructionTask("first", 0, 1, 1, None, (1,))),
        lambda known: FedMia().infer(known, MembershipTask(records(1))),
        lambda known: UpdateInference().mixtures(known, 0),
        lambda known: LikelihoodAudit().distinguish(known, AuditTask((records(1), records(1)), known.view)),
    ],
)
def test_attacks_that_need_a_gradient_refuse_with_the_reason(ask: Callable[[Knowledge], Any]) -> None:
    view = View("server", ("server",), public(**STEPS), (), {}, {})
    with pytest.raises(Unsupported, match="local steps"):
        ask(Knowledge(view, FedAvg(), records(10, 1), 0))
