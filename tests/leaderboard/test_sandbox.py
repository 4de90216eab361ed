"""An attack's process: holds what the view gives and nothing of the truth, and dies with its worker."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import cast

import pytest
import torch

from attacks.base import Attack, Knowledge, MembershipTask, ReconstructionAnswer
from core import registry
from datasets.base import LabelledImages
from datasets.digits import Digits
from defenses.base import Defense
from federation.view import View
from leaderboard.answers import load_answer
from leaderboard.sandbox import Errand, open_cage, opened_files
from leaderboard.store import open_run
from leaderboard.training import splits_of
from tests.leaderboard.plugin_texts import SPY, faulty_attacks
from tests.leaderboard.runs import call, forget_plugins, records, write_suite


@pytest.mark.slow
def test_the_memory_of_an_attack_holds_no_truth(tmp_path: Path) -> None:
    plugin, folder = tmp_path / "spy.py", tmp_path / "run"
    plugin.write_text(SPY)
    prior = {"name": "prior", "threats": ["server"]}
    suite = write_suite(tmp_path, attacks=[prior], observe={"rounds": ["first"], "targets": 2})

    outcome = call("run", "--suite", suite, "--out", folder, "--plugin", plugin, "--attack", "spy")

    assert outcome.code == 0, outcome.err
    (record,) = records(folder).values()
    (job,) = open_run(folder).jobs
    answer, _ = load_answer(folder / "records" / record.reconstructions)
    assert isinstance(answer, ReconstructionAnswer)
    found = {image.numpy().tobytes() for image in answer.images[0]}
    pool = Digits().read()
    splits = splits_of(job, pool)

    def seen(indices: torch.Tensor) -> int:
        return sum(image.numpy().tobytes() in found for image in pool.take(indices).images)

    assert seen(splits.auxiliary) == len(splits.auxiliary)  # the spy does see what there is
    targets = torch.tensor(record.target_indices)
    assert targets.tolist() == splits.shards[0][:2].tolist()
    assert seen(targets) == 0
    assert seen(splits.members) == seen(splits.non_members) == seen(splits.test) == 0
    assert record.diagnostics == {"Job": 0, "ImagePool": 0, "Federation": 0}


def test_opened_files_tells_where_the_data_came_from() -> None:
    with opened_files() as files:
        Digits().read()
    names = {Path(file).name for file in files}
    assert "digits.csv.gz" in names
    assert not {name for name in names if name.endswith(".py")}


@pytest.mark.slow
def test_an_attack_dies_with_its_worker(tmp_path: Path) -> None:
    plugin, heartbeat = tmp_path / "faulty.py", tmp_path / "heartbeat"
    plugin.write_text(faulty_attacks(str(tmp_path), str(heartbeat)))
    registry.load_file(plugin)
    attack = cast(Attack, registry.create("attack", "sleeps"))
    nobody = LabelledImages(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64))
    knowledge = Knowledge(cast(View, None), Defense(), nobody, seed=0)
    errand = Errand((str(plugin),), attack, knowledge, MembershipTask(nobody), ())
    process, cage = open_cage()
    cage.errands.send_bytes(pickle.dumps((None, pickle.dumps((errand.plugin_files, pickle.dumps(errand))))))
    forget_plugins()
    limit = time.monotonic() + 30
    while not heartbeat.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    assert heartbeat.exists()

    cage.close()  # as the end of the worker does

    process.join(20)
    assert process.exitcode == 1


@pytest.mark.slow
def test_a_process_that_nobody_needs_ends_by_itself() -> None:
    process, cage = open_cage()
    assert process.is_alive()

    cage.close()

    process.join(20)
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_process_is_not_the_child_of_its_worker() -> None:
    # it comes from the fork server, so that it has never shared memory with anybody who read the data
    process, cage = open_cage()
    try:
        parent = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert parent != os.getpid()
    finally:
        cage.close()
        process.join(20)
    assert not process.is_alive()
