"""The noise of mp-dp as it really goes over the channel: two runs, with and without it, and their difference.

The learning rate is so small that both keep the same model. Keys are fixed; every statistical test says
how often it would fail with other keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from leakboard.defenses.building_blocks.model_perturbation import unpack_secret
from leakboard.defenses.mp_dp import MpDp
from leakboard.defenses.noise.calibration import Edge, Sigmas
from leakboard.defenses.noise.graph import complete_edges, union_edges
from leakboard.defenses.noise.laws import signed_dn
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, Dropout, ObservedRounds, client_name
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat, relative, run, updates

STILL = 1e-13
FALSE_ALARM = 1e-3
EDGES = 3.29  # standard deviations that are exceeded once in 1,000 times


_made: dict[str, tuple[Run, Run]] = {}


def pair(training: dict[str, Any], **settings: Any) -> tuple[Run, Run]:
    """A run with noise and the same one without; made once."""
    name = repr((training, settings))
    if name not in _made:
        shared = {"precision": "float64", "learning_rate": STILL, "momentum": 0.0, "observe": ObservedRounds(targets=2)}
        _made[name] = (
            run(create("mp-dp", **settings), **{**shared, **training}),
            run(create("mp-dp", noise=False, **settings), **{**shared, **training}),
        )
    return _made[name]


def scheme(finished: Run) -> MpDp:
    assert isinstance(finished.defense, MpDp)
    return finished.defense


def noises(noisy: Observation, clean: Observation) -> dict[str, Tensor]:
    """What each client added to its gradient, as one vector."""
    there, without = updates(noisy), updates(clean)
    return {name: flat(body["gradient"]) - flat(without[name]["gradient"]) for name, body in there.items()}


def own_noise(finished: Run, at: Observation, name: str, sigmas: Sigmas, size: int) -> Tensor:
    """eta, which whoever holds the client's secret can draw again."""
    party = Party(name, finished.public, finished.outcome.secrets[name])
    party.context = at.context
    return torch.from_numpy(signed_dn(party.stream("eta"), sigmas.own, size))


def graph(finished: Run, at: Observation) -> list[Edge]:
    """The edges of a round, from the messages."""
    numbers = [int(name.partition(":")[2]) for name in at.context.participants]
    if not scheme(finished).neighbours:
        return complete_edges(numbers)
    chosen = {m.sender: m.payload["chosen"] for m in at.messages if m.kind == "neighbours"}
    return union_edges({int(name.partition(":")[2]): choice for name, choice in chosen.items()})


def sigmas_of(finished: Run, at: Observation) -> Sigmas:
    clients = len(at.context.participants)
    return scheme(finished).sigmas(finished.public, clients, graph(finished, at), at.context.batch_size)


def variance_fits(values: Tensor, expected: float, kurtosis: float = 0.0) -> bool:
    """Whether the mean square is `expected`, within 3.29 standard errors (false alarm 1e-3)."""
    error = expected * math.sqrt((2 + kurtosis) / len(values))
    return abs(float(values.square().mean()) - expected) < EDGES * error


def divided_by_r(finished: Run, at: Observation, values: Parameters) -> Tensor:
    """Values / R, as one vector."""
    secret = unpack_secret(at.states[SERVER]["secret"])
    wiring = scheme(finished).expanded(finished.public).wiring
    names = {f"{w.name}.weight": w for w in wiring.weights}
    return flat({name: value / secret.matrix(names[name], value) for name, value in values.items()})


GRAPHS = [{"clients": 2}, {"clients": 4}, {"clients": 5, "neighbours": 1}]


@pytest.fixture(scope="module", params=GRAPHS, ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Run, Run]:
    settings = dict(request.param)
    return pair({"clients": settings.pop("clients")}, **settings)


def test_pairwise_noise_cancels_in_the_aggregate(both: tuple[Run, Run]) -> None:
    for noisy, clean in zip(*(r.rounds("train") + r.rounds("probe") for r in both), strict=True):
        found = noises(noisy, clean)
        sigmas = sigmas_of(both[0], noisy)
        paired = {name: value - own_noise(both[0], noisy, name, sigmas, len(value)) for name, value in found.items()}
        size = max(float(value.norm()) for value in paired.values())
        assert size > sigmas.pairwise  # it was there
        assert float(torch.stack(list(paired.values())).sum(0).norm()) < 1e-9 * size


def test_each_client_carries_the_variance_of_its_degree(both: tuple[Run, Run]) -> None:
    for noisy, clean in zip(*(r.rounds("train") for r in both), strict=True):
        sigmas, edges = sigmas_of(both[0], noisy), graph(both[0], noisy)
        for name, value in noises(noisy, clean).items():
            degree = sum(int(name.partition(":")[2]) in edge for edge in edges)
            assert variance_fits(value, 2 / 3 * (sigmas.own**2 + degree * sigmas.pairwise**2))


def test_what_remains_in_the_mean_has_the_predicted_variance(both: tuple[Run, Run]) -> None:
    """(2/3) sigma_eta^2 / K after dividing the server's recovered mean by R."""
    for noisy, clean in zip(*(r.rounds("train") for r in both), strict=True):
        servers = noisy.states[SERVER], clean.states[SERVER]
        added = {name: value - servers[1]["velocity"][name] for name, value in servers[0]["velocity"].items()}
        remaining = divided_by_r(both[0], noisy, added)
        sigmas, clients = sigmas_of(both[0], noisy), len(noisy.context.participants)
        assert variance_fits(remaining, 2 / 3 * sigmas.own**2 / clients)
        assert relative(remaining, torch.stack(list(noises(noisy, clean).values())).mean(0)) < 1e-6


def test_two_clients_add_opposite_pairwise_noise() -> None:
    made = pair({"clients": 2})
    noisy, clean = (r.rounds("train")[0] for r in made)
    sigmas = sigmas_of(made[0], noisy)
    first, second = (
        value - own_noise(made[0], noisy, name, sigmas, len(value)) for name, value in noises(noisy, clean).items()
    )
    assert relative(first, -second) < 1e-9
    edge = math.sqrt(2) * sigmas.pairwise
    assert stats.kstest(first.numpy(), "uniform", args=(-edge, 2 * edge)).pvalue > FALSE_ALARM


def test_noise_is_fresh_in_every_round_probe_client_and_run(both: tuple[Run, Run]) -> None:
    contexts = [r.rounds("train") + r.rounds("probe") for r in both]
    drawn = [value for pair in zip(*contexts, strict=True) for value in noises(*pair).values()]
    table = np.corrcoef(torch.stack(drawn).numpy())
    apart = np.abs(table[~np.eye(len(drawn), dtype=bool)])
    # neighbours of one context share their Delta, nobody shares anything across contexts
    per = len(drawn) // len(contexts[0])
    blocks = np.kron(np.eye(len(contexts[0]), dtype=bool), np.ones((per, per), dtype=bool))
    limit = 6 / math.sqrt(len(drawn[0]))  # false alarm 2e-9 per pair
    assert float(np.abs(table[~blocks]).max()) < limit
    assert float(apart.max()) < 1 - 1e-6


def test_other_keys_give_other_noise_of_the_same_size() -> None:
    made = pair({"clients": 2}), pair({"clients": 2, "seed": 1})
    first, second = (noises(n.rounds("train")[0], c.rounds("train")[0])["client:0"] for n, c in made)
    limit = 6 / math.sqrt(len(first))
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < limit
    assert float(first.norm() / second.norm()) == pytest.approx(1, abs=0.05)


def test_both_ends_of_an_edge_derive_the_same_secret_and_nobody_else_does() -> None:
    finished = pair({"clients": 4})[0]
    at = finished.rounds("train")[0]
    parties = {}
    for name in finished.public.clients:
        party = Party(name, finished.public, b"")
        party.state, party.context = dict(at.states[name]), at.context
        parties[int(name.partition(":")[2])] = party
    drawn = {
        (own, other): scheme(finished).pair_stream(parties[own], other).bytes(32)
        for own in parties
        for other in parties
        if own != other
    }
    assert all(value == drawn[other, own] for (own, other), value in drawn.items())
    assert len(set(drawn.values())) == len(complete_edges(list(parties)))


# --- the law, in a run ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> tuple[Run, Run]:
    """One client has no neighbours: all its noise is eta. Many rounds, each with its own R."""
    return pair({"clients": 1, "rounds": 120, "model_parameters": {"hidden": [32, 32]}})


def test_given_r_the_noise_is_exactly_uniform(alone: tuple[Run, Run]) -> None:
    """The server knows R: what it sees is bounded, with variance 2 sigma^2 / 3 (false alarm 1e-3 each)."""
    noisy = alone[0].rounds("train")[0]
    readings = [r.defense.interpret(r.view("server")) for r in alone]
    at = next(i for i, reading in enumerate(readings[0]) if reading.context == noisy.context)
    values = [reading[at].gradients["client:0"].values for reading in readings]
    added = {name: value - values[1][name] for name, value in values[0].items()}
    found = divided_by_r(alone[0], noisy, added)
    sigma = sigmas_of(alone[0], noisy).own
    edge = math.sqrt(2) * sigma
    assert stats.kstest(found.numpy(), "uniform", args=(-edge, 2 * edge)).pvalue > FALSE_ALARM
    assert variance_fits(found, 2 / 3 * sigma**2, kurtosis=-1.2)
    assert float(found.abs().max()) < edge * (1 + 1e-6)


@pytest.mark.parametrize("layer", ["1.weight", "3.weight", "5.weight"])
def test_over_fresh_r_the_noise_is_gaussian(alone: tuple[Run, Run], layer: str) -> None:
    """One value per row and column of R, so that no factor is used twice (false alarm 1e-3 each)."""
    drawn = []
    readings = zip(*(r.defense.interpret(r.view("server")) for r in alone), strict=True)
    for noisy, clean in readings:
        if noisy.context.kind == "train":
            added = noisy.gradients["client:0"].values[layer] - clean.gradients["client:0"].values[layer]
            count = min(added.shape)
            drawn.append(added[:count, :count].diagonal())
    found = torch.cat(drawn).numpy()
    assert len(found) >= 400
    sigma = sigmas_of(alone[0], alone[0].rounds("train")[0]).own
    assert stats.kstest(found, "norm", args=(0, sigma)).pvalue > FALSE_ALARM
    uniform = stats.kstest(found, "uniform", args=(-math.sqrt(2) * sigma, 2 * math.sqrt(2) * sigma)).pvalue
    assert uniform < FALSE_ALARM


# --- a client drops out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "step"), [({}, "update"), ({"neighbours": 2}, "update"), ({"neighbours": 2}, "choose")]
)
def test_a_client_that_drops_out_leaves_its_pairwise_noise_behind(settings: dict[str, Any], step: str) -> None:
    """Variance (2/3)((K-1) sigma_eta^2 + broken sigma_Delta^2) / (K-1)^2 after dividing by R; then all goes on."""
    clients, gone = 5, 2
    training = {"clients": clients, "rounds": 3, "dropouts": (Dropout(client=gone, round=1, step=step),)}
    noisy_run, clean_run = pair(training, **settings)
    for noisy, clean in zip(noisy_run.rounds("train"), clean_run.rounds("train"), strict=True):
        dropped = noisy.context.round == 1
        there = set(updates(noisy))
        assert (client_name(gone) not in there) == dropped
        added = {
            name: value - clean.states[SERVER]["velocity"][name]
            for name, value in noisy.states[SERVER]["velocity"].items()
        }
        edges = graph(noisy_run, noisy)
        broken = sum(gone in edge for edge in edges) if dropped else 0
        assert not dropped or broken >= (4 if not settings else 1)
        sigmas = sigmas_of(noisy_run, noisy)
        senders = len(there)
        expected = 2 / 3 * (senders * sigmas.own**2 + broken * sigmas.pairwise**2) / senders**2
        assert variance_fits(divided_by_r(noisy_run, noisy, added), expected)
    assert len(noisy_run.rounds("final")) == 1
    assert any(
        not torch.equal(value, noisy_run.rounds("train")[1].states[SERVER]["model"][name])
        for name, value in noisy_run.outcome.model.items()
    )


def test_the_prediction_for_a_hundred_clients() -> None:
    """docs/decisions.md, 5: .059 instead of .018 (Gaussian sigmas; the formula above without its 2/3)."""
    own, pairwise = 0.1765, 0.558
    assert math.sqrt((99 * own**2 + 99 * pairwise**2) / 99**2) == pytest.approx(0.059, abs=5e-4)
    assert own / math.sqrt(100) == pytest.approx(0.018, abs=5e-4)


def test_all_clients_may_drop_out() -> None:
    drops = tuple(Dropout(client=i, round=0, step="update") for i in range(2))
    finished = run(create("mp-dp"), clients=2, dropouts=drops)
    first, second = (o.states[SERVER]["model"] for o in finished.rounds("train"))
    assert "velocity" not in finished.rounds("train")[0].states[SERVER]
    assert any(not torch.equal(value, second[name]) for name, value in first.items())
