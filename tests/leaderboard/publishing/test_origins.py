"""The code behind published records: in the commit that they name, or as a text that goes along with them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.sources import code_digest
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing import origins
from leakboard.leaderboard.publishing.origins import (
    PLUGINS,
    committed,
    is_older,
    kept_text,
    modules_of,
    plugins_of,
    text_file,
    texts_of,
    uncommitted,
    unknown_plugins,
)
from leakboard.leaderboard.publishing.submit import NOTE_FILE, PUBLISHED, make_way, open_any, record_files
from leakboard.leaderboard.publishing.verdicts import badge
from leakboard.leaderboard.records import provenance
from leakboard.leaderboard.records.record import Record, key_of
from tests.leaderboard.plugin_texts import CONSTANT
from tests.leaderboard.runs import Outcome, call, forget_plugins, records, write_suite
from tests.leaderboard.synthetic import membership

DIGEST = code_digest(b"")


# --- a checkout with an untracked module ------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small repository in the place of ours: one committed attack."""
    for name, text in (("attacks/__init__.py", ""), ("attacks/mine.py", "A = 1\n"), ("notes.txt", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "One attack"]):
        names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a"}
        environment = {**os.environ, **names, "GIT_COMMITTER_EMAIL": "a@b"}
        subprocess.run(["git", *command], cwd=tmp_path, check=True, env=environment)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(origins, "ROOT", tmp_path)
    for cached in (provenance.commit, committed):
        cached.cache_clear()
    yield tmp_path
    for cached in (provenance.commit, committed):
        cached.cache_clear()


def made_with(commit: str | None, modules: dict[str, str]) -> Record:
    """A record whose key names these modules."""
    stated = provenance.provenance("cpu", "0" * 64).model_copy(update={"commit": commit, "dirty": False})
    ingredients = {"answer": {"modules": modules}, "metrics": {}, "training": {"modules": {}}}
    return membership("fedsgd", "lira").model_copy(update={"provenance": stated, "ingredients": ingredients})


def digest_of(path: Path) -> str:
    return code_digest(path.read_bytes())


def test_an_untracked_module_makes_the_checkout_dirty(checkout: Path) -> None:
    """Before issue 17 git was asked without untracked files, and the record passed for clean."""
    head, dirty = provenance.commit()
    assert (len(head or ""), dirty) == (40, False)
    (checkout / "data.bin").touch()  # no code of ours
    provenance.commit.cache_clear()
    assert provenance.commit() == (head, False)
    (checkout / "attacks" / "untracked.py").write_text("B = 2\n")
    provenance.commit.cache_clear()
    assert provenance.commit() == (head, True)


def test_every_module_in_a_key_must_be_in_the_commit(checkout: Path) -> None:
    head, _ = provenance.commit()
    known = {"leakboard.attacks.mine": digest_of(checkout / "attacks/mine.py"), "leakboard.attacks": DIGEST}
    assert uncommitted(made_with(head, known)) == ""
    assert uncommitted(made_with(head, {**known, "plugin.py": "0" * 64})) == ""  # its text goes along
    untracked = uncommitted(made_with(head, {**known, "leakboard.attacks.untracked": "0" * 64}))
    assert untracked.startswith("its module leakboard.attacks.untracked is not from commit")
    assert "(not there)" in untracked
    assert "(another text there)" in uncommitted(made_with(head, {**known, "leakboard.attacks.mine": "0" * 64}))
    for other in (None, "0" * 40, "--all", "HEAD"):
        assert "is not in this checkout" in uncommitted(made_with(other, known))


def test_a_network_from_a_file_is_in_no_commit(checkout: Path) -> None:
    head, _ = provenance.commit()
    record = made_with(head, {})
    model = record.cell.training.model.model_copy(update={"name": "module"})
    cell = record.cell.model_copy(update={"training": record.cell.training.model_copy(update={"model": model})})
    assert "its network comes from a file that is in no commit" in uncommitted(record.model_copy(update={"cell": cell}))


# --- a plugin from outside, published and verified -----------------------------------------------------


@dataclass(frozen=True)
class Submitted:
    """A finished run with an attack from a plugin file, and what was published of it."""

    run: Path
    plugin: Path
    folder: Path
    outcome: Outcome

    @property
    def record(self) -> Path:
        return next(p for p in record_files(self.folder) if read_record_file(p).cell.attack.name == "constant")


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Submitted:
    home = tmp_path_factory.mktemp("submitted")
    plugin, run, to = home / "constant.py", home / "run", home / "to"
    plugin.write_text(CONSTANT.replace("VALUE", "1.0"))
    attacks = [{"name": "loss-threshold", "threats": ["client"]}]
    suite = write_suite(home, attacks=attacks, observe={"rounds": ["first"], "targets": 2}, training__rounds=2)
    assert call("run", "--suite", suite, "--out", run, "--plugin", plugin).code == 0
    outcome = call("submit", run, "--to", to, "--allow-dirty")
    return Submitted(run, plugin, to / "tiny", outcome)


def test_the_text_of_a_plugin_goes_along(submitted: Submitted) -> None:
    assert submitted.outcome.code == 0, submitted.outcome.err
    digest = digest_of(submitted.plugin)
    assert plugins_of(read_record_file(submitted.record)) == {digest: "constant.py"}
    assert [path.name for path in (submitted.folder / PLUGINS).iterdir()] == [f"{digest}.py"]
    assert kept_text(submitted.folder, digest) == submitted.plugin.read_bytes()


def test_a_record_of_a_plugin_is_not_older_code(submitted: Submitted, tmp_path: Path) -> None:
    """Before issue 17 it was, because nobody had loaded the plugin."""
    record = read_record_file(submitted.record)
    assert not is_older(record)
    assert badge(submitted.record, record) == "self-reported"
    alone = tmp_path / "tiny"
    shutil.copytree(submitted.folder, alone)
    shutil.rmtree(alone / PLUGINS)
    path = alone / submitted.record.name
    assert badge(path, record) == "needs --plugin FILE"
    told = call("table", "--out", alone).err
    assert "1 records need plugins whose text is not here: verify needs --plugin FILE for them." in told
    registry.load_file(submitted.plugin)
    try:
        assert badge(path, record) == "self-reported"
    finally:
        forget_plugins()


def test_verify_needs_the_plugin_and_runs_no_text_by_itself(submitted: Submitted, tmp_path: Path) -> None:
    digest = digest_of(submitted.plugin)
    without = call("verify", submitted.record)
    assert without.code == 2
    assert f"needs --plugin FILE: it was made with constant.py (digest {digest[:12]}…)" in without.err
    assert f"its text is in plugins/{digest}.py beside the record: read it before you run it" in without.err
    other = tmp_path / "constant.py"
    other.write_text(CONSTANT.replace("VALUE", "2.0"))
    assert "needs --plugin FILE" in call("verify", submitted.record, "--plugin", other).err
    given = call("verify", submitted.record, "--plugin", submitted.plugin)
    assert (given.code, given.out) == (0, f"{submitted.record.name}: verified\n"), given.err
    stored = call("verify", submitted.record, "--plugin", text_file(submitted.folder, digest))
    assert (stored.code, "verified" in stored.out) == (0, True), stored.err


def test_a_changed_text_beside_a_record_is_noticed(submitted: Submitted, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(submitted.folder, folder)
    digest = digest_of(submitted.plugin)
    text_file(folder, digest).write_text("import os\n")
    with pytest.raises(UserError, match="does not match its name"):
        kept_text(folder, digest)
    assert call("verify", folder / submitted.record.name, "--plugin", submitted.plugin).code == 2
    assert badge(folder / submitted.record.name, read_record_file(submitted.record)) == "needs --plugin FILE"


def test_a_plugin_that_changed_since_the_run_is_refused(submitted: Submitted, tmp_path: Path) -> None:
    before = submitted.plugin.read_text()
    try:
        submitted.plugin.write_text(before + "\nCHANGED = True\n")
        outcome = call("submit", submitted.run, "--to", tmp_path / "to", "--allow-dirty")
    finally:
        submitted.plugin.write_text(before)
    assert outcome.code == 2
    assert "its plugin constant.py was changed or removed since the run; run it again" in outcome.err
    assert not (tmp_path / "to").exists()


def test_records_of_an_untracked_module_are_refused(submitted: Submitted, tmp_path: Path) -> None:
    """As a run of a checkout with `attacks/membership/mine.py` that git does not know leaves them, marked as clean."""
    run = tmp_path / "run"
    shutil.copytree(submitted.run, run)
    head, _ = provenance.commit()
    for name, record in records(run).items():
        (path,) = [p for p in (run / "records").glob("*.json") if read_record_file(p).cell.slug == name]
        assert record.provenance is not None
        stated = record.provenance.model_copy(update={"commit": head, "dirty": False})
        parts: dict[str, Any] = json.loads(json.dumps(record.ingredients))
        parts["answer"]["modules"] = {"leakboard.attacks.membership.mine": "0" * 64}
        key = key_of(parts)
        changed = record.model_copy(update={"provenance": stated, "ingredients": parts, "key": key})
        path.write_text(changed.to_json())
        path.rename(path.with_name(f"{name}--{key[:12]}.json"))
        plan = run / "run.json"
        plan.write_text(plan.read_text().replace(record.key, key))
    outcome = call("submit", run, "--to", tmp_path / "to")
    assert outcome.code == 2
    assert "cannot be published: its module " in outcome.err
    assert "is not from commit" in outcome.err
    assert not (tmp_path / "to").exists()


def test_the_text_of_every_published_plugin_is_there() -> None:
    for folder in (path for path in PUBLISHED.iterdir() if path.is_dir()):
        for path in record_files(folder):
            for digest, name in plugins_of(read_record_file(path)).items():
                assert kept_text(folder, digest) is not None, f"{path.name}: {name}"


def test_a_text_published_under_the_digest_of_its_bytes_is_accepted(tmp_path: Path) -> None:
    """Before keys were hashed by syntax tree, the name of a text was the SHA-256 of its bytes."""
    text = b"A = 1  # one\n"
    plain = hashlib.sha256(text).hexdigest()
    assert plain != code_digest(text)
    record = made_with(None, {"mine.py": plain})
    assert unknown_plugins(tmp_path, record) == {plain: "mine.py"}
    plugin = tmp_path / "mine.py"
    plugin.write_bytes(text)
    assert unknown_plugins(tmp_path, record, [str(plugin)]) == {}
    assert texts_of(record, [str(plugin)]) == {plain: text}
    text_file(tmp_path, plain).parent.mkdir()
    text_file(tmp_path, plain).write_bytes(text)
    assert kept_text(tmp_path, plain) == text
    assert unknown_plugins(tmp_path, record) == {}
    text_file(tmp_path, plain).write_bytes(b"A = 1\n")  # the same code, but other bytes
    with pytest.raises(UserError, match="does not match its name"):
        kept_text(tmp_path, plain)


def test_texts_that_no_record_needs_make_way(tmp_path: Path) -> None:
    digest = code_digest(b"A = 1\n")
    fresh = made_with(None, {"mine.py": digest})
    (tmp_path / "0.json").write_text(fresh.to_json())
    for name, text in ((digest, "A = 1\n"), ("0" * 64, "A = 2\n")):
        text_file(tmp_path, name).parent.mkdir(exist_ok=True)
        text_file(tmp_path, name).write_text(text)
    make_way(tmp_path, {"0.json": fresh})
    assert [path.stem for path in (tmp_path / PLUGINS).iterdir()] == [digest]


# --- a note on a whole board ------------------------------------------------------------------------


def board(folder: Path, note: str) -> Path:
    (folder).mkdir()
    (folder / "published.json").write_text(json.dumps({"suite": "tiny", "control": "fedsgd", "utility_gate": 0.9}))
    (folder / "0.json").write_text(membership("fedsgd", "lira").to_json())
    (folder / NOTE_FILE).write_text(note)
    return folder


def test_a_note_stands_before_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = board(tmp_path / "tiny", "Made before <b>issue 17</b>.\n\x1b[31mClip 1 for all.\n")
    first = "Made before <b>issue 17</b>.\n [31mClip 1 for all.\n"
    assert open_any(folder).warning == first.strip()
    assert call("table", "--out", folder).out.startswith(first)
    assert call("table", "--out", folder, "--format", "latex").out.startswith("% Made before")
    for form in ("csv", "json"):
        shown = call("table", "--out", folder, "--format", form)
        assert "issue 17" not in shown.out
        assert shown.err.startswith(first)
    both = call("compare", folder, folder).out
    assert both.startswith("A: Made before")
    assert "\nB: Made before" in both
    assert call("verify", folder / "0.json").out.startswith(first)
    assert call("report", "--out", folder).code == 0
    page = (tmp_path / "runs" / "published-tiny" / "report" / "index.html").read_text()
    assert "Made before &lt;b&gt;issue 17&lt;/b&gt;." in page
    assert page.index("Made before") < page.index('class="lead"')


def test_a_note_goes_when_its_last_record_is_replaced(tmp_path: Path) -> None:
    folder = board(tmp_path / "tiny", "Made before issue 17.")
    fresh = membership("fedsgd", "lira", seed=1)
    (folder / "1.json").write_text(fresh.to_json())
    make_way(folder, {"1.json": fresh})
    assert (folder / NOTE_FILE).exists()  # the other seed is still the old one
    again = membership("fedsgd", "lira").model_copy(update={"key": "new"})
    (folder / "2.json").write_text(again.to_json())
    make_way(folder, {"1.json": fresh, "2.json": again})
    assert not (folder / NOTE_FILE).exists()


def test_a_board_without_a_note_says_nothing(tmp_path: Path) -> None:
    folder = board(tmp_path / "tiny", "")
    (folder / NOTE_FILE).unlink()
    assert open_any(folder).warning == ""
    assert not call("table", "--out", folder).out.startswith("\n")


def test_modules_of_nonsense_are_none() -> None:
    record = membership("fedsgd", "lira")
    for nonsense in ({}, {"metrics": 3, "training": [], "answer": {"modules": "x"}}):
        assert list(modules_of(record.model_copy(update={"ingredients": nonsense}))) == []
