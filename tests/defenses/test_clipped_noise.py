"""Clipping and Gaussian noise of the defenses whose clients see the true model: where they say, as large as they say.

Noise is the difference of two runs of one seed, with and without it. Each statistical test fails for one key in a
million (two-sided chi-square, and Kolmogorov-Smirnov, over some 4,000 coordinates: 11 % off is noticed).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leakboard.datasets.base import LabelledImages
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.building_blocks.noisy_share import NoisyShare
from leakboard.defenses.grad_prune import GradPrune
from leakboard.defenses.noise.calibration import gaussian_mu
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, VICTIM, Dropout, ObservedRounds
from leakboard.federation.task import task_of
from tests.defenses.makings import Run, create, flat, relative, true_gradient, updates
from tests.defenses.small import KEYS, batches, is_gaussian, sent_codes, small_run, velocity

FALSE_ALARM = 1e-6
WIDE: dict[str, Any] = {"shape": (1, 8, 8), "hidden": (64,)}
MU = gaussian_mu(3.0, 1e-5)
MADE: dict[str, tuple[Run, Run]] = {}


def light(name: str, **parameters: Any) -> Clipped:
    """Without ciphertexts: the sums are the same integers (test_sums.py)."""
    made = create(name, **({"sample_values": 0} if name in KEYS else {}), **parameters)
    assert isinstance(made, Clipped)
    return made


def pair(name: str, training: dict[str, Any] | None = None, **parameters: Any) -> tuple[Run, Run]:
    """A run with noise and the same one without; made once."""
    title = repr((name, training, parameters))
    if title not in MADE:
        first, second = (
            small_run(light(name, noise=noise, **parameters), **WIDE, **(training or {})) for noise in (True, False)
        )
        MADE[title] = first, second
    return MADE[title]


def added(made: tuple[Run, Run], index: int = 0) -> Tensor:
    """The noise in the mean that the server stepped with."""
    noisy, clean = (velocity(run.rounds()[index]) for run in made)
    return noisy - clean


# --- the size of the noise -----------------------------------------------------------------------


@pytest.mark.parametrize(("sensitivity", "size"), [("record", 2 / 4), ("client", 1.0)])
def test_ldp_noises_every_update_and_the_mean_has_a_kth_of_the_variance(sensitivity: str, size: float) -> None:
    made = pair("ldp", sensitivity=sensitivity)
    sent = [updates(run.rounds()[0]) for run in made]
    noises = [flat(sent[0][name]["gradient"]) - flat(sent[1][name]["gradient"]) for name in sent[0]]
    assert all(is_gaussian(noise, size / MU, FALSE_ALARM) for noise in noises)
    assert is_gaussian(added(made), size / MU / math.sqrt(3), FALSE_ALARM)
    apart = np.abs(np.corrcoef(torch.stack(noises).numpy()) - np.eye(3))
    assert float(apart.max()) < 6 / math.sqrt(len(noises[0]))  # false alarm 2e-9 per pair


@pytest.mark.parametrize("gone", [(), (2,)])
def test_cdp_noises_the_mean_alone(gone: tuple[int, ...]) -> None:
    """sigma = S / (senders mu): a client that drops out makes the mean more sensitive."""
    made = pair("cdp", {"dropouts": tuple(Dropout(client=i, round=0, step="update") for i in gone)})
    assert is_gaussian(added(made), 2 / 4 / (3 - len(gone)) / MU, FALSE_ALARM)
    for name, body in updates(made[0].rounds()[0]).items():
        assert torch.equal(flat(body["gradient"]), flat(updates(made[1].rounds()[0])[name]["gradient"]))


@pytest.mark.parametrize(("clients", "honest"), [(3, None), (5, None), (5, 5)])
@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha", "ddp"])
def test_the_mean_of_noisy_shares_carries_k_over_t_minus_1(name: str, clients: int, honest: int | None) -> None:
    """Variance K / (t - 1) S^2 sigma^2 / K^2 on every coordinate of the mean."""
    made = pair(name, {"clients": clients}, honest=honest)
    t = honest or clients // 2 + 1
    assert is_gaussian(added(made), 2 / 4 / MU * math.sqrt(clients / (t - 1)) / clients, FALSE_ALARM)


@pytest.mark.parametrize("name", ["tp-smc", "hybridalpha"])
def test_one_share_is_smaller_than_what_a_single_release_needs(name: str) -> None:
    """K = 5, t = 3: a single update carries variance S^2 sigma^2 / 2, so whoever opens it sees less noise."""
    made = pair(name, {"clients": 5})
    values = []
    for run in made:
        assert isinstance(run.defense, NoisyShare)
        at = run.rounds()[0]
        codes = sent_codes(run, at)[VICTIM]
        values.append(flat(run.defense.decoded(run.public, at.context, codes, 1)["gradient"]))
    assert is_gaussian(values[0] - values[1], 2 / 4 / MU / math.sqrt(2), FALSE_ALARM)


@pytest.mark.parametrize("name", ["ldp", "cdp", "tp-smc", "hybridalpha", "ddp"])
def test_noise_is_fresh_in_every_round_and_probe(name: str) -> None:
    made = pair(name, {"rounds": 2, "learning_rate": 1e-12, "observe": ObservedRounds(rounds=("first",), targets=2)})
    noises = [added(made, index) for index in range(2)]
    probes = [[o.states[SERVER]["velocity"] for o in run.rounds("probe")] for run in made]
    noises += [flat(noisy) - flat(clean) for noisy, clean in zip(*probes, strict=True)]
    apart = np.abs(np.corrcoef(torch.stack(noises).numpy()) - np.eye(4))
    assert float(apart.max()) < 6 / math.sqrt(len(noises[0]))  # false alarm 2e-9 per pair


def test_the_noise_of_a_probe_is_that_of_its_batch() -> None:
    """A mean over one record moves four times as far as one over four."""
    made = pair("ldp", {"rounds": 2, "learning_rate": 1e-12, "observe": ObservedRounds(rounds=("first",), targets=2)})
    (noisy, _), (clean, _) = (run.rounds("probe") for run in made)
    difference = flat(updates(noisy)[VICTIM]["gradient"]) - flat(updates(clean)[VICTIM]["gradient"])
    assert is_gaussian(difference, 2 / 1 / MU, FALSE_ALARM)


# --- clipping --------------------------------------------------------------------------------------


def example_gradients(run: Run, client: str) -> list[Parameters]:
    """The gradient of each record by itself, on the initial model."""
    at = run.rounds()[0]
    model = next(m.payload["model"] for m in at.messages if m.kind == "model")
    batch = batches(run, at.context)[client]
    return [true_gradient(run, model, batch.select(torch.tensor([i]))) for i in range(len(batch))]


@pytest.mark.parametrize("name", ["ldp", "cdp"])
def test_every_example_is_clipped_to_the_bound_by_itself(name: str) -> None:
    run = small_run(light(name, noise=False, clip=0.4))
    clipped = 0
    for client, body in updates(run.rounds()[0]).items():
        single = [flat(gradient) for gradient in example_gradients(run, client)]
        clipped += sum(float(gradient.norm()) > 0.4 for gradient in single)
        expected = torch.stack([min(1.0, 0.4 / max(float(g.norm()), 1e-9)) * g for g in single]).mean(0)
        assert relative(flat(body["gradient"]), expected) < 1e-9
    assert (run.outcome.ledger.clipped, run.outcome.ledger.examples) == (clipped, 12)
    assert 0 < clipped < 12


@pytest.mark.parametrize("name", ["ldp", "tp-smc", "hybridalpha"])
def test_the_clipped_share_is_counted(name: str) -> None:
    assert small_run(light(name, noise=False, clip=1e3)).outcome.ledger.clipped == 0


def test_one_replaced_record_moves_the_mean_by_at_most_the_sensitivity() -> None:
    """S = 2B / batch; a record of huge pixels moves it far, and not further than S."""
    defense = light("ldp", noise=False)
    run = small_run(defense)
    task, at = task_of(run.public), run.rounds()[0]
    received = next(m.payload for m in at.messages if m.kind == "model")
    batch = batches(run, at.context)[VICTIM]
    moved = []
    for size in (1.0, 1e3):
        images = batch.images.clone()
        images[0] = size * (1 - images[0])
        other = LabelledImages(images, (batch.labels + torch.tensor([1, 0, 0, 0])) % 3)
        first, second = (
            flat(defense.simulate(run.public, received, one.images, one.labels, seed=0)["gradient"])
            for one in (batch, other)
        )
        moved.append(float((first - second).norm()))
    assert task.dtype == torch.float64
    assert all(0 < far <= defense.size(4) for far in moved)
    assert moved[1] > defense.size(4) / 4


# --- pruning ---------------------------------------------------------------------------------------


def test_grad_prune_keeps_the_largest_values_of_every_layer() -> None:
    pruned, plain = small_run(create("grad-prune", ratio=0.75)), small_run(create("fedsgd"))
    for name, body in updates(pruned.rounds()[0]).items():
        for layer, full in updates(plain.rounds()[0])[name]["gradient"].items():
            found: Tensor = body["gradient"][layer]
            kept = found != 0
            assert int(kept.sum()) == full.numel() - math.floor(0.75 * full.numel())
            assert torch.equal(found[kept], full[kept])
            assert float(full[kept].abs().min()) >= float(full[~kept].abs().max())
    assert isinstance(pruned.defense, GradPrune)
    assert pruned.defense.claims(pruned.public) == {}
