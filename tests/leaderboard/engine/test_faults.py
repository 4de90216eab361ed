"""Attacks and defenses that raise, lie, talk, hang, die or cheat: one record each, and nothing else is harmed."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from leakboard.core.files import locked
from leakboard.leaderboard.engine.executors.base import End
from leakboard.leaderboard.engine.executors.local import LocalExecutor, Started
from leakboard.leaderboard.engine.executors.logs import GAP, KEPT
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.plugin_texts import (
    ATTACK_HEAD,
    BEAT,
    BROKEN_DEFENSE,
    ENDLESS,
    FAULTY_MEMBERSHIP,
    FAULTY_RECONSTRUCTION,
    UNRULY_DEFENSE,
    faulty_attacks,
)
from tests.leaderboard.runs import Outcome, call, comparable, records, stamps, wait_until, write_suite

#: attack -> status and what the reason must say
EXPECTED = {
    "prior": ("ok", ""),
    "raises": ("failed", "ValueError: no such neuron"),
    "nan-scores": ("failed", "scores finite numbers"),
    "wrong-shape": ("failed", "two vectors of one length"),
    "too-few": ("failed", "must score"),
    "list-scores": ("failed", "must be tensors; given: list"),
    "nan-diagnostic": ("failed", "diagnostics must be finite numbers by name; given: 'fit': nan"),
    "nothing": ("failed", "must return a MembershipAnswer; given: NoneType"),
    "wrong-kind": ("failed", "must return a MembershipAnswer; given: ReconstructionAnswer"),
    "huge-scores": ("failed", "a number in it is beyond 1e+150"),
    "huge-flag": ("failed", "flags must be texts of at most"),
    "planted-flag": ("failed", "flags must be texts of at most"),
    "planted-bytes": ("failed", "the attack's process sent something that is no answer"),
    "recurses": ("failed", "RecursionError"),
    "closes-output": ("ok", ""),
    "forks": ("ok", ""),
    "deletes-run": ("failed", "the attack opened run.json, which its view does not hold"),
    "removes-run": ("failed", "which its view does not hold"),
    "chatty": ("ok", ""),
    "exits": ("failed", "process died"),
    "killed": ("failed", "process died"),
    "kills-worker": ("crashed", "its process died (exit code 3); see "),
    "leaves": ("failed", "SystemExit"),
    "unsupported": ("skipped", "it needs two models"),
    "opens-run": ("failed", "the attack opened run.json, which its view does not hold"),
    "reads-data": ("failed", "the attack opened digits.csv.gz, which its view does not hold"),
    "sleeps": ("timeout", "it took longer than its 3600 seconds"),
    "wrong-number": ("failed", "must answer 2 problems; given: 1"),
    "wrong-images": ("failed", "images must be float (1, 1, 32, 32); given: (1, 3, 8, 8)"),
    "nan-images": ("failed", "images must hold finite numbers; 2 of 2 problems have others (NaN, inf)"),
    "one-nan": ("failed", "images must hold finite numbers; 1 of 2 problems have others (NaN, inf)"),
}


@dataclass(frozen=True)
class Disaster:
    """A run in which nearly everything goes wrong."""

    folder: Path
    suite: Path
    plugins: tuple[Path, ...]
    heartbeat: Path
    outcome: Outcome

    @cached_property
    def records(self) -> list[Record]:
        """Read once: no test writes into the folder."""
        return list(records(self.folder).values())

    def record(self, attack: str, defense: str = "fedsgd") -> Record:
        asked = (attack, defense)
        return next(r for r in self.records if (r.cell.attack.label, r.cell.training.defense.label) == asked)


def an_hour_passes(attack: str, mark: Path) -> Callable[[LocalExecutor, Started], End | None]:
    """`LocalExecutor._end_of` under a clock that leaps for this attack alone, and only when it has made its mark."""
    genuine = LocalExecutor._end_of

    def end_of(self: LocalExecutor, running: Started) -> End | None:
        if running.job.cell is not None and running.job.cell.attack.label == attack and mark.exists():
            running.begun = -math.inf
        return genuine(self, running)

    return end_of


def nobody_holds(path: Path) -> bool:
    with locked(path) as free:
        return free


@pytest.fixture(scope="module")
def disaster(tmp_path_factory: pytest.TempPathFactory) -> Disaster:
    home = tmp_path_factory.mktemp("disaster")
    folder, heartbeat = home / "run", home / "heartbeat"
    attacks, defense = home / "faulty.py", home / "broken.py"
    attacks.write_text(faulty_attacks(str(folder), str(heartbeat)))
    defense.write_text(BROKEN_DEFENSE)
    prior = {"name": "prior", "threats": ["server"]}
    observe = {"rounds": ["first"], "targets": 2}
    suite = write_suite(home, attacks=[prior], observe=observe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalExecutor, "_end_of", an_hour_passes("sleeps", heartbeat))
        outcome = call("run", "--suite", suite, "--out", folder, "--workers", 2, "--plugin", attacks, defense)
    return Disaster(folder, suite, (attacks, defense), heartbeat, outcome)


def test_every_fault_of_the_plugin_file_is_expected_here() -> None:
    assert set(EXPECTED) == {"prior", "kills-worker", *FAULTY_MEMBERSHIP, *FAULTY_RECONSTRUCTION}


@pytest.mark.parametrize("attack", list(EXPECTED))
def test_a_fault_is_told_in_its_own_record(disaster: Disaster, attack: str) -> None:
    status, reason = EXPECTED[attack]
    record = disaster.record(attack)
    assert (record.status, reason in record.reason) == (status, True), record.reason
    assert "\n" not in record.reason
    assert bool(record.reason) == (status != "ok")
    assert bool(record.scores) == (status == "ok")


def test_a_run_with_faults_ends_with_1_and_names_them(disaster: Disaster) -> None:
    assert disaster.outcome.code == 1
    assert "Traceback" not in disaster.outcome.out + disaster.outcome.err
    assert "ValueError: no such neuron" in disaster.outcome.out
    assert "page: " in disaster.outcome.out
    assert (disaster.folder / "report" / "index.html").is_file()


def test_an_attack_that_raises_leaves_its_traceback(disaster: Disaster) -> None:
    assert "no such neuron" in disaster.record("raises").traceback
    assert "in infer" in disaster.record("raises").traceback


def test_the_prints_of_an_attack_go_into_its_log(disaster: Disaster) -> None:
    assert "noise" not in disaster.outcome.out + disaster.outcome.err
    logs = [log.read_text() for log in (disaster.folder / "logs").glob("*fedsgd--chatty*")]
    assert len(logs) == 1
    assert "noise" in logs[0][:KEPT]
    assert "noise" in logs[0][-KEPT:]
    assert len(logs[0]) <= 2 * KEPT + len(GAP)  # it printed megabytes


def test_an_attack_does_not_outlive_its_time(disaster: Disaster) -> None:
    assert disaster.heartbeat.exists()  # it did run
    wait_until(lambda: nobody_holds(disaster.heartbeat))


def test_what_an_attack_forked_does_not_outlive_it(disaster: Disaster) -> None:
    forked = disaster.heartbeat.with_name("heartbeat-fork")
    assert forked.exists()  # it did run
    wait_until(lambda: nobody_holds(forked))


def test_a_process_that_lives_is_told_by_its_lock(tmp_path: Path) -> None:
    """The two tests above can fail."""
    code = f"import os, time{BEAT}beat({str(tmp_path / 'heartbeat')!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        wait_until((tmp_path / "heartbeat").exists)
        assert not nobody_holds(tmp_path / "heartbeat")
        process.kill()
    wait_until(lambda: nobody_holds(tmp_path / "heartbeat"))


def test_nothing_that_an_attack_planted_was_executed(disaster: Disaster) -> None:
    assert not disaster.heartbeat.with_name("heartbeat-planted").exists()


def test_the_cells_of_a_failed_training_say_why(disaster: Disaster) -> None:
    reasons = {
        "broken": "RuntimeError: the key has expired",
        "dying": "its process died (exit code 5)",
        "closing": "OSError: [Errno 9] Bad file descriptor",
        "leaving": "its process died (exit code 0)",
        "recursing": "RecursionError: maximum recursion depth exceeded",
        "misshapen": "The defense 'misshapen': `protect` of client:0 must return '1.weight' in shape (8, 1024); given:",
    }
    for defense, reason in reasons.items():
        found = [r for r in disaster.records if r.cell.training.defense.label == defense]
        assert {record.cell.attack.label for record in found} == set(EXPECTED)
        assert {record.status for record in found} == {"failed"}
        assert all(record.reason.startswith(f"its training failed: {reason}") for record in found)
        assert {record.training for record in found} == {None}


def test_only_failed_cells_are_retried_and_only_when_asked(disaster: Disaster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(disaster.folder, folder)
    # the filter leaves out the attack that sleeps; keys of cells do not depend on the rest of the suite
    same = ["run", "--suite", disaster.suite, "--out", folder, "--plugin", *disaster.plugins]
    same += ["--attack", "prior", "raises", "unsupported", "--defense", "fedsgd"]
    before = stamps(folder, "records/*")

    kept = call(*same)
    untouched = stamps(folder, "records/*")
    retried = call(*same, "--retry-failed")

    assert (kept.code, retried.code) == (1, 1)
    assert "3 cells, 3 already there" in kept.began
    assert untouched == before
    assert "3 cells, 2 already there" in retried.began
    now = stamps(folder, "records/*")
    assert {Path(name).name.split("--")[2] for name in now if now[name] != before[name]} == {"raises"}


def test_a_failed_training_is_retried_when_asked(disaster: Disaster, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(disaster.folder, folder)
    same = ["run", "--suite", disaster.suite, "--out", folder, "--plugin", *disaster.plugins]

    outcome = call(*same, "--attack", "prior", "--defense", "broken", "--retry-failed")

    assert outcome.code == 1
    assert "2 cells, 1 already there" in outcome.began
    assert "failed   training digits / broken" in outcome.err


def test_an_unruly_defense_spoils_its_own_row_alone(tmp_path: Path) -> None:
    (tmp_path / "unruly.py").write_text(UNRULY_DEFENSE)
    attacks = [{"name": "prior", "threats": ["server"]}, {"name": "loss-threshold", "threats": ["client"]}]
    suite = write_suite(tmp_path, attacks=attacks, observe={"rounds": ["first"], "targets": 2})

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--plugin", tmp_path / "unruly.py")

    assert "Traceback" not in outcome.out + outcome.err
    assert "noise" not in outcome.out + outcome.err
    found = records(tmp_path / "run").values()
    assert {r.status for r in found if r.cell.training.defense.label == "fedsgd"} == {"ok"}
    mine = [r for r in found if r.cell.training.defense.label == "unruly"]
    assert len(mine) == 2
    assert all(r.training is not None and r.training.diverged for r in mine)
    assert all(r.status in ("ok", "failed", "skipped") and "\n" not in r.reason for r in mine)


def test_a_damaged_training_costs_its_own_cells(tmp_path: Path) -> None:
    attacks = [{"name": "prior", "threats": ["server"]}]
    defenses = ["fedsgd", {"name": "fedsgd", "label": "other", "training": {"learning_rate": 0.05}}]
    suite = write_suite(tmp_path, attacks=attacks, defenses=defenses, observe={"rounds": ["first"], "targets": 2})
    same = ["run", "--suite", suite, "--out", tmp_path / "run"]
    assert call(*same).code == 0
    for path in (tmp_path / "run" / "records").iterdir():
        path.unlink()
    job = next(job for job in open_run(tmp_path / "run").jobs if job.training.defense.label == "other")
    (job.training_folder / "summary.json").write_text("{")

    outcome = call(*same)

    assert outcome.code == 1
    assert "Traceback" not in outcome.err
    found = {record.cell.training.defense.label: record.status for record in records(tmp_path / "run").values()}
    assert found == {"fedsgd": "ok", "other": "crashed"}


def test_a_training_without_end_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    prior = {"name": "prior", "threats": ["server"]}
    suite = write_suite(tmp_path, attacks=[prior], observe={"rounds": ["first"], "targets": 2}, time_limit=2)

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--plugin", tmp_path / "endless.py")

    assert outcome.code == 1
    (record,) = [r for r in records(tmp_path / "run").values() if r.cell.training.defense.label == "endless"]
    assert record.status == "failed"
    assert record.reason == "its training failed: it took longer than its 2 seconds"
    job = open_run(tmp_path / "run").job_of(record)
    assert job is not None
    assert not job.training_folder.exists()


HUNGRY = (
    ATTACK_HEAD
    + """
from leakboard.defenses.base import Defense

def eat():
    held = [torch.ones(2**26) for _ in range(8)]  # 2 GiB, held until somebody comes
    time.sleep(600)

class HungryAttack(MembershipAttack):
    '''Takes more memory than it may.'''
    name: ClassVar[str] = "hungry"
    def infer(self, knowledge, task):
        eat()

class HungryDefense(Defense):
    '''Takes more memory than it may.'''
    name: ClassVar[str] = "greedy"
    def protect(self, me, gradient):
        eat()
"""
)


def test_a_job_out_of_memory_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(HUNGRY)
    prior = {"name": "prior", "threats": ["server"]}
    suite = write_suite(tmp_path, attacks=[prior], observe={"rounds": ["first"], "targets": 2}, memory_limit=2)

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--plugin", tmp_path / "hungry.py")

    assert outcome.code == 1
    found = {(r.cell.training.defense.label, r.cell.attack.label): r for r in records(tmp_path / "run").values()}
    told = "it took more than its 2 GiB of memory"
    assert {cell: (record.status, record.reason) for cell, record in found.items()} == {
        ("fedsgd", "prior"): ("ok", ""),
        ("fedsgd", "hungry"): ("crashed", told),
        ("greedy", "prior"): ("failed", f"its training failed: {told}"),
        ("greedy", "hungry"): ("failed", f"its training failed: {told}"),
    }


FULL_DISK = (
    ATTACK_HEAD
    + """
import errno
fsync = os.fsync

def full(handle):
    if os.path.exists("MARK") and "no-room" in os.readlink(f"/proc/self/fd/{handle}"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    fsync(handle)

os.fsync = full

class NoRoom(MembershipAttack):
    '''Finds no room for its record while the mark is there.'''
    name: ClassVar[str] = "no-room"
    def infer(self, knowledge, task):
        scores = torch.zeros(len(task.candidates))
        return MembershipAnswer(scores, scores > 0)
"""
)


def test_a_record_without_room_on_the_disk_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", os.fsync)  # the plugin replaces it in this process too
    mark, plugin, folder = tmp_path / "full", tmp_path / "no_room.py", tmp_path / "run"
    mark.touch()
    plugin.write_text(FULL_DISK.replace("MARK", str(mark)))
    prior = {"name": "prior", "threats": ["server"]}
    suite = write_suite(tmp_path, attacks=[prior], observe={"rounds": ["first"], "targets": 2})
    same = ("run", "--suite", suite, "--out", folder, "--plugin", plugin)

    full = call(*same)

    assert full.code == 1
    assert "Traceback" not in full.out + full.err
    (told,) = [line for line in full.err.splitlines() if "no record" in line]
    assert "its files could not be written: is the disk full or read-only?" in told
    assert told.endswith("it cannot be written: No space left on device")
    assert "1 cells have no record" in full.out
    assert [record.cell.attack.label for record in records(folder).values()] == ["prior"]
    assert list(folder.rglob("*.part")) == []

    mark.unlink()
    again = call(*same)

    assert again.code == 0
    assert "2 cells, 1 already there" in again.began
    assert {record.status for record in records(folder).values()} == {"ok"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_harms_no_record_and_the_run_goes_on_when_there_is_room(
    tiny_suite: Path, tiny_run: Path, small_disk: Path
) -> None:
    folder, ballast = small_disk / "run", small_disk / "ballast"
    room = shutil.disk_usage(small_disk).free
    ballast.write_bytes(bytes(room - 150_000))  # room for the plan, not for the training

    full = call("run", "--suite", tiny_suite, "--out", folder)

    assert full.code in (1, 2)  # 2 where there was no room for the page either
    assert "Traceback" not in full.out + full.err
    assert "No space left on device" in full.err
    assert list(folder.rglob("*.part")) == []

    ballast.unlink()
    again = call("run", "--suite", tiny_suite, "--out", folder, "--retry-failed")

    assert again.code == 0, again.err
    assert comparable(folder) == comparable(tiny_run)
