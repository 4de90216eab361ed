"""Stored trainings that were cut, changed or invented give a view or one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakboard.federation.view import View
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cells.train import run_training
from tests.fuzz.harness import broken_bytes, examples, lying_header, mutated, replaced, survives
from tests.fuzz.materials import finished_run, tiny_plan

FILES = ("transcript.json", "transcript.safetensors", "public.json", "secrets.json")
THREATS = ("server", "server+keys", "client", "server+clients:2")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one real training."""
    plan = tiny_plan(tmp_path_factory.mktemp("kept"))
    run_training(plan.trainings[0])
    return finished_run(plan)


@pytest.fixture
def training(kept: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    shutil.copytree(kept, tmp_path / "run")
    (found,) = (path for path in (tmp_path / "run" / "trainings").iterdir() if path.is_dir())
    return found


def view(training: Path, threat: str) -> View | None:
    run = training.parent.parent
    found: View | None = survives("views", lambda: open_run(run).view(threat), run)
    return found


def test_the_training_that_is_broken_here_is_a_good_one(training: Path) -> None:
    for threat in THREATS:
        assert isinstance(view(training, threat), View)


@examples(40)
@given(name=st.sampled_from(FILES), threat=st.sampled_from(THREATS), data=st.data())
def test_a_changed_file(training: Path, name: str, threat: str, data: st.DataObject) -> None:
    path = training / name
    whole = path.read_bytes()
    if name.endswith("json") and data.draw(st.booleans()):
        changed = json.dumps(mutated(data.draw, json.loads(whole))).encode()
    else:
        changed = broken_bytes(data.draw, whole)
    with replaced({path: changed}):
        view(training, threat)


@examples(15)
@given(data=st.data())
def test_tensors_whose_header_lies(training: Path, data: st.DataObject) -> None:
    path = training / "transcript.safetensors"
    with replaced({path: lying_header(data.draw, path.read_bytes())}):
        view(training, "server")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "empty", "a folder", "deep"])
def test_a_file_that_is_none(training: Path, name: str, how: str) -> None:
    path = training / name
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "missing":
        path.write_text("[" * 100_000 if how == "deep" else "")
    if (name, how) == ("transcript.json", "missing"):  # as after `prune`: the observed rounds are replayed
        assert isinstance(view(training, "server"), View)
    else:
        assert view(training, "server") is None
