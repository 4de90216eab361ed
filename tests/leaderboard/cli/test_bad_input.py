"""What a user can get wrong: one sentence on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from leakboard.core.registry import ROOT
from tests.leaderboard.plugin_texts import CONSTANT
from tests.leaderboard.runs import HANG, TINY, Outcome, call, write_suite


def refused(outcome: Outcome, *parts: str) -> None:
    """The form that every refusal has, and what it must say."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("run_benchmark.py: ")
    assert outcome.err.endswith("\n")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    for part in parts:
        assert part in outcome.err


def prior_under(*threats: str) -> list[dict[str, Any]]:
    return [{"name": "prior", "threats": list(threats)}]


SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "unknown key": ({"atacks": []}, ("'atacks'", "did you mean 'attacks'?")),
    "unknown key inside": ({"training__learning_rte": 1}, ("learning_rte", "did you mean 'learning_rate'?")),
    "unknown defense": ({"defenses": ["fedsdg"]}, ("no defense 'fedsdg'", "did you mean 'fedsgd'?")),
    "unknown attack": ({"attacks": [{"name": "shadwo", "threats": ["client"]}]}, ("did you mean 'shadow'?",)),
    "unknown dataset": ({"datasets": ["digit"]}, ("no dataset 'digit'", "did you mean 'digits'?")),
    "unknown model": ({"model": "mpl"}, ("no model 'mpl'", "did you mean 'mlp'?")),
    "a network that no memory holds": (
        {"model": {"name": "mlp", "params": {"hidden": [2**31]}}},
        ("The model 'mlp' must have from 1 to 268435456 weights", "it has 22"),
    ),
    "a network beyond counting": (
        {"model": {"name": "mlp", "params": {"hidden": [10**30]}}},
        ("The model 'mlp' cannot",),
    ),
    "unknown parameter": ({"model": {"name": "mlp", "params": {"hiden": [8]}}}, ("did you mean 'hidden'?",)),
    "unknown threat": ({"attacks": prior_under("sever")}, ("no threat 'sever'", "server+keys")),
    "more colluders than clients": ({"attacks": prior_under("server+clients:9")}, ("server+clients:9", "from 1 to 2")),
    "the same threat twice": ({"attacks": prior_under("server", "server")}, ("must differ",)),
    "an unknown control": ({"control": "none"}, ("no control", "fedsgd")),
    "rounds and epochs": ({"training__epochs": 1}, ("either rounds or epochs",)),
    "negative learning rate": ({"training__learning_rate": -0.1}, ("training.learning_rate", "greater than 0", "-0.1")),
    "a learning rate that is no number": ({"training__learning_rate": float("nan")}, ("training.learning_rate",)),
    "two of a name": ({"defenses": ["fedsgd", "fedsgd"]}, ("two defenses are called fedsgd", "label")),
    "seeds twice": ({"seeds": [1, 1]}, ("seeds must differ",)),
    "a huge seed": ({"seeds": [10**40]}, ("seeds.0",)),
    "rounds twice": ({"observe__rounds": ["first", "first"]}, ("rounds must differ",)),
    "a batch larger than a shard": ({"training__batch_size": 500}, ("batch_size 500", "at most 191", "3 clients")),
    "more targets than records": ({"observe__targets": 500}, ("targets (500)", "at most", "192")),
    "a batch size twice": ({"observe": {"probe_batch": [2, 2]}}, ("probe_batch", "a list of different ones", "[2, 2]")),
    "no batch size": ({"observe": {"probe_batch": []}}, ("probe_batch", "a list of different ones")),
    "a batch of nothing": (
        {"observe": {"probe_batch": [0, 1]}},
        ("observe.probe_batch", "a whole number of at least 1", "[0, 1]"),
    ),
    "few batches of each size": (
        {"observe": {"probe_batch": [1, 2], "targets": 4}},
        ("with several batch sizes targets must be at least 8", "given: 4"),
    ),
    "more batches than records": (
        {"observe": {"probe_batch": [1, 2, 4, 8, 16], "targets": 8}},
        ("targets (8) batches of 1, 2, 4, 8, 16 records need 248 records of the victim", "it has 192"),
    ),
    "no defense": ({"defenses": []}, ("defenses", "at least 1")),
    "a name that leads elsewhere": ({"name": "../up"}, ("'name'", "../up")),
    "a name that is a folder": ({"name": ".."}, ("'name'", "..")),
    "no time": ({"time_limit": 0}, ("time_limit", "greater than 0")),
    "a file without a name": ({"datasets": ["npz"]}, ("npz:FILE",)),
    "a file that is not there": ({"datasets": ["npz:/nowhere/x.npz"]}, ("/nowhere/x.npz",)),
    "a value where none is taken": ({"datasets": ["digits:8"]}, ("takes nothing after a colon",)),
}


@pytest.mark.parametrize("case", list(SETTINGS))
def test_a_wrong_setting_is_one_sentence(case: str, tmp_path: Path) -> None:
    changes, parts = SETTINGS[case]
    suite = write_suite(tmp_path, **changes)

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run")

    refused(outcome, *parts)
    assert not (tmp_path / "run").exists()


TEXTS: dict[str, tuple[bytes, str]] = {
    "invalid YAML": (b"name: [tiny", "not valid YAML in line 1"),
    "a list": (b"- name", "must be a mapping of settings; given: list"),
    "nothing": (b"", "given: NoneType"),
    "a text": (b"quick", "given: str"),
    "huge": (b"#" * 1_000_001, "too large"),
    "not UTF-8": (b"name: \xff\xfe", "not valid YAML"),
    "a control character": (b"name: \x00", "not valid YAML"),
    "deep": (b"[" * 50_000, "not valid YAML"),
    "a 13th month": (b"name: 2020-13-45", "not valid YAML"),
    "a long number": (b"seeds: [" + b"1" * 5000 + b"]", "not valid YAML"),
    "a wrong tag": (b"name: !!bool maybe", "not valid YAML"),
    "a wrong date tag": (b"name: !!timestamp maybe", "not valid YAML"),
    "code": (b"name: !!python/object/apply:os.system [echo]", "not valid YAML"),
    "a loop": (b"name: &x [*x]", "an alias refers to itself"),
    "keys that are numbers": (yaml.safe_dump(TINY).encode() + b"1: 2", "Keys should be strings; given: 1"),
}


@pytest.mark.parametrize("case", list(TEXTS))
def test_a_file_that_is_no_suite_is_one_sentence(case: str, tmp_path: Path) -> None:
    content, part = TEXTS[case]
    suite = tmp_path / "suite.yaml"
    suite.write_bytes(content)

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run")

    refused(outcome, "suite.yaml", part)
    assert not (tmp_path / "run").exists()


def broken_plugin(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text)
    return path


OPTIONS: dict[str, tuple[Callable[[Path], list[object]], str]] = {
    "workers": (lambda _: ["--workers", -1], "workers must be from 1"),
    "no workers": (lambda _: ["--workers", 0], "workers must be from 1 to 1024, a whole number; given: 0"),
    "weights": (lambda home: ["--lpips-weights", home / "none.pth"], "there is no file"),
    "missing plugin": (lambda home: ["--plugin", home / "none.py"], "no plugin file"),
    "plugin with a typing error": (lambda home: ["--plugin", broken_plugin(home, "def f(:")], "SyntaxError"),
    "plugin that raises": (lambda home: ["--plugin", broken_plugin(home, "raise ValueError('a\\nb')")], "ValueError"),
    "plugin without a plugin": (lambda home: ["--plugin", broken_plugin(home, "x = 1")], "defines no plugin"),
    "plugin of a name in use": (
        lambda home: ["--plugin", broken_plugin(home, CONSTANT.replace('"constant"', '"shadow"'))],
        "Two plugins are called attack 'shadow'",
    ),
    "defense": (lambda _: ["--defense", "fedsdg"], "did you mean 'fedsgd'?"),
    "attack": (lambda _: ["--attack", "shadwo"], "did you mean 'shadow'?"),
    "seeds": (lambda _: ["--seed", 1, 1], "seeds must differ"),
    "seed": (lambda _: ["--seed", 10**40], "seeds.0"),
}


@pytest.mark.parametrize("case", list(OPTIONS))
def test_a_wrong_option_is_one_sentence(case: str, tmp_path: Path) -> None:
    make, part = OPTIONS[case]
    options = make(tmp_path)
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", tmp_path / "run", *options)
    refused(outcome, part)
    assert not (tmp_path / "run").exists()


def test_cuda_without_cuda_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", tmp_path / "run", "--device", "cuda")
    refused(outcome, "device cuda", "use cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("below", ["", "run", "deep/run"])
def test_a_blocked_folder_is_one_sentence(below: str, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("mine")
    outcome = call("run", "--suite", write_suite(tmp_path), "--out", blocker / below)
    refused(outcome, "cannot be written to", "`out` names another")
    assert blocker.read_text() == "mine"


def test_a_page_that_cannot_be_written_is_one_sentence(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((tiny_run / "run.json").read_text())
    (tmp_path / "report").write_text("in the way")
    refused(call("report", "--out", tmp_path), "page cannot be written")


@pytest.mark.parametrize("content", ["noise", "cut", "objects", "empty"])
def test_a_corrupt_npz_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    if content == "objects":
        np.savez(path, images=np.array([{}], dtype=object), labels=np.zeros(1, dtype=np.int64))
    else:
        images = np.random.default_rng(0).integers(0, 255, (20, 16, 16), dtype=np.uint8)
        np.savez(path, images=images, labels=np.arange(20) % 2)
        whole = path.read_bytes()
        path.write_bytes({"noise": b"\x00noise" * 50, "cut": whole[: len(whole) // 2], "empty": b""}[content])
    outcome = call("run", "--suite", write_suite(tmp_path, datasets=[f"npz:{path}"]), "--out", tmp_path / "run")
    refused(outcome, "mine.npz")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["table", "report"])
def test_a_folder_without_a_run_is_one_sentence(command: str, tmp_path: Path) -> None:
    refused(call(command, "--out", tmp_path / "none"), "There is no run in", "the command `run` makes one")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"suite": 1}', "[" * 100_000, '{"jobs": "x"}'])
@pytest.mark.parametrize("command", ["table", "report"])
def test_a_run_file_of_something_else_is_one_sentence(command: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    refused(call(command, "--out", tmp_path), "not the file of a run")


def test_a_run_file_with_jobs_of_another_version_is_one_sentence(tiny_run: Path, tmp_path: Path) -> None:
    run = json.loads((tiny_run / "run.json").read_text())
    run["jobs"][0]["of_the_future"] = True
    (tmp_path / "run.json").write_text(json.dumps(run))
    refused(call("table", "--out", tmp_path), "not the file of a run")


def test_a_record_that_is_none_is_one_sentence(tiny_run: Path, tmp_path: Path) -> None:
    good = json.loads(next((tiny_run / "records").glob("*.json")).read_text())
    path = tmp_path / "record.json"
    refused(call("show", path), "cannot be read")
    refused(call("show", tmp_path), "cannot be read")
    for text, part in {
        "{": "Invalid JSON",
        "[]": "not a record",
        json.dumps({**good, "schema_version": 99}): "schema_version",
        json.dumps({**good, "of_the_future": 1}): "of_the_future",
        json.dumps({**good, "status": "fine"}): "status",
        json.dumps({**good, "diagnostics": {"x": float("nan")}}): "diagnostics",
    }.items():
        path.write_text(text)
        refused(call("show", path), "record.json", part)
    path.write_bytes(b"\xff\xfe")
    refused(call("show", path), "cannot be read")


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"atacks": []}, "did you mean 'attacks'?"), ({"datasets": ["cifar10"]}, "CIFAR-10 is not in")],
)
def test_the_real_command_line_refuses_in_one_line(changes: dict[str, Any], part: str, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, **changes)
    command = [sys.executable, str(ROOT / "run_benchmark.py"), "run", "--suite", str(suite), "--out", "run"]
    home = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    done = subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, text=True, timeout=HANG)

    refused(Outcome(done.returncode, done.stdout, done.stderr), part)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "runs").exists()
