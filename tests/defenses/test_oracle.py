"""The oracle clips as a loop of single gradients would, counts what it did, and leaks nothing that replay misses."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
import torch

from leakboard.defenses.mp_dp import MpDp
from leakboard.defenses.perturbation.client import expanded_of, train, train_clipped
from leakboard.defenses.perturbation.clipping import true_norms
from leakboard.defenses.perturbation.server import perturb
from leakboard.federation.example_norms import CHUNK, clip_factors, loss_norms
from leakboard.federation.example_passes import Pass
from leakboard.federation.oracle import Ledger, Oracle
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.replay import covert_channels
from leakboard.federation.settings import ObservedRounds
from leakboard.federation.task import task_of
from tests.defenses.makings import create, flat, images_of, public_of, run, secret_for

WATCH = ObservedRounds(rounds=("last",), targets=1)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_clip_factors_are_those_of_single_gradients(model: str, precision: str) -> None:
    public = public_of(model, {"hidden": [6]} if model == "mlp" else {"width": 2}, precision=precision)
    task, ledger = task_of(public), Ledger()
    parameters = task.initial(3)
    images = images_of(CHUNK + 3, *public.shape).float()  # more than one chunk
    labels = torch.arange(len(images)) % public.classes
    norms = torch.stack(
        [flat(task.gradient(parameters, images[i : i + 1], labels[i : i + 1])[0]).norm() for i in range(len(images))]
    )
    assert torch.allclose(loss_norms(task, parameters, images, labels).double(), norms, rtol=1e-4)

    bound = 1.001 * float(norms.median())  # not exactly at one of them
    oracle = Oracle(task, lambda: parameters, dict, ledger, observed=True)
    factors = oracle.clip_factors(lambda state, model: loss_norms(task, model, images, labels), bound)
    expected = torch.tensor([min(1.0, bound / float(n)) for n in norms])
    assert torch.allclose(factors.float(), expected, rtol=1e-4)
    assert ledger.uses == {"clip_factors": 1}
    assert ledger.examples == len(images)
    assert ledger.clipped == int((expected < 1).sum()) > 0
    assert len(oracle.answers) == 1


def _constant(value: float, state: Payload, model: Parameters) -> float:
    return value


def test_what_is_measured_is_the_worst_and_only_where_observed() -> None:
    task, ledger = task_of(public_of("mlp", {"hidden": [6]})), Ledger()
    for observed, value in ((True, 0.2), (True, 0.1), (False, 9.0)):
        Oracle(task, dict, dict, ledger, observed).measure("error", partial(_constant, value))
    assert ledger.worst == {"error": 0.2}
    assert ledger.uses == {}


def test_the_ledger_of_a_run_counts_every_batch() -> None:
    finished = run(create("mp-dp"), rounds=2, clients=3, batch_size=4, observe=WATCH)
    assert finished.outcome.ledger.uses == {"clip_factors": 2 * 3 + 3}  # two rounds and one probe
    assert finished.outcome.ledger.examples == 2 * 3 * 4 + 3
    assert 0 < finished.outcome.ledger.clipped <= finished.outcome.ledger.examples
    assert run(create("mp")).outcome.ledger == Ledger()


def test_its_answers_enter_no_view() -> None:
    finished = run(create("mp-dp"), observe=WATCH)
    assert any(o.oracle for o in finished.rounds("train"))
    for threat in ("server", "client", "server+clients:1"):
        assert all(not o.oracle for o in finished.view(threat).observations)


def make_sparse() -> MpDp:
    return MpDp(neighbours=1)


class Peeking(MpDp):
    """A client that takes the true model from the oracle."""

    name: ClassVar[str] = "peeking"

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        model = me.oracle.model()  # type: ignore[union-attr]
        return {name: value.double() + model[name] for name, value in gradient.items()}


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(("make", "clean"), [(MpDp, True), (make_sparse, True), (Peeking, False)])
def test_replay(make: type[MpDp], clean: bool) -> None:
    """mp-dp acts on its own knowledge, on random graphs too; a client that looks at the model is caught."""
    finished = run(make(), observe=WATCH)
    found = covert_channels(make, finished.outcome, finished.shards, WATCH, 0)
    assert set(found) == (set() if clean else set(finished.public.clients))


@pytest.mark.parametrize("variant", ["V1", "V2"])
@pytest.mark.parametrize(("model", "parameters"), [("mlp", {"hidden": [6]}), ("resnet8", {"width": 4, "bias": True})])
def test_norms_from_a_clients_own_signals_are_those_of_the_true_model(
    model: str, parameters: dict[str, object], variant: str
) -> None:
    public = public_of(model, parameters, shape=(3, 8, 8), precision="float64")
    task, expanded = task_of(public), expanded_of(public, transitional=True)
    weights, secret = task.initial(3), secret_for(expanded, variant)
    hidden = perturb(weights, expanded.wiring, secret, transitional=True, dtype=torch.float64)
    images, labels = images_of(5, *public.shape).double(), torch.arange(5) % public.classes
    targets = torch.nn.functional.one_hot(labels, public.classes).double()
    direction = secret.direction if variant == "V2" else None
    asked: list[torch.Tensor] = []

    def factors(made: Pass) -> torch.Tensor:
        asked.append(true_norms(made, expanded, hidden, secret))
        return clip_factors(asked[-1], float(asked[-1].median()))

    given = (expanded, hidden, direction, task.normalise(images), targets)
    found = train_clipped(*given, factors)
    assert found is not None
    torch.testing.assert_close(torch.cat(asked), loss_norms(task, weights, images, labels), rtol=1e-6, atol=1e-9)
    assert 0 < int((found[1] < 1).sum()) < 5
    torch.testing.assert_close(found[0], train(*given, found[1]), rtol=1e-8, atol=1e-10)
