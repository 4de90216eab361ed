"""An attack's process: holds what the view gives and nothing of the truth, and dies with its worker."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from leakboard.attacks.base import Attack, Knowledge, MembershipTask
from leakboard.core import registry
from leakboard.datasets.base import LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.defenses.base import Defense
from leakboard.federation.view import View
from leakboard.leaderboard.cells import attack_process
from leakboard.leaderboard.cells.attack_process import Question, opened_files, start_attack_process
from leakboard.leaderboard.cells.fork_server import OTHER_PRINTS
from leakboard.leaderboard.cells.parcel import send_parcel
from leakboard.leaderboard.goals.membership import Membership
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.planning.run_folder import open_run
from tests.leaderboard.plugin_texts import SPY, faulty_attacks
from tests.leaderboard.runs import HANG, call, forget_plugins, records, wait_until, write_suite


def test_the_memory_of_an_attack_holds_no_truth(tmp_path: Path) -> None:
    plugin, folder = tmp_path / "spy.py", tmp_path / "run"
    plugin.write_text(SPY)
    prior = {"name": "prior", "threats": ["server"]}
    suite = write_suite(tmp_path, attacks=[prior], observe={"rounds": ["first"], "targets": 2})

    outcome = call("run", "--suite", suite, "--out", folder, "--plugin", plugin, "--attack", "spy")

    assert outcome.code == 0, outcome.err
    (record,) = (record for record in records(folder).values() if record.cell.attack.name == "spy")
    job = open_run(folder).jobs[0]
    found = {image.tobytes() for image in np.load(tmp_path / "found.npy")}
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


def test_an_attack_dies_with_its_worker(tmp_path: Path) -> None:
    plugin, heartbeat = tmp_path / "faulty.py", tmp_path / "heartbeat"
    plugin.write_text(faulty_attacks(str(tmp_path), str(heartbeat)))
    registry.load_file(plugin)
    attack = cast(Attack, registry.create("attack", "sleeps"))
    nobody = LabelledImages(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64))
    knowledge = Knowledge(cast(View, None), Defense(), nobody, seed=0)
    question = Question((str(plugin),), Membership(), attack, knowledge, MembershipTask(nobody), ())
    process, pipes = start_attack_process()
    send_parcel(pipes.questions, (None, question.plugin_files))
    send_parcel(pipes.questions, question)
    forget_plugins()
    wait_until(heartbeat.exists)

    pipes.close()  # as the end of the worker does

    process.join(HANG)
    assert process.exitcode == 1


def test_a_process_that_nobody_needs_ends_by_itself() -> None:
    process, pipes = start_attack_process()
    assert process.is_alive()

    pipes.close()

    process.join(HANG)
    assert process.exitcode == 0


def test_a_process_is_not_the_child_of_its_worker() -> None:
    # it comes from the fork server, so that it has never shared memory with anybody who read the data
    process, pipes = start_attack_process()
    try:
        parent = int(Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        assert parent != os.getpid()
    finally:
        pipes.close()
        process.join(HANG)
    assert not process.is_alive()


CUT_OFF = """
import os, sys
from pathlib import Path
from leakboard.leaderboard.cells.fork_server import start_fork_server
from leakboard.leaderboard.cells.attack_process import start_attack_process

start_fork_server(Path(sys.argv[1]))
process, pipes = start_attack_process()
lengths = (1000).to_bytes(8, "little") + (0).to_bytes(8, "little")
os.write(pipes.questions.fileno(), lengths + b"only the beginning")
pipes.close()
process.join()
print("it ended with", process.exitcode)
"""


def test_a_worker_that_is_killed_while_it_writes_is_no_news_for_the_terminal(tmp_path: Path) -> None:
    script = [sys.executable, "-c", CUT_OFF, str(tmp_path)]
    done = subprocess.run(script, env=registry.importing_us(), capture_output=True, text=True, timeout=HANG)
    assert (done.stdout, done.stderr) == ("it ended with 1\n", "")
    assert "got end of file during message" in (tmp_path / OTHER_PRINTS).read_text()


BROWSER = """
from typing import ClassVar
import torch
from leakboard.attacks.base import ReconstructionAttack, ReconstructionAnswer


class Browser(ReconstructionAttack):
    '''Reads the true models with a reader in native code, and keeps quiet about the error.'''
    name: ClassVar[str] = "browser"
    citation: ClassVar[str] = "none"

    def reconstruct(self, knowledge, task):
        from safetensors.torch import load_file
        try:
            load_file("RUN/models.safetensors")
        except Exception:
            pass
        return ReconstructionAnswer(tuple(torch.zeros(n, 1, 32, 32) for n in task.sizes))
"""


def test_native_readers_are_watched_and_a_swallowed_refusal_fails_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plugin = tmp_path / "browser.py"
    plugin.write_text(BROWSER.replace("RUN", str(folder / "trainings")))
    suite = write_suite(tmp_path, attacks=[{"name": "prior", "threats": ["server"]}])
    outcome = call("run", "--suite", suite, "--out", folder, "--plugin", plugin, "--attack", "browser")
    found = [record for record in records(folder).values() if record.cell.attack.name == "browser"]
    assert outcome.code == 1
    assert {record.status for record in found} == {"failed"}
    assert all("opened models.safetensors, which its view does not hold" in record.reason for record in found)


INSIDE = """
import warnings
from pathlib import Path
from typing import ClassVar
import torch
import leakboard as lb


def answer(task):
    scores = torch.arange(len(task.candidates), dtype=torch.float32)
    return lb.MembershipAnswer(scores, scores > 0)


class Warns(lb.MembershipAttack):
    '''Warns, for which Python reads this file.'''
    name: ClassVar[str] = "warns"

    def infer(self, knowledge, task):
        warnings.warn("take care")
        return answer(task)


class Mistaken(lb.MembershipAttack):
    '''Raises an error of its own.'''
    name: ClassVar[str] = "mistaken"

    def infer(self, knowledge, task):
        raise ValueError("my own mistake")


class Curious(lb.MembershipAttack):
    '''Opens another file of the run, and then says that it cannot work here.'''
    name: ClassVar[str] = "curious"

    def infer(self, knowledge, task):
        try:
            (Path(__file__).parent.parent / "run.json").read_text()
        except Exception:
            raise lb.Unsupported("not here")


class Writes(lb.MembershipAttack):
    '''Writes to its own file.'''
    name: ClassVar[str] = "writes"

    def infer(self, knowledge, task):
        Path(__file__).open("a").close()
        return answer(task)
"""


def test_a_plugin_file_in_the_runs_folder_may_be_read_and_nothing_else_there(tmp_path: Path) -> None:
    folder, names = tmp_path / "run", ("warns", "mistaken", "curious", "writes")
    plugin = folder / "plugins" / "inside.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(INSIDE)
    suite = write_suite(tmp_path, attacks=[{"name": "loss-threshold", "threats": ["client"]}], training__rounds=1)

    call("run", "--suite", suite, "--out", folder, "--plugin", plugin, "--attack", *names)

    found = {record.cell.attack.name: record for record in records(folder).values()}
    assert {name: (record.status, record.reason) for name, record in found.items()} == {
        "warns": ("ok", ""),
        "mistaken": ("failed", "ValueError: my own mistake"),
        "curious": ("failed", "Cheating: the attack opened run.json, which its view does not hold"),
        "writes": ("failed", "Cheating: the attack opened inside.py, which its view does not hold"),
    }
    assert 'raise ValueError("my own mistake")' in found["mistaken"].traceback


def test_portions_may_be_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array compares with a text element by element, which no `while` can decide."""
    monkeypatch.setattr(attack_process, "open_parcel", lambda portion, _: portion)
    portions = [np.arange(3), torch.arange(2), "text"]
    inbox: queue.Queue[Any] = queue.Queue()
    for portion in (*portions, attack_process.NO_MORE):
        inbox.put((portion, None))
    found = list(attack_process._portions(inbox))
    assert [str(one) for one in found] == [str(one) for one in portions]
