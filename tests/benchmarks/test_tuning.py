"""Trainings of the grid on fewer records have the noise of the suite's batch, as the server's step shows."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import pytest
import torch
import yaml
from torch import Tensor

from benchmarks._federation import public_settings
from benchmarks.tuning import Point, as_yaml, further_points, points, thinned
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.datasets.loading import load_pool
from leakboard.datasets.splits import Splits, make_splits
from leakboard.defenses.base import Defense
from leakboard.federation.models.base import Model
from leakboard.federation.payload import Parameters
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Public, Training, client_name
from leakboard.federation.task import task_of
from leakboard.metrics.accuracy import accuracy
from leakboard.suites.schema import Tuning, load_suite

SEED, WHOLE, FEWER = 1003, 114, 19
#: the noise of these on the mean is Gaussian: the law of cdp with another sigma
GAUSSIAN: dict[str, dict[str, Any]] = {"cdp": {}, "mp-cdp": {}, "tp-smc": {}, "hybridalpha": {}, "ddp": {}}
OTHER: dict[str, dict[str, Any]] = {"mp-dp": {"variant": "V2"}, "mf": {"epsilon": 47.35, "epsilon_per": "run"}}
NOISY = {**GAUSSIAN, **OTHER}


@cache
def digits() -> tuple[Dataset, ImagePool, Splits]:
    dataset = cast(Dataset, registry.create("dataset", "digits", {}))
    pool = load_pool(dataset)
    return dataset, pool, make_splits(pool, seed=SEED, clients=5)


def settings(defense: Defense, **training: Any) -> Public:
    dataset, pool, splits = digits()
    model = cast(Model, registry.create("model", "mlp", {"hidden": [32]}))
    given = Training(batch_size=WHOLE, clients=5, **{"rounds": 1, "learning_rate": 0.1, **training})
    return public_settings(dataset, pool, given, [len(shard) for shard in splits.shards], model, defense=defense)


def trained(defense: Defense, public: Public) -> Parameters:
    _, pool, splits = digits()
    shards = {client_name(index): pool.take(shard) for index, shard in enumerate(splits.shards)}
    return Federation(defense.rehearsal(), public, shards, None, SEED).run().model


def made(name: str, **params: Any) -> Defense:
    return cast(Defense, registry.create("defense", name, {"clip": 1, **params}))


def noise_of_a_step(defense: Defense, public: Public) -> Tensor:
    """What one round adds to the plain mean of the clipped gradients, whatever the messages look like."""
    with_noise, without = trained(defense, public), trained(made("clip"), public)
    rate = public.training.learning_rate
    return torch.cat([(without[name] - with_noise[name]).double().flatten() / rate for name in without])


@pytest.mark.parametrize("name", NOISY)
def test_the_noise_is_that_of_the_whole_batch(name: str) -> None:
    defense = made(name, **NOISY[name])
    public = settings(defense)
    whole = noise_of_a_step(defense, public)
    fewer = noise_of_a_step(*thinned(defense, public, FEWER))
    assert whole.std() == pytest.approx(fewer.std().item(), rel=0.03)
    assert whole.std() > 0


def test_rows_of_one_noise_level_have_one_law() -> None:
    """One training stands for tp-smc, hybridalpha and ddp: the same mean, and Gaussian noise of the same size."""
    steps = {name: noise_of_a_step(made(name), settings(made(name))) for name in GAUSSIAN}
    for name, noise in steps.items():
        kurtosis = ((noise - noise.mean()) / noise.std()).pow(4).mean().item()
        assert kurtosis == pytest.approx(3, abs=0.15), name
    shared = [steps[name].std().item() for name in ("tp-smc", "hybridalpha", "ddp")]
    assert max(shared) == pytest.approx(min(shared), rel=0.02)
    stated = {name: made(name).claims(settings(made(name))) for name in ("cdp", "tp-smc")}
    assert steps["cdp"].std().item() == pytest.approx(stated["cdp"]["sigma_central"], rel=0.02)
    assert steps["tp-smc"].std().item() == pytest.approx(stated["tp-smc"]["sigma_share"] / 5**0.5, rel=0.02)
    for name, noise in steps.items():  # no shift: the mean that the noise is added to is the plain one
        assert abs(noise.mean()) < 5 * noise.std() / len(noise) ** 0.5, name


@pytest.mark.parametrize("name", ["cdp", "tp-smc"])
def test_accuracy_is_that_of_the_whole_batch_within_noise(name: str) -> None:
    _, pool, splits = digits()
    held_out = pool.take(torch.cat([splits.non_members, splits.auxiliary]))
    defense = made(name)
    public = settings(defense, rounds=40)
    found = []
    for chosen, given in ((defense, public), thinned(defense, public, FEWER)):
        logits = task_of(given).predict(trained(chosen, given), held_out.images)
        found.append(accuracy(logits, held_out.labels))
    assert found[0] > 0.6  # ten classes: it has learned something
    assert found[0] == pytest.approx(found[1], abs=0.04)


def test_as_many_rounds_not_as_many_epochs() -> None:
    defense = made("clip")
    _, fewer = thinned(defense, settings(defense, rounds=None, epochs=7), FEWER)
    assert (fewer.total_rounds, fewer.training.batch_size, fewer.training.rounds) == (7, FEWER, 7)


@pytest.mark.parametrize(("name", "params"), [("skellam", {}), ("mp-dp", {"mode": "paper"})])
def test_noise_that_cannot_be_kept_is_refused(name: str, params: dict[str, Any]) -> None:
    defense = made(name, **params)
    with pytest.raises(UserError, match=rf"{name} has other noise with {FEWER} records"):
        thinned(defense, settings(defense), FEWER)


def test_what_is_printed_for_a_suite_is_what_a_suite_takes() -> None:
    suite = load_suite("contenders")
    assert suite.tuning is not None

    def printed(grid: list[Point], *, further: bool) -> dict[str, Any]:
        values = {point: float(place) for place, point in enumerate(grid)}
        return dict(yaml.safe_load(as_yaml(values, further=further)))

    common = printed(list(points("contenders", suite, suite.tuning)), further=False)
    Tuning.model_validate({**suite.tuning.model_dump(), **common})
    further = printed(list(further_points("contenders", suite, suite.tuning)), further=True)["further"]
    for row, grid in suite.tuning.further.items():
        whole = {"params": grid.params, **further[row]}
        made = Tuning.model_validate({**suite.tuning.model_dump(), "further": {row: whole}})
        assert made.further[row].best() == grid.combinations()[-1]
