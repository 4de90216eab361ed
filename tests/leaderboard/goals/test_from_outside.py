"""A goal and a metric of somebody else's, each one file, from suite to table: no edit in the tree.

The files are the examples of `docs/adding-a-goal.md` and `docs/adding-a-metric.md`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leakboard.core import registry
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.suites.schema import load_suite
from tests.docs.test_adding_plugins import code_of
from tests.leaderboard.runs import call, forget_plugins, records, write_suite


def tables(*arguments: object) -> dict[str, dict[str, Any]]:
    """The tables of a run by title, as `table --format json` prints them."""
    shown = call("table", "--format", "json", *arguments)
    assert shown.code == 0, shown.err
    return {table["title"]: table for table in json.loads(shown.out)["tables"]}


def headers(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {column["title"]: column for column in table["columns"]}


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run of property inference: (plugin, run)."""
    folder = tmp_path_factory.mktemp("property")
    plugin = folder / "property.py"
    plugin.write_text(code_of("adding-a-goal.md"))
    suite = write_suite(
        folder,
        training={"rounds": 3, "batch_size": 4, "clients": 3, "partition": "dirichlet", "alpha": 0.1},
        observe={"rounds": ["first", "last"], "targets": 16},
        defenses=["fedsgd", {"name": "ldp", "params": {"epsilon": 0.01}}, "secagg"],
        attacks=[{"name": "counted-labels", "threats": ["server"]}],
    )
    done = call("run", "--suite", suite, "--out", folder / "run", "--plugin", plugin, "--workers", 2)
    assert done.code == 0, done.err
    assert "server: property" in done.out  # its column on the scoreboard
    assert "fedsgd: server reaches gain over a guess 0." in done.err  # and its line in the progress
    return plugin, folder / "run"


def test_a_goal_of_somebody_else_runs_from_suite_to_table_row(shares: tuple[Path, Path]) -> None:
    plugin, run = shares
    registry.load_file(plugin)
    found = {record.cell.training.defense.label: record for record in records(run).values()}
    forget_plugins()
    assert {name: record.status for name, record in found.items()} == {"fedsgd": "ok", "ldp": "ok", "secagg": "skipped"}
    score = found["fedsgd"].scores["share_gain"]
    assert score.value is not None
    assert score.value > 0.02  # the victim's classes are far from the attacker's own
    assert found["fedsgd"].target_indices == list(range(10))

    board = tables("--out", run, "--plugin", plugin)["Property, digits, threat server"]
    first, row = board["rows"]
    assert [line["cells"]["defense"]["value"] for line in (first, row)] == ["ldp", "fedsgd"]
    assert [line["cells"]["rank"]["value"] for line in (first, row)] == [1, 2]  # noise hides the labels
    assert row["cells"]["attack"]["value"] == "counted-labels"
    assert row["cells"]["share_gain"]["low"] < row["cells"]["share_gain"]["value"]
    assert headers(board)["gain over a guess"]["direction"] == "lower"
    assert "the 5 of 10 classes on which the attack was not chosen" in board["caption"]
    listed = tables("--out", run, "--all", "--plugin", plugin)["All cells: property"]
    assert {line["cells"]["over"]["value"] for line in listed["rows"]} == {"all 10 classes", None}


def test_the_page_shows_the_goal_with_a_verdict(shares: tuple[Path, Path]) -> None:
    plugin, run = shares
    done = call("report", "--out", run, "--plugin", plugin, charts=True)
    assert done.code == 0, done.err
    page = (run / "report" / "index.html").read_text()
    assert 'data-title="server: property"' in page
    assert "Property, digits, threat server" in page
    assert "gain over a guess" in page


def test_a_run_of_an_unknown_goal_is_one_sentence(shares: tuple[Path, Path]) -> None:
    done = call("table", "--out", shares[1])
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "its goal is none of reconstruction, membership, extraction, audit" in done.err
    assert "--plugin" in done.err


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run with one more metric: (plugin, run)."""
    folder = tmp_path_factory.mktemp("metric")
    plugin = folder / "ks_distance.py"
    plugin.write_text(code_of("adding-a-metric.md"))
    attacks = [{"name": "loss-threshold", "threats": ["client"]}]
    suite = write_suite(folder, attacks=attacks, training__rounds=12, training__learning_rate=0.02)
    done = call("run", "--suite", suite, "--out", folder / "run", "--plugin", plugin, "--workers", 2)
    assert done.code == 0, done.err
    return plugin, folder / "run"


def test_a_metric_of_somebody_else_has_its_columns(measured: tuple[Path, Path]) -> None:
    plugin, run = measured
    (record,) = records(run).values()
    value = record.scores["ks"].value
    assert value is not None
    assert 0 < value <= 1
    shown = tables("--out", run, "--all", "--plugin", plugin)
    board, listed = shown["Membership, digits, threat client"], shown["All cells: membership"]
    for table in (board, listed):
        column = headers(table)["KS distance"]
        assert table["rows"][0]["cells"][column["key"]]["value"] == pytest.approx(value)
    assert headers(board)["KS distance"]["direction"] == "lower"
    assert list(headers(board))[-1] == "KS distance"


def test_without_its_file_a_metric_s_column_has_its_name(measured: tuple[Path, Path]) -> None:
    shown = tables("--out", measured[1], "--all")
    assert "ks" in headers(shown["Membership, digits, threat client"])
    assert "ks" in headers(shown["All cells: membership"])


def test_a_metric_s_file_is_in_the_key_of_the_scores_and_not_in_that_of_the_answer(tmp_path: Path) -> None:
    plugin = tmp_path / "ks_distance.py"
    suite = write_suite(tmp_path, attacks=[{"name": "loss-threshold", "threats": ["client"]}])

    def cell() -> Any:
        registry.load_file(plugin)
        try:
            return make_plan(load_suite(str(suite)), Options(tmp_path / "run", plugin_files=(str(plugin),))).cells[0]
        finally:
            forget_plugins()

    plugin.write_text(code_of("adding-a-metric.md"))
    before = cell()
    plugin.write_text(code_of("adding-a-metric.md").replace(".abs().max()", ".abs().mean()"))
    after = cell()
    assert "ks_distance.py" in before.ingredients["metrics"]
    assert before.key != after.key
    assert before.answer_key == after.answer_key


HEIR = """
from typing import ClassVar
from leakboard.leaderboard.goals.membership import Membership
from leakboard.leaderboard.ranking.goals.membership import MembershipRanking


class HeirRanking(MembershipRanking):
    '''Ranks as membership does.'''

    name: ClassVar[str] = "heir"


class Heir(Membership):
    '''Asks as membership does, and lets the attack answer in its own way.'''

    name: ClassVar[str] = "heir"

    def run(self, attack, knowledge, task, portions):
        return self.call(attack, knowledge, VALUE)
"""
ATTACK = """
from typing import ClassVar
from leakboard.attacks.base import MembershipAttack


class Claims(MembershipAttack):
    '''Belongs to the goal of another file.'''

    name: ClassVar[str] = "claims"
    goal: ClassVar[str] = "heir"
    threats: ClassVar[tuple[str, ...]] = ("client",)

    def infer(self, knowledge, task):
        raise NotImplementedError
"""


def test_what_a_goal_overrides_of_an_inherited_question_is_in_the_key_of_the_answer(tmp_path: Path) -> None:
    """Goal and attack are in two files, so that the attack's file alone does not bring the goal's."""
    goal, attack = tmp_path / "heir.py", tmp_path / "claims.py"
    attack.write_text(ATTACK)
    suite = write_suite(tmp_path, attacks=[{"name": "claims", "threats": ["client"]}])

    def cell(value: str) -> Any:
        goal.write_text(HEIR.replace("VALUE", value))
        files = (str(goal), str(attack))
        try:
            for file in files:
                registry.load_file(file)
            return make_plan(load_suite(str(suite)), Options(tmp_path / "run", plugin_files=files)).cells[0]
        finally:
            forget_plugins()

    before, same, after = cell("task"), cell("(task)"), cell("(task,)")
    assert "heir.py" in before.ingredients["answer"]["modules"]
    assert before.answer_key == same.answer_key
    assert before.answer_key != after.answer_key


@pytest.mark.parametrize("name", ["reconstruction", "membership", "extraction", "audit"])
def test_our_own_goals_keep_scoring_out_of_the_files_of_the_question(name: str) -> None:
    goal = registry.load("goal", name)
    assert issubclass(goal, Goal)
    files = {str(Path(file).relative_to(registry.ROOT)) for file in goal.question_files()}
    assert files == {f"leaderboard/goals/questions/{name}.py", "leaderboard/goals/question.py"}


def test_an_attack_whose_goal_nobody_defines_is_one_sentence(tmp_path: Path) -> None:
    plugin = tmp_path / "lost.py"
    plugin.write_text(
        "from typing import ClassVar\nfrom leakboard.attacks.base import Attack\n\n\n"
        "class Lost(Attack):\n    '''Wants what nobody knows.'''\n\n    name: ClassVar[str] = 'lost'\n"
        "    goal: ClassVar[str] = 'nirvana'\n    threats: ClassVar[tuple[str, ...]] = ('server',)\n"
    )
    suite = write_suite(tmp_path, attacks=[{"name": "lost", "threats": ["server"]}])
    done = call("run", "--suite", suite, "--out", tmp_path / "run", "--plugin", plugin)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "goal 'nirvana'" in done.err
