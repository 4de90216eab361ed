"""Records, run files and published lists from strangers, given to everything that reads them."""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from leakboard.core.errors import UserError
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cli import commands
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.cli.options import ShowOptions
from leakboard.leaderboard.page.images import reconstructions
from leakboard.leaderboard.planning.plan import Plan
from leakboard.leaderboard.planning.run_folder import read_record_file
from leakboard.leaderboard.publishing import verify as verifying
from leakboard.leaderboard.publishing.compare import comparison
from leakboard.leaderboard.publishing.submit import problems, submit
from leakboard.leaderboard.publishing.verdicts import badge
from leakboard.leaderboard.publishing.verify import verify
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.formats import to_csv, to_html, to_json, to_latex, to_markdown, to_terminal
from leakboard.leaderboard.tables.paper_tables import paper_tables
from leakboard.leaderboard.tables.phase_times import phase_tables
from tests.fuzz.harness import broken_bytes, examples, mutated, places, survives
from tests.fuzz.materials import all_kinds, finished_run, publish, record_of, signed, tiny_plan
from tests.leaderboard.synthetic import reconstruction


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return tiny_plan(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def good(plan: Plan) -> list[dict[str, Any]]:
    return all_kinds(plan)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder: pages of published records go to `runs` in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def with_one_changed(data: st.DataObject, good: list[dict[str, Any]], most: int = 3) -> list[Any]:
    at = data.draw(st.integers(0, len(good) - 1))
    return [*good[:at], mutated(data.draw, good[at], most), *good[at + 1 :]]


def all_tables(folder: Path) -> int:
    opened = open_run(folder)
    tables = [*opened.tables(), *phase_tables(opened.records), *cell_tables(opened.records)]
    tables += paper_tables(opened.records, 50.0)
    tables += comparison(opened.records, opened.records)
    for table in tables:
        for text in (to_terminal(table, 100), to_markdown(table), to_latex(table), to_html(table)):
            assert "\x1b" not in text
            assert "<script>alert" not in to_html(table)
    json.loads(to_json(tables))
    to_csv(tables)
    assert all(opened.notes)
    return len(tables)


def test_the_records_that_are_changed_here_are_good_ones(here: Path, plan: Plan, good: list[dict[str, Any]]) -> None:
    assert all_tables(publish(here / "records", good)) > 8
    for job in plan.cells:
        assert list(problems(record_of(job))) == []
    with pytest.raises(Planned):
        planned(here / "records" / "0.json", "")


@examples(25, slower=4)
@given(data=st.data(), only_numbers=st.booleans())
def test_tables_of_changed_records(
    here: Path, good: list[dict[str, Any]], data: st.DataObject, only_numbers: bool
) -> None:
    """Changed numbers get past the schema more often than other changes."""
    folder = publish(
        here / "records", with_numbers_changed(data, good) if only_numbers else with_one_changed(data, good)
    )
    survives("records: tables", lambda: all_tables(folder), here)


def with_numbers_changed(data: st.DataObject, good: list[dict[str, Any]]) -> list[Any]:
    changed: list[Any] = json.loads(json.dumps(good))
    record = changed[data.draw(st.integers(0, len(good) - 1))]
    spots = [(box, key) for box, key in places(record) if isinstance(box[key], int | float)]
    for _ in range(data.draw(st.integers(1, 3))):
        box, key = spots[data.draw(st.integers(0, len(spots) - 1))]
        box[key] = data.draw(st.sampled_from((0, 1, -1, 2, 0.5, 1e-300, 1e9, 1e100, -1e100, 1e149, 2**62, -(2**62))))
    return changed


@examples(2, slower=40)
@given(data=st.data(), only_numbers=st.booleans())
def test_the_page_of_changed_records(
    here: Path, good: list[dict[str, Any]], data: st.DataObject, only_numbers: bool
) -> None:
    changed = with_numbers_changed(data, good) if only_numbers else with_one_changed(data, good, 1)
    folder = publish(here / "records", changed)

    def page() -> None:
        with redirect_stdout(io.StringIO()):
            open_run(folder).write_page()

    survives("records: page", page, here / "runs")
    for file in (here / "runs").rglob("index.html"):
        assert "<script>alert" not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("suite", ["x/../../../up", "..", "a\nb", "", "/up"])
def test_the_page_of_a_suite_that_leads_elsewhere(here: Path, good: list[dict[str, Any]], suite: str) -> None:
    folder = publish(here / "records", good, suite=suite)
    assert survives("records: page", lambda: open_run(folder).write_page(), here / "runs") is None


@examples(20, slower=2)
@given(data=st.data(), goodness=st.booleans())
def test_one_record_shown(here: Path, good: list[dict[str, Any]], data: st.DataObject, goodness: bool) -> None:
    chosen = good[data.draw(st.integers(0, len(good) - 1))]
    content = json.dumps(mutated(data.draw, chosen)).encode()
    path = here / "one.json"
    path.write_bytes(content if goodness else broken_bytes(data.draw, content))

    def show() -> None:
        out = io.StringIO()
        with redirect_stdout(out):
            commands.show(ShowOptions(str(path)))
        assert "\x1b" not in out.getvalue()

    survives("records: show", show, here)


class Planned(UserError):
    """`verify` reached the computation."""


class _Engine:
    def __init__(self, *_: Any) -> None:
        raise Planned("It would be computed again now.")


def planned(path: Path, data: str) -> Any:
    """Run `verify` until it would compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifying, "Engine", _Engine)
        return verify(path, data, "")


@examples(15, slower=4)
@given(
    data=st.data(), place=st.sampled_from(("", "", "digits:x", "npz:/etc/passwd", "cifar10:", ":")), sign=st.booleans()
)
def test_a_changed_record_is_verified_or_refused(
    here: Path, plan: Plan, good: list[dict[str, Any]], data: st.DataObject, place: str, sign: bool
) -> None:
    changed = mutated(data.draw, good[data.draw(st.integers(0, len(plan.cells) - 1))])
    path = publish(here / "records", [signed(changed) if sign else changed]) / "0.json"
    # verify computes in a temporary folder
    survives("records: verify", lambda: planned(path, place), here, Path(os.environ.get("TMPDIR", "/tmp")))

    def judged() -> None:
        record = read_record_file(path)
        list(problems(record))
        badge(path, record)

    survives("records: problems", judged, here)


EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nraise ValueError\n"


@pytest.mark.parametrize(
    ("kind", "plugin"),
    [
        ("model", {"name": "module", "parameters": {"target": "evil.py:Net", "source_digest": ""}}),
        ("model", {"name": "module:evil.py:Net", "parameters": {}}),
        ("dataset", {"name": "cifar10", "parameters": {"root": "evil", "download": True}}),
        ("dataset", {"name": "npz", "parameters": {"path": "evil.npz"}}),
        ("dataset", {"name": "npz:evil.npz", "parameters": {}}),
    ],
)
def test_no_record_names_a_file_that_is_run_or_opened(
    here: Path, good: list[dict[str, Any]], kind: str, plugin: dict[str, Any]
) -> None:
    (here / "evil.py").write_text(EVIL)
    record = json.loads(json.dumps(good[0]))
    record["cell"]["training"][kind] = {"label": "mine", **plugin}
    path = publish(here / "records", [signed(record)]) / "0.json"
    assert any("place on somebody's machine" in problem for problem in problems(read_record_file(path)))
    assert survives("records: places", lambda: planned(path, ""), here) is None
    assert main(["show", str(path)]) == 0
    assert sorted(file.name for file in here.iterdir()) == ["evil.py", "records"]


@examples(15, slower=4)
@given(data=st.data(), what=st.sampled_from(("run", "record", "both")))
def test_a_changed_run_is_opened_and_submitted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, what: str, runs: Path
) -> None:
    folder, to = runs / "run", runs / "to"
    file = folder / "run.json"
    whole = file.read_text()
    one = sorted((folder / "records").glob("*.json"))[0]
    text = one.read_text()
    changed = json.dumps(mutated(data.draw, json.loads(whole))) if what != "record" else whole
    broken = json.dumps(mutated(data.draw, json.loads(text))) if what != "run" else text
    try:  # nothing is drawn from here on, so the files are always restored
        file.write_text(changed)
        one.write_text(broken)
        survives("runs: open", lambda: [open_run(folder).records, open_run(folder).tables()], runs)
        survives("runs: submit", lambda: submit(folder, to, allow_dirty=True), to)
    finally:
        file.write_text(whole)
        one.write_text(text)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    folder = finished_run(tiny_plan(home))
    assert submit(folder, home / "control", allow_dirty=True)[1] == 6  # unchanged, it can be published
    return home


@pytest.mark.parametrize("name", ["../../stolen", "/etc/hostname", "..", "a/b", "missing.safetensors"])
def test_the_name_of_the_reconstructions_stays_in_its_folder(runs: Path, name: str) -> None:
    path = next(p for p in sorted((runs / "run" / "records").glob("*.json")) if "inverting-gradients" in p.name)
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "reconstructions": name}))
    try:
        to = runs / "names"  # a board of its own: one that has the record already does not look at this one
        assert survives("runs: names", lambda: submit(runs / "run", to, allow_dirty=True), to) is None
    finally:
        path.write_text(text)


PICTURES = {
    "good": {f"images/{i}": torch.zeros(1, 1, 32, 32) for i in range(2)},
    "no images": {"x": torch.zeros(1)},
    "flat": {"images/0": torch.zeros(3), "images/1": torch.zeros(3)},
    "bytes": {f"images/{i}": torch.zeros(1, 1, 8, 8, dtype=torch.uint8) for i in range(2)},
    "many": {"images/0": torch.zeros(3000, 1, 1, 1)},
    "none": {f"images/{i}": torch.zeros(0, 1, 8, 8) for i in range(2)},
    "five channels": {f"images/{i}": torch.zeros(1, 5, 8, 8) for i in range(2)},
    "gap": {"images/0": torch.zeros(1, 1, 8, 8), "images/7": torch.zeros(1, 1, 8, 8)},
}
COST = '{"wall_seconds": 1, "cpu_seconds": 1, "peak_memory_mib": 1}'
notes = st.fixed_dictionaries(
    {},
    optional={
        "flags": st.sampled_from(("[]", "{}", "x", "[1]", "null")),
        "diagnostics": st.sampled_from(("{}", "[]", "nan")),
        "cost": st.sampled_from((COST, "{}", "", "[1]")),
    },
)


@examples(25)
@given(data=st.data(), kind=st.sampled_from(sorted(PICTURES)), said=notes, truth=st.booleans(), whole=st.booleans())
def test_pictures_beside_a_record(
    here: Path, data: st.DataObject, kind: str, said: dict[str, str], truth: bool, whole: bool
) -> None:
    content = save(
        PICTURES[kind], {"flags": "[]", "diagnostics": "{}", "cost": COST, **said} if said or truth else None
    )
    (here / "pictures.safetensors").write_bytes(content if whole else broken_bytes(data.draw, content))
    name = data.draw(st.sampled_from(("pictures.safetensors", "../x", "a\x00b", "x" * 400, "/")))
    record = reconstruction().model_copy(update={"reconstructions": name})
    targets = torch.zeros(2, 1, 32, 32) if truth else None
    found = survives("records: pictures", lambda: reconstructions(record, here, targets), here)
    assert found is None or (found.ndim == 4 and found.is_floating_point())
