"""The commands as a user calls them: what they print, and what they leave alone."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leakboard.core.registry import FOLDERS, ROOT, builtin_index, entries
from leakboard.leaderboard.api.catalogue import KINDS
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cli.parser import build_parser
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.plugin_texts import CONSTANT, SCALED
from tests.leaderboard.runs import HANG, TINY_CELLS, call, records, stamps, write_suite


@pytest.mark.parametrize("kind", list(KINDS))
def test_list_tells_everything_about_a_plugin(kind: str) -> None:
    outcome = call("list", kind, "--json")

    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert [plugin["name"] for plugin in found] == list(entries(KINDS[kind]))
    assert found
    for plugin in found:
        assert plugin["kind"] == KINDS[kind]
        assert plugin["summary"]
        assert isinstance(plugin["citation"], str)
        for name, schema in plugin["parameters"].items():
            assert "default" in schema or name == plugin["shorthand"]  # what a user must give has none
            assert {"type", "anyOf", "enum", "const"} & set(schema)


def test_list_gives_defaults_and_bounds() -> None:
    (shadow,) = [plugin for plugin in json.loads(call("list", "attacks", "--json").out) if plugin["name"] == "shadow"]
    parameter = shadow["parameters"]["shadows"]
    assert (parameter["default"], parameter["minimum"], parameter["maximum"]) == (4, 1, 256)
    assert "Shokri" in shadow["citation"]
    assert shadow["goal"] == "membership"


def test_list_without_a_kind_lists_all() -> None:
    found = json.loads(call("list", "--json").out)
    assert list(found) == [*KINDS, "suites"]
    assert "quick" in [suite["name"] for suite in found["suites"]]
    shown = call("list").out
    for group in found.values():
        for plugin in group:
            assert f"  {plugin['name']} " in shown
            assert plugin["summary"] in shown


def test_every_kind_of_plugin_can_be_listed() -> None:
    assert set(KINDS.values()) == set(FOLDERS)


def test_a_wrong_kind_is_refused() -> None:
    outcome = call("list", "defences")
    assert outcome.code == 2
    assert "invalid choice: 'defences'" in outcome.err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list"], ["list", "attacks", "--json"]])
def test_help_and_list_import_no_torch(arguments: list[str]) -> None:
    builtin_index()  # the index is warm
    command = [sys.executable, "-X", "importtime", str(ROOT / "run_benchmark.py"), *arguments]

    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)

    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "argparse" in imported  # the list of imports is there
    assert not imported & {"torch", "numpy", "scipy", "sklearn", "pydantic"}


def test_a_second_run_loads_no_drawing_and_leaves_the_page(tiny_suite: Path, tiny_run: Path) -> None:
    """What makes a finished suite answer fast: only what planning and tables need is imported."""
    assert call("report", "--out", tiny_run).code == 0
    before = stamps(tiny_run, "report/index.html")
    command = [sys.executable, "-X", "importtime", str(ROOT / "run_benchmark.py"), "run", "--keep-transcripts"]
    where = ["--suite", str(tiny_suite), "--out", str(tiny_run)]

    done = subprocess.run([*command, *where], capture_output=True, text=True, timeout=HANG)

    assert done.returncode == 0
    assert f"{TINY_CELLS} cells, {TINY_CELLS} already there" in done.stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "torch" in imported  # the list of imports is there
    assert not imported & {"matplotlib", "seaborn", "pandas", "jinja2", "sklearn", "lpips", "torchvision"}
    assert stamps(tiny_run, "report/index.html") == before


def test_a_page_older_than_a_record_is_written_again(tiny_suite: Path, tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(tiny_run, folder)
    call("report", "--out", folder)
    assert open_run(folder).has_page()
    page = folder / "report" / "index.html"
    os.utime(page, ns=(0, 0))
    assert not open_run(folder).has_page()
    assert call("run", "--suite", tiny_suite, "--out", folder).code == 0
    assert page.stat().st_mtime_ns > 0


def test_help_names_all_commands_and_exit_codes() -> None:
    text = build_parser().format_help()
    for command in ("run", "list", "table", "report", "show"):
        assert re.search(rf"^    {command} ", text, re.MULTILINE)
    assert "130" in text


def test_table_in_every_format(tiny_run: Path) -> None:
    shown = {
        form: call("table", "--out", tiny_run, "--format", form, "--all") for form in ("md", "csv", "json", "latex")
    }

    assert {outcome.code for outcome in shown.values()} == {0}
    assert {outcome.err for outcome in shown.values()} == {""}
    tables = json.loads(shown["json"].out)
    assert len(json.dumps(tables, allow_nan=False)) > 0
    rows = list(csv.reader(io.StringIO(shown["csv"].out)))
    assert len(rows) > TINY_CELLS
    assert any("fedsgd" in row for row in rows)
    lines = [line for line in shown["md"].out.splitlines() if line.startswith("|")]
    assert len(lines) > TINY_CELLS
    assert shown["latex"].out.count(r"\begin{tabular") == shown["latex"].out.count(r"\end{tabular") > 0


def test_table_for_the_terminal(tiny_run: Path) -> None:
    outcome = call("table", "--out", tiny_run)
    assert outcome.code == 0
    assert "Reconstruction, digits, threat server" in outcome.out
    assert "Membership, digits, threat client" in outcome.out
    assert "does not break here" in outcome.out  # three iterations on two images break nothing


def test_run_prints_the_scoreboard_and_three_lines(tiny_suite: Path, tiny_run: Path) -> None:
    outcome = call("run", "--suite", tiny_suite, "--out", tiny_run, "--keep-transcripts")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("Scoreboard, digits\n")
    assert "Reconstruction, digits, threat server" not in outcome.out  # only with --all
    *_, blank, page, own, behind = outcome.out.splitlines()
    assert blank == ""
    assert page == f"page: {tiny_run / 'report' / 'index.html'}"
    assert own.startswith("your own defense: ")
    command = behind.partition(" show ")[2]
    shown = call("show", *shlex.split(command))  # the line is a command that works
    assert shown.code == 0, shown.err
    assert "server: images recovered: not shown" in shown.out


def test_run_prints_the_detailed_tables_on_request(tiny_suite: Path, tiny_run: Path) -> None:
    outcome = call("run", "--suite", tiny_suite, "--out", tiny_run, "--keep-transcripts", "--all")
    assert outcome.out.startswith("Scoreboard, digits\n")
    assert "Reconstruction, digits, threat server" in outcome.out


def test_the_scoreboard_alone(tiny_run: Path) -> None:
    outcome = call("table", "--out", tiny_run, "--scoreboard", "--format", "json")
    (table,) = json.loads(outcome.out)["tables"]
    assert table["title"] == "Scoreboard, digits"
    (row,) = table["rows"]
    assert row["cells"]["server: images recovered"]["mark"] == "not shown"


def test_show_tells_what_is_behind_a_mark(tiny_run: Path) -> None:
    outcome = call("show", "fedsgd", "--out", tiny_run)
    assert outcome.code == 0
    files = [line.split()[1] for line in outcome.out.splitlines() if line.startswith("    record ")]
    assert len(files) == 2
    assert all(Path(file).is_file() for file in files)
    one = call("show", "fedsgd", "images", "--out", tiny_run)
    assert "on fedsgd\n  data " in one.out  # the record itself
    assert "original 0" in one.out
    assert "membership" not in one.out.partition("images recovered: ")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["fedsg"], "did you mean 'fedsgd'"), (["fedsgd", "gold"], "No question on this scoreboard contains 'gold'")],
)
def test_show_of_an_unknown_row_or_question_is_one_sentence(words: list[str], sentence: str, tiny_run: Path) -> None:
    outcome = call("show", *words, "--out", tiny_run)
    assert outcome.code == 2
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_unfinished_run_has_a_table_that_says_so(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text((tiny_run / "run.json").read_text())
    (tmp_path / "records").mkdir()
    for path in sorted((tiny_run / "records").glob("*prior*.json")):
        (tmp_path / "records" / path.name).write_text(path.read_text())

    outcome = call("table", "--out", tmp_path)

    assert outcome.code == 0
    assert f"4 of {TINY_CELLS} cells are not there yet" in outcome.err
    assert "Reconstruction" in outcome.out


def test_report_writes_the_page(tiny_run: Path, tmp_path: Path) -> None:
    outcome = call("report", "--out", tiny_run, charts=True)
    page = Path(outcome.out.removeprefix("page: ").strip())
    assert outcome.code == 0
    assert page == tiny_run / "report" / "index.html"
    assert "fedsgd" in page.read_text()


def test_show_prints_scores_and_pictures(tiny_run: Path) -> None:
    path = next((tiny_run / "records").glob("*inverting-gradients--server--first*.json"))
    record = Record.model_validate_json(path.read_text())

    outcome = call("show", path)

    assert outcome.code == 0
    assert "inverting-gradients on fedsgd" in outcome.out
    assert "status    ok" in outcome.out
    psnr = record.scores["psnr"].value
    assert psnr is not None
    assert f"{psnr:.4f} dB" in outcome.out
    for title in ("original 0", "original 1", "reconstruction 0", "reconstruction 1"):
        picture = outcome.out.split(f"\n{title}\n")[1].split("\n\n")[0]
        assert len(picture.splitlines()) > 3
        assert len(set(picture)) > 2


def test_show_of_a_membership_record_has_no_pictures(tiny_run: Path) -> None:
    outcome = call("show", next((tiny_run / "records").glob("*loss-threshold*.json")))
    assert outcome.code == 0
    assert "auc" in outcome.out
    assert "original" not in outcome.out


def test_dry_run_prints_the_plan_and_creates_nothing(tmp_path: Path) -> None:
    suite = write_suite(tmp_path, seeds=[0, 1])

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--dry-run", "--workers", 2)

    assert outcome.code == 0
    assert f"2 trainings, {2 * TINY_CELLS} cells" in outcome.out
    assert outcome.out.count(" s  ") == 2 + 2 * TINY_CELLS
    assert "with 2 workers for what is not there yet" in outcome.out
    assert [path.name for path in tmp_path.iterdir()] == ["suite.yaml"]


def test_dry_run_of_a_finished_run_says_that_it_is_there(tiny_suite: Path, tiny_run: Path) -> None:
    outcome = call("run", "--suite", tiny_suite, "--out", tiny_run, "--dry-run")
    assert outcome.out.count("(already there)") == 1 + TINY_CELLS


@pytest.mark.parametrize(
    ("options", "defenses", "attacks"),
    [
        ([], {"fedsgd", "scaled"}, {"prior", "loss-threshold", "constant"}),
        (["--defense", "scaled"], {"fedsgd", "scaled"}, {"prior", "loss-threshold", "constant"}),
        (["--defense", "fedsgd"], {"fedsgd"}, {"prior", "loss-threshold", "constant"}),
        (["--attack", "constant"], {"fedsgd", "scaled"}, {"constant"}),
        (["--attack", "shadow", "prior"], {"fedsgd", "scaled"}, {"shadow", "prior"}),
    ],
)
def test_plugins_join_the_suite_and_filters_keep_the_control(
    options: list[str], defenses: set[str], attacks: set[str], tmp_path: Path
) -> None:
    (tmp_path / "constant.py").write_text(CONSTANT.replace("VALUE", "1.0"))
    (tmp_path / "scaled.py").write_text(SCALED.replace("FACTOR", "0.5"))
    given = [{"name": "prior", "threats": ["server"]}, {"name": "loss-threshold", "threats": ["client"]}]
    suite = write_suite(tmp_path, attacks=given)
    plugins = ["--plugin", tmp_path / "constant.py", "--plugin", tmp_path / "scaled.py"]

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--dry-run", *plugins, *options)

    assert outcome.code == 0, outcome.err
    cells = re.findall(r" s  (\S+) on digits / (\S+)", outcome.out)
    assert {attack for attack, _ in cells} == attacks
    assert {defense for _, defense in cells} == defenses


def test_seeds_of_the_command_line_replace_those_of_the_suite(tmp_path: Path) -> None:
    outcome = call("run", "--suite", write_suite(tmp_path), "--dry-run", "--seed", 5, 6, "--out", tmp_path / "run")
    assert set(re.findall(r"seed (\d+)", outcome.out)) == {"5", "6"}


def test_the_records_of_a_run_hold_their_circumstances(tiny_run: Path) -> None:
    found = records(tiny_run)
    assert len(found) == TINY_CELLS
    for record in found.values():
        assert record.provenance is not None
        assert record.cost is not None
        assert record.training is not None
        assert {"torch", "numpy", "python"} <= set(record.provenance.versions)
        assert len(record.provenance.data_digest) == 64
        assert record.cost.wall_seconds > 0
        assert record.training.bytes_by_kind["update"] > 0
        assert record.cell.training.keys == "seeded"
        assert str(tiny_run) not in record.to_json()
