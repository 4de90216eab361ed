"""The pool of shadow models: halves, sharing, resuming after a kill, and never a model of another configuration."""

from __future__ import annotations

import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from leakboard.attacks.base import Knowledge, final_model
from leakboard.attacks.membership.building_blocks import shadows as _shadows
from leakboard.attacks.membership.building_blocks.calibration import threshold
from leakboard.attacks.membership.building_blocks.shadows import (
    ShadowPool,
    Signals,
    moments_of,
    read_signals,
    shadow_pool,
    train_shadows,
)
from leakboard.contract.worlds import World, make_world
from leakboard.core.errors import Unsupported
from leakboard.core.files import locked
from leakboard.core.registry import IMPORT_ROOT, ROOT
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.defenses.cdp import Cdp
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.settings import Public
from leakboard.federation.shadow import train_shadow
from tests.attacks.clock import LONG_AGO
from tests.contract.plugins import defenses, title
from tests.federation.cheating_defense import Planted, Raising

WORLD = make_world(FedSGD(), model_parameters={"hidden": [8]}, rounds=4)


def knowledge(world: World = WORLD, threat: str = "client", seed: int = 5) -> Knowledge:
    return Knowledge(world.view(threat), world.defense, world.auxiliary, seed)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one number, how many records it learned, for every shadow that is really trained."""
    found: list[int] = []
    real = train_shadow

    def counted(scheme: Any, public: Public, data: LabelledImages, *rest: Any, **named: Any) -> Any:
        found.append(len(data))
        return real(scheme, public, data, *rest, **named)

    monkeypatch.setattr(_shadows, "train_shadow", counted)
    return found


@pytest.mark.parametrize("online", [False, True])
def test_every_record_of_the_universe_is_in_exactly_half_of_the_models(online: bool) -> None:
    pool = shadow_pool(knowledge(), WORLD.unseen, 4, online=online)
    assert len(pool.records) == len(WORLD.unseen) + len(WORLD.shards["client:1"]) + len(WORLD.auxiliary)
    assert torch.equal(pool.records.images[pool.own], WORLD.shards["client:1"].images)
    assert torch.equal(pool.records.images[pool.auxiliary], WORLD.auxiliary.images)
    inside = pool.member[:, pool.universe]
    assert (inside.sum(0) == 2).all()
    assert torch.equal(inside[0], ~inside[1])
    assert torch.equal(inside[2], ~inside[3])
    assert not torch.equal(inside[0], inside[2])
    if not online:
        assert not pool.member[:, pool.candidates].any()
        assert not pool.member[:, pool.own].any()
    assert bool(pool.flags) == online  # who knows the candidates says so


def test_signals_are_those_of_a_model_that_learned_the_half(trainings: list[int]) -> None:
    pool = shadow_pool(knowledge(), WORLD.unseen, 2, online=False)
    assert trainings == [20, 20]
    assert set(pool.signals.logits) == {"first", "last", "final"}  # what the target's view has
    assert pool.signals.final.shape == (2, len(pool.records), 10)
    assert pool.signals.norms["last"].shape == (2, len(pool.records))
    assert not torch.equal(pool.signals.final[0], pool.signals.final[1])
    assert not torch.equal(pool.signals.logits["first"][0], pool.signals.final[0])


def test_the_models_of_a_view_are_told_apart() -> None:
    known = knowledge()
    models = moments_of(known)
    assert set(models) == {"first", "last", "final"}
    assert all(torch.equal(models["final"][n], v) for n, v in final_model(known).items())
    first = WORLD.outcome.transcript.observations[1]
    assert first.context.kind == "train"
    assert any(not torch.equal(models["first"][n], v) for n, v in models["final"].items())
    signals = read_signals(known, WORLD.unseen)
    assert torch.equal(signals.final, known.task.predict(models["final"], WORLD.unseen.images))


def test_later_attacks_and_larger_pools_take_over_what_is_there(trainings: list[int]) -> None:
    small = shadow_pool(knowledge(seed=5), WORLD.unseen, 2, online=False)
    large = shadow_pool(knowledge(seed=6), WORLD.unseen, 4, online=False)
    assert len(trainings) == 4
    assert torch.equal(large.signals.final[:2], small.signals.final)
    assert torch.equal(large.member[:2], small.member)


def _changed_public(known: Knowledge) -> Knowledge:
    training = known.public.training.model_copy(update={"learning_rate": 0.03})
    return replace(known, view=replace(known.view, public=known.public.model_copy(update={"training": training})))


def _changed_records(known: Knowledge) -> Knowledge:
    return replace(known, auxiliary=known.auxiliary.select(torch.arange(len(known.auxiliary)).flip(0)))


def test_no_model_of_another_configuration_is_used(trainings: list[int]) -> None:
    known = knowledge()
    others = [
        known,
        knowledge(threat="server"),
        replace(known, defense=Cdp()),
        replace(known, defense=Cdp(epsilon=3.5)),
        _changed_public(known),
        _changed_records(known),
    ]
    for count, other in enumerate(others, start=1):
        shadow_pool(other, WORLD.unseen, 1, online=False)
        assert len(trainings) == count
    shadow_pool(known, WORLD.unseen.select(torch.arange(39)), 1, online=False)
    shadow_pool(known, WORLD.unseen, 1, online=True)
    shadow_pool(known, WORLD.unseen, 1, online=False, precision="bfloat16")
    assert len(trainings) == len(others) + 3
    shadow_pool(known, WORLD.unseen, 1, online=False)
    assert len(trainings) == len(others) + 3


def test_changed_source_code_makes_another_pool_with_the_same_draws(
    monkeypatch: pytest.MonkeyPatch, trainings: list[int]
) -> None:
    before = shadow_pool(knowledge(), WORLD.unseen, 1, online=False)
    monkeypatch.setattr(_shadows, "source_digests", lambda roots: dict.fromkeys(roots, "edited"))
    after = shadow_pool(knowledge(), WORLD.unseen, 1, online=False)
    assert len(trainings) == 2
    assert torch.equal(before.member, after.member)
    assert all(torch.equal(values, after.signals.logits[name]) for name, values in before.signals.logits.items())


def test_a_file_that_is_not_whole_counts_as_none(trainings: list[int], shadow_folder: Path) -> None:
    before = shadow_pool(knowledge(), WORLD.unseen, 2, online=False)
    file = next(shadow_folder.glob("*/1.safetensors"))
    file.write_bytes(file.read_bytes()[:-5])
    after = shadow_pool(knowledge(), WORLD.unseen, 2, online=False)
    assert len(trainings) == 3
    assert torch.equal(before.signals.final, after.signals.final)
    assert not list(shadow_folder.glob("*/.*"))


CHILD = """
import sys, time
from pathlib import Path
from dataclasses import replace
from tests.attacks.test_shadow_pool import WORLD, knowledge
from leakboard.attacks.membership.building_blocks.shadows import shadow_pool

def progress(line):
    print(line, flush=True)
    if line.startswith("shadow 2"):
        time.sleep(600)  # here it is killed

shadow_pool(replace(knowledge(), progress=progress), WORLD.unseen, 4, online=False, folder=Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_killed_pool_continues_where_it_stopped(trainings: list[int], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (IMPORT_ROOT, ROOT)))}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "killed")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    try:
        lines = [child.stdout.readline() for _ in range(3)]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert lines[0].startswith("shadow pool ")
    assert lines[1:] == ["shadow 1 of 4\n", "shadow 2 of 4\n"]

    resumed = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=tmp_path / "killed")
    assert len(trainings) == 2
    whole = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=tmp_path / "whole")
    assert len(trainings) == 6
    assert torch.equal(resumed.member, whole.member)
    assert all(torch.equal(resumed.signals.logits[m], whole.signals.logits[m]) for m in whole.signals.logits)


def test_a_model_that_another_process_is_training_is_left_to_it(
    trainings: list[int], shadow_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = shadow_folder.parent / "elsewhere"
    before = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=elsewhere)
    done = next(elsewhere.glob("*/1.safetensors"))
    mine = shadow_folder / done.parent.name
    seen: list[str] = []
    known = replace(knowledge(), progress=seen.append)
    with ExitStack() as other:
        assert other.enter_context(locked(mine / "1.lock"))

        def finished(seconds: float) -> None:  # the others are made, only the busy one is waited for
            assert seen == [f"shadow {n} of 4" for n in (1, 2, 3)]
            shutil.copy(done, mine / done.name)
            other.close()

        monkeypatch.setattr("leakboard.attacks.membership.building_blocks.shadows.time.sleep", finished)
        after = shadow_pool(known, WORLD.unseen, 4, online=False)
    assert len(trainings) == 4 + 3
    assert torch.equal(before.member, after.member)
    assert torch.equal(before.signals.final, after.signals.final)


def test_the_threads_of_a_process_change_no_bit(tmp_path: Path) -> None:
    """The shape matters: two threads divide products of 6 rows otherwise than one does."""
    world = make_world(FedSGD(), model_parameters={"hidden": [16]}, rounds=4, batch_size=6)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(shadow_pool(knowledge(world), world.unseen, 2, online=False, folder=tmp_path / str(threads)))
        assert torch.get_num_threads() == threads
    assert all(torch.equal(found[0].signals.logits[m], found[1].signals.logits[m]) for m in found[0].signals.logits)


def test_two_processes_fill_one_pool(trainings: list[int], tmp_path: Path) -> None:
    two = train_shadows(knowledge(), WORLD.unseen, 4, online=False, workers=2, folder=tmp_path / "two")
    assert trainings == []  # all were trained in other processes
    one = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=tmp_path / "one")
    assert torch.equal(one.member, two.member)
    assert torch.equal(one.signals.final, two.signals.final)


def test_nothing_that_the_processes_of_a_pool_raise_is_unpickled(tmp_path: Path) -> None:
    """On the code before issue 17 the planted error ran here: an executor unpickles what its processes raise."""
    marker = tmp_path / "executed"
    known = replace(knowledge(), defense=Raising(marker=str(marker)))
    with pytest.raises(RuntimeError, match="a process that trained shadow models failed"):
        train_shadows(known, WORLD.unseen, 2, online=False, workers=1, folder=tmp_path / "pool")
    assert not marker.exists()


def test_a_kept_model_of_another_form_is_trained_anew(trainings: list[int], tmp_path: Path) -> None:
    """Whoever can write the folder may have written the file: names, shapes, kinds and size are looked at."""
    whole = shadow_pool(knowledge(), WORLD.unseen, 1, online=False, folder=tmp_path)
    (file,) = tmp_path.glob("*/0.safetensors")
    good = load_file(file)
    forms = [
        {**good, "logits/final": good["logits/final"][:, :5]},
        {**good, "logits/final": good["logits/final"].double()},
        {**good, "norms/final": good["norms/final"][:3]},
        {**good, "logits/other": good["logits/final"]},
        {**good, "member": good["member"].float()},
        {**good, "more": torch.zeros(10_000_000)},
    ]
    for number, tensors in enumerate(forms, start=2):
        save_file({name: value.clone().contiguous() for name, value in tensors.items()}, file)
        again = shadow_pool(knowledge(), WORLD.unseen, 1, online=False, folder=tmp_path)
        assert len(trainings) == number
        assert torch.equal(again.signals.final, whole.signals.final)
    file.write_bytes(pickle.dumps(Planted(str(tmp_path / "executed"))))
    shadow_pool(knowledge(), WORLD.unseen, 1, online=False, folder=tmp_path)
    assert len(trainings) == len(forms) + 2
    assert not (tmp_path / "executed").exists()


def test_a_pool_ends_with_whole_pairs_when_the_time_does() -> None:
    late = replace(knowledge(), deadline=LONG_AGO)
    pool = shadow_pool(late, WORLD.unseen, 6, online=False)
    assert len(pool) == 2
    assert pool.flags == ("stopped at its time limit: only 2 of 6 shadow models",)


def test_a_model_that_another_process_trains_is_not_waited_for_beyond_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=tmp_path)
    (missing,) = tmp_path.glob("*/3.safetensors")
    missing.unlink()
    waited: list[float] = []  # the time ends while the busy model is waited for
    monkeypatch.setattr("leakboard.attacks.membership.building_blocks.shadows.time.sleep", waited.append)
    monkeypatch.setattr(Knowledge, "time_left", lambda self: -1.0 if waited else math.inf)
    with locked(missing.with_suffix(".lock")) as mine:
        assert mine
        pool = shadow_pool(knowledge(), WORLD.unseen, 4, online=False, folder=tmp_path)
    assert len(waited) == 1
    assert len(pool) == 2
    assert torch.equal(pool.member, whole.member[:2])
    assert pool.flags == ("stopped at its time limit: only 2 of 4 shadow models",)


def _pool(own: int, models: int) -> ShadowPool:
    records = LabelledImages(torch.zeros(own + 6, 1, 2, 2), torch.zeros(own + 6, dtype=torch.int64))
    member = torch.zeros(models, own + 6, dtype=torch.bool)
    for index in range(models):
        member[index, own + 2 + index % 2 :: 2] = True
    return ShadowPool(records, slice(0, 2), slice(2, own + 2), slice(own + 2, own + 6), False, member, Signals({}, {}))


def test_the_threshold_looks_at_no_candidate() -> None:
    def none(index: int, rest: torch.Tensor) -> torch.Tensor:
        raise AssertionError("own records are enough")

    for candidates in ([99.0, -99.0], [0.0, 0.0]):
        scores = torch.tensor([*candidates, 4.0, 5.0, 0.0, 1.0, torch.nan, 2.0])
        assert threshold(_pool(2, 2), scores, none) == 3.0  # between own and auxiliary
        scores = torch.tensor([*candidates, 0.0, 1.0, torch.nan, 2.0])
        assert threshold(_pool(0, 2), scores, none) == 1.0  # no own, no second pair: the median


def test_without_own_records_the_shadows_play_the_target() -> None:
    asked: list[tuple[int, list[int]]] = []

    def played(index: int, rest: torch.Tensor) -> torch.Tensor:
        asked.append((index, rest.tolist()))
        scores = _pool(0, 4).member[index].double() * 10
        scores[:2] = torch.tensor([77.0, -77.0])  # candidates are not looked at
        return scores

    assert threshold(_pool(0, 4), torch.zeros(6), played) == 5.0
    assert asked == [(0, [2, 3]), (1, [2, 3]), (2, [0, 1]), (3, [0, 1])]


#: without those whose target would really encrypt everything: their shadows do not, and are the same
QUICK = [defense for defense in defenses() if getattr(defense, "crypto", "sampled") != "real"]


@pytest.mark.parametrize("defense", QUICK, ids=title)
def test_shadows_train_under_every_defense_and_are_read_as_their_target_is(defense: Defense) -> None:
    world = make_world(defense, model_parameters={"hidden": [8]}, rounds=4)
    for threat in ("client", "server"):
        known = knowledge(world, threat)
        try:
            seen = read_signals(known, world.unseen)
        except Unsupported:  # this threat sees no model: then neither do shadows help
            continue
        pool = shadow_pool(known, world.unseen, 2, online=False)
        assert set(pool.signals.logits) == set(seen.logits)
        assert pool.signals.final.isfinite().all()
