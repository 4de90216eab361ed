"""The table of phase times from records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.planning.run_folder import open_run
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.phase_times import phase_tables
from leakboard.leaderboard.tables.table import Row, Table
from tests.leaderboard.runs import few_charts
from tests.leaderboard.synthetic import reconstruction


def timed(
    defense: str,
    seconds: dict[str, float],
    extrapolated: dict[str, float] | None = None,
    *,
    seed: int = 0,
    attack: str = "prior",
    **changed: Any,
) -> Record:
    """A record whose training of 4 rounds of 3 clients took these CPU seconds; the wall clock says something else."""
    record = reconstruction(defense, attack, seed=seed)
    assert record.training is not None
    wall = {key: 100 * value for key, value in seconds.items()}
    update = {"seconds": wall, "cpu_seconds": seconds, "extrapolated_seconds": extrapolated or {}, **changed}
    return record.model_copy(update={"training": record.training.model_copy(update=update)})


MEASURED = {
    "client/Train": 1.2,
    "client/Grad_Enc": 6.0,
    "server/Agg": 0.4,
    "server/Grad_Dec": 2.0,
    "dealer/Key_Gen": 8.0,
}
SAMPLED = {"client/Train": 1.2, "client/DP": 0.6, "dealer/Key_Gen": 8.0}
LATER = {"client/Grad_Enc": 12.0, "server/Agg": 0.8, "server/Grad_Dec": 4.0, "client/Grad_Dec": 2.4}


def only_table(*records: Record) -> Table:
    (table,) = phase_tables(records)
    return table


def row(table: Table, defense: str) -> Row:
    (found,) = (row for row in table.rows if row.cells["defense"].value == defense)
    return found


def numbers(table: Table, defense: str) -> dict[str, float]:
    """What a row says, by the title of its column; dashes left out."""
    found = {column.title: row(table, defense).cell(column).value for column in table.columns[1:]}
    return {title: float(value) for title, value in found.items() if value is not None}


def test_seconds_are_a_round_s_and_a_client_s() -> None:
    """Server and keys over 4 rounds, clients over 12 turns."""
    assert numbers(only_table(timed("tp-smc", MEASURED)), "tp-smc") == pytest.approx(
        {
            "server Agg": 0.1,
            "server Grad_Dec": 0.5,
            "Key_Gen": 2.0,
            "client Train": 0.1,
            "client Grad_Enc": 0.5,
            "total": 3.2,
        }
    )


def test_keys_of_all_parties_are_one_column() -> None:
    keys = {"dealer/Key_Gen": 4.0, "authority/Key_Gen": 2.0, "client/Key_Gen": 1.2, "server/Key_Gen": 0.8}
    assert numbers(only_table(timed("x", keys)), "x") == pytest.approx({"Key_Gen": 1.8, "total": 1.8})


def test_measured_and_extrapolated_never_share_a_column() -> None:
    table = only_table(timed("real", MEASURED), timed("sampled", SAMPLED, LATER))
    measured = {column.key for column in table.columns if "extrapolated" not in column.title} - {"defense"}
    apart = {column.key for column in table.columns if "extrapolated" in column.title}
    assert len(apart) == len(LATER) + 1
    assert all(row(table, "real").cells[key].value is None for key in apart)
    assert numbers(table, "real") == numbers(only_table(timed("real", MEASURED)), "real")
    found = numbers(table, "sampled")
    assert found["client Train"] == pytest.approx(0.1)
    assert found["client Grad_Enc (extrapolated)"] == pytest.approx(1.0)
    assert found["client Grad_Dec (extrapolated)"] == pytest.approx(0.2)
    assert not {"client Grad_Enc", "server Agg", "server Grad_Dec", "total"} & set(found)
    assert "total" in {column.title for column in table.columns if column.key in measured}


def parts_and_total(found: dict[str, float]) -> tuple[float, float]:
    return sum(value for title, value in found.items() if not title.startswith("total")), found[
        "total" if "total" in found else "total with extrapolated"
    ]


@pytest.mark.parametrize("extrapolated", [{}, LATER], ids=["measured", "sampled"])
def test_totals_are_the_sums_of_their_rows(extrapolated: dict[str, float]) -> None:
    found = numbers(only_table(timed("x", SAMPLED if extrapolated else MEASURED, extrapolated)), "x")
    parts, total = parts_and_total(found)
    assert total == pytest.approx(parts)
    assert len([title for title in found if title.startswith("total")]) == 1


#: which role takes which phase in some defense; noise at the server is cdp's and mp-cdp's
TAKEN = {
    "server": ("MP", "Recover", "Agg", "Grad_Dec", "DP", "Key_Gen"),
    "client": ("Train", "Grad_Enc", "DP", "Grad_Dec", "Key_Gen"),
}


CASES = [f"{role}/{phase}" for role, phases in TAKEN.items() for phase in phases]


@pytest.mark.parametrize("phase", CASES)
def test_whatever_is_in_a_total_has_a_column(phase: str) -> None:
    parts, total = parts_and_total(numbers(only_table(timed("x", {**MEASURED, phase: 6.0})), "x"))
    assert total == pytest.approx(parts)


def test_seeds_are_averaged_and_each_training_counts_once() -> None:
    """Two seeds of 0.1 and 0.3 seconds a turn; the second attack on a training adds nothing."""
    first, second = {"client/Train": 1.2}, {"client/Train": 3.6}
    records = [timed("x", first, seed=0), timed("x", second, seed=1), timed("x", second, seed=1, attack="other")]
    assert numbers(only_table(*records), "x") == pytest.approx({"client Train": 0.2, "total": 0.2})


def test_a_table_for_each_number_of_clients_named_in_the_title() -> None:
    few, many = timed("x", MEASURED), timed("y", SAMPLED, LATER, client_rounds=400)
    tables = phase_tables([many, few])
    assert [table.title for table in tables] == [
        "CPU seconds per round by phase, digits, mlp, K = 3",
        "CPU seconds per round by phase, digits, mlp, K = 100",
    ]
    assert [[str(row.cells["defense"].value) for row in table.rows] for table in tables] == [["x"], ["y"]]


def test_columns_come_in_the_paper_s_order() -> None:
    everything = {f"server/{phase}": 1.0 for phase in ("MP", "Recover", "Agg", "Grad_Dec")}
    everything |= {f"client/{phase}": 1.0 for phase in ("DP", "Grad_Enc", "Train")} | {"dealer/Key_Gen": 1.0}
    titles = [column.title for column in only_table(timed("x", everything)).columns]
    order = ["server MP", "server Recover", "server Agg", "server Grad_Dec", "Key_Gen"]
    assert titles == ["defense", *order, "client Train", "client Grad_Enc", "client DP", "total"]


def test_phases_of_a_scheme_s_own_come_after_the_known_ones() -> None:
    own = {"server/Agg": 1.0, "client/Train": 1.0, "client/Masking": 2.0, "dealer/Shuffle": 3.0, "server/Unmask": 4.0}
    table = only_table(timed("x", own))
    titles = [column.title for column in table.columns]
    known, others = ["server Agg", "client Train"], ["server Unmask", "dealer Shuffle", "client Masking"]
    assert titles == ["defense", *known, *others, "total"]
    parts, total = parts_and_total(numbers(table, "x"))
    assert parts == pytest.approx(total)


OUTSIDE = """
from typing import ClassVar
from leakboard.defenses.base import Defense

class Masked(Defense):
    '''Counts time under a phase of its own.'''
    name: ClassVar[str] = "masked"
    def protect(self, me, gradient):
        with me.phase("Masking"):
            return {name: 1.0 * value for name, value in gradient.items()}
"""
SUITE = """
name: tiny
datasets: [digits]
model: {name: mlp, params: {hidden: [8]}}
training: {rounds: 2, batch_size: 8, clients: 2, learning_rate: 0.02}
observe: {rounds: [first], targets: 1}
defenses: [fedsgd]
attacks: [{name: prior, threats: [server]}]
"""


def test_a_plugin_outside_the_tree_names_a_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin, suite, out = tmp_path / "masked.py", tmp_path / "tiny.yaml", tmp_path / "run"
    plugin.write_text(OUTSIDE)
    suite.write_text(SUITE)
    with few_charts():
        assert main(["run", "--suite", str(suite), "--plugin", str(plugin), "--out", str(out), "--workers", "1"]) == 0
    (table,) = phase_tables(open_run(out).records)
    titles = [column.title for column in table.columns]
    assert titles.index("client Masking") > titles.index("client Train")
    assert numbers(table, "masked")["client Masking"] > 0


def test_what_was_not_trained_has_no_row() -> None:
    broken = timed("x", MEASURED).model_copy(update={"training": None})
    assert phase_tables([broken]) == []
    assert phase_tables([]) == []


def test_the_notes_say_how_it_is_counted() -> None:
    notes = " ".join(only_table(timed("x", MEASURED)).notes)
    assert "mean over all clients" in notes
    assert "Key_Gen is the set-up" in notes
    assert "one client" in notes
