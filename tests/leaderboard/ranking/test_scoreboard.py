"""The scoreboard: one row per defense, one column per question, a mark in every cell, the same in all its forms."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import pytest

from leakboard.leaderboard.api.frames import scoreboard_frame
from leakboard.leaderboard.ranking.evidence import gather, halves
from leakboard.leaderboard.ranking.goal_ranking import GoalRanking, headline, ranking_of
from leakboard.leaderboard.ranking.scoreboard import Scoreboard, scoreboards
from leakboard.leaderboard.records.record import Record, ScoreRecord
from leakboard.leaderboard.tables.formats import to_csv, to_latex, to_markdown, to_terminal
from leakboard.leaderboard.tables.marks import BROKEN, HELD, NOT_ASKED, NOT_SHOWN
from leakboard.leaderboard.tables.table import Cell
from tests.leaderboard.page.test_charts import a_run, boards
from tests.leaderboard.ranking.test_leaderboards import attacked, defended, plus
from tests.leaderboard.ranking.test_worst_case import gapped, knowing, stolen
from tests.leaderboard.synthetic import audit, extraction, membership, reconstruction
from tests.leaderboard.tables.test_phase_times import timed

IMAGES, MODEL = "server: images recovered", "client: the model"


def board_of(records: list[Record]) -> Scoreboard:
    (board,) = scoreboards(boards(records), records)
    return board


def marks(records: list[Record], defense: str) -> dict[str, str]:
    (row,) = (row for row in board_of(records).rows if row.defense == defense)
    return {name: cell.mark for name, cell in row.cells.items()}


def test_there_is_one_row_per_defense_and_one_column_per_question() -> None:
    board = board_of(a_run())
    assert [row.defense for row in board.rows] == ["fedsgd", "mp-dp", "noise"]  # the control first, the unranked last
    assert [column.name for column in board.columns] == [
        IMAGES,
        "server: epsilon proved",
        "client: membership AUC",
        MODEL,
    ]
    assert [column.title for column in board.columns][1] == "server: ε claimed → proved"
    assert all(set(row.cells) == {column.name for column in board.columns} for row in board.rows)


def test_a_cell_holds_value_interval_mark_attack_and_records() -> None:
    records = [*defended("fedsgd", 9), *defended("mp-dp", 0), knowing("mp-dp", 7)]
    (row,) = (row for row in board_of(records).rows if row.defense == "mp-dp")
    cell, (table,) = row.cells[IMAGES], boards(records)
    (expected,) = (r.cells["identified"] for r in table.table.rows if r.cells["defense"].value == "mp-dp")
    assert (cell.answer.value, cell.answer.low, cell.answer.high) == (expected.value, expected.low, expected.high)
    assert (cell.mark, cell.attack, cell.adaptive, cell.knows) == (BROKEN, "phi-inversion", True, "phi")
    assert cell.records == (knowing("mp-dp", 7).key,)
    assert cell.answer.text == "0 %, +7.0 dB"  # no image is identified: what broke it is said


def test_the_marks_are_the_verdicts_of_the_cards() -> None:
    records = [*defended("fedsgd", 9), *defended("quiet", 0), attacked("fedsgd", 3), attacked("quiet", 0)]
    assert set(marks(records, "fedsgd").values()) == {BROKEN}
    assert set(marks(records, "quiet").values()) == {HELD}
    calm = [gapped("fedsgd", 3, 0.9, 0.9), gapped("dp", 0, 0.9, 0.9)]  # no generalisation gap
    assert marks(calm, "dp") == {"client: membership AUC": NOT_SHOWN}
    skipped = [*defended("fedsgd", 9), reconstruction("x", "slow", status="skipped"), extraction(), extraction("x")]
    assert marks(skipped, "x") == {IMAGES: NOT_ASKED, MODEL: BROKEN}


def test_a_row_that_is_not_ranked_says_why() -> None:
    records = [*defended("fedsgd", 9), *defended("noise", 0, accuracy=0.3)]
    (row,) = (row for row in board_of(records).rows if row.defense == "noise")
    assert row.unranked == "below the utility gate (81.0 % accuracy needed)"
    failed = reconstruction("broken", "slow", status="failed").model_copy(
        update={"training": None, "reason": "its training failed: no keys"}
    )
    (row,) = (row for row in board_of([*defended("fedsgd", 9), failed]).rows if row.defense == "broken")
    assert row.unranked == "its training failed: no keys"
    assert marks([*defended("fedsgd", 9), failed], "broken") == {IMAGES: NOT_SHOWN}
    shown = to_terminal(board_of([*records, failed]).table(), 100)
    assert "not ranked: below the utility gate (81.0 % accuracy needed)" in shown
    assert "not ranked: its training failed: no keys" in shown


def test_a_column_that_nobody_has_a_value_in_is_left_out() -> None:
    records = [*defended("fedsgd", 9), membership("fedsgd", status="failed")]
    assert [column.name for column in board_of(records).columns] == [IMAGES]


def in_batches(defense: str, gain: float, **more: Any) -> list[Record]:
    """A guess and an attack that is so many decibels better."""
    attacks = (("prior", 0.0), ("inverting-gradients", gain))
    return [reconstruction(defense, attack, plus(gain), **more) for attack, gain in attacks]


def test_of_several_batches_the_worst_of_each_defense_is_shown_and_named() -> None:
    one = [*in_batches("fedsgd", 9), *in_batches("fedsgd", 5, batch_size=2)]
    two = [*in_batches("odd", 0), *in_batches("odd", 7, batch_size=2)]
    board = board_of([*one, *two])
    assert [column.name for column in board.columns] == [IMAGES]
    found = {row.defense: row.cells[IMAGES] for row in board.rows}
    assert {name: cell.finding.place.batch_size for name, cell in found.items()} == {"fedsgd": 1, "odd": 2}
    assert {name: cell.mark for name, cell in found.items()} == {"fedsgd": BROKEN, "odd": BROKEN}
    assert "server: images recovered: first round, batch size 1 (first round, batch size 2 for odd)" in board.notes[-1]
    assert [column.name for column in board_of(one[2:]).columns] == [f"{IMAGES} (batch of 2)"]


def test_of_several_rounds_the_worst_of_each_defense_is_shown_and_named() -> None:
    """The control breaks most in the last round; `early` leaks in the first alone."""
    control = [*in_batches("fedsgd", 5), *in_batches("fedsgd", 9, moment="last")]
    early = [*in_batches("early", 7), *in_batches("early", 0, moment="last")]
    never = [*in_batches("never", 0), *in_batches("never", 0, moment="last")]
    board = board_of([*control, *early, *never])
    found = {row.defense: row.cells[IMAGES] for row in board.rows}
    assert {name: cell.mark for name, cell in found.items()} == {"fedsgd": BROKEN, "early": BROKEN, "never": HELD}
    assert (found["fedsgd"].finding.moment, found["early"].finding.moment) == ("last", "first")
    assert "first round for early" in board.notes[-1] or "last round for fedsgd" in board.notes[-1]
    (table,) = boards([*control, *early, *never])
    assert table.table.title.endswith("last round, batch size 1")  # the ranking stays that of one round


def test_the_worst_round_is_chosen_on_one_half_and_reported_on_the_other() -> None:
    """A round that is better on the reported half alone is not picked: its luck would be the score."""
    choose, report = halves(gather(in_batches("x", 0))[0])
    lucky, steady = [plus(0)[i] for i in range(8)], plus(1)
    for i in report:
        lucky[i] += 30
    records = [*in_batches("fedsgd", 9), *in_batches("fedsgd", 9, moment="last")]
    records += [reconstruction("x", "prior", plus(0)), reconstruction("x", "inverting-gradients", lucky)]
    records += [reconstruction("x", "prior", plus(0), moment="last")]
    records += [reconstruction("x", "inverting-gradients", steady, moment="last")]
    (row,) = (row for row in board_of(records).rows if row.defense == "x")
    assert len(choose) == len(report) == 4
    assert row.cells[IMAGES].finding.moment == "last"


def test_a_case_in_which_the_control_holds_shows_nothing_and_one_with_silence_is_no_win() -> None:
    control = [*in_batches("fedsgd", 9), *in_batches("fedsgd", 0, batch_size=2)]
    records = [*control, *in_batches("x", 0), *in_batches("x", 5, batch_size=2)]
    (row,) = (row for row in board_of(records).rows if row.defense == "x")
    assert (row.cells[IMAGES].mark, row.cells[IMAGES].finding.place.batch_size) == (HELD, 1)
    control = [*in_batches("fedsgd", 9), *in_batches("fedsgd", 9, batch_size=2)]
    dumb = reconstruction("x", "inverting-gradients", status="timeout", batch_size=2)
    silent = [*control, *in_batches("x", 0), reconstruction("x", "prior", plus(0), batch_size=2), dumb]
    assert marks(silent, "x") == {IMAGES: NOT_SHOWN}


def test_cost_is_a_multiple_of_the_control_s() -> None:
    records = [timed("fedsgd", {"client/Train": 1.2}), timed("dp", {"client/Train": 3.0})]
    assert {row.defense: row.cost for row in board_of(records).rows} == {"fedsgd": 1.0, "dp": pytest.approx(2.5)}
    alone = board_of([timed("fedsgd", {"client/Train": 1.2})])
    assert not alone.has_cost
    assert [column.key for column in alone.table().columns][-1] != "cost"


def test_an_audit_shows_what_is_claimed_and_what_is_proved() -> None:
    records = [audit("fedsgd", audited=6.0, details={"ceiling": 6.5, "trials": 2000}), audit("dp", audited=3.8)]
    board = board_of(records)
    shown = {row.defense: row.cells["server: epsilon proved"] for row in board.rows}
    assert (shown["dp"].answer.text, shown["dp"].mark) == ("3 → 3.80", BROKEN)
    assert shown["fedsgd"].answer.text == "→ 6.00"
    # to prove an epsilon is to beat guessing: its marks say whether it is more than the claim
    said = "more than the claimed ε is proved"
    assert board.sentence(board.rows[1]) == f"dp: 90 % accuracy; {said}: server: ε claimed → proved (3 → 3.80)."
    assert f"server: ε claimed → proved: ✗ {said}, ✓ no {said}." in board.notes
    assert not any("✗" in note for note in board_of(defended("fedsgd", 9)).notes)


@pytest.mark.parametrize("only_ascii", [False, True])
def test_the_terminal_shows_all_columns_within_100_characters(only_ascii: bool) -> None:
    shown = to_terminal(board_of(a_run()).table(), 100, only_ascii=only_ascii)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("fedsgd") for line in lines) == 1  # one block: nothing stands beneath
    assert "\x1b" not in shown
    assert shown.isascii() == only_ascii
    (row,) = (line for line in lines if line.startswith("mp-dp"))
    assert row.count("x" if only_ascii else "✗") >= 3


def test_all_formats_say_the_same() -> None:
    table = board_of(a_run()).table()
    for text in (to_terminal(table), to_markdown(table), to_csv([table]), to_latex(table)):
        assert "mp-dp" in text
        assert "phi" in text
        assert re.search(r"below the utility gate \(81\.0 \\?% accuracy needed\)", text)


def test_the_data_frame_has_the_values_the_marks_and_the_attacks() -> None:
    board = board_of(a_run())
    frame = scoreboard_frame([board]).set_index("defense")
    for row in board.rows:
        for name, cell in row.cells.items():
            assert frame.loc[row.defense, name] == cell.answer.value or cell.answer.value is None
            assert frame.loc[row.defense, f"{name} (mark)"] == cell.mark
    assert str(frame.loc["noise", "not ranked"]).startswith("below the utility gate")
    assert not frame.isna().all().any()


def test_one_sentence_tells_what_was_found() -> None:
    records = [
        *defended("fedsgd", 9),
        *defended("mp-dp", 0),
        knowing("mp-dp", 7),
        stolen("fedsgd", 1),
        stolen("mp-dp", 0),
    ]
    board = board_of(records)
    (row,) = (row for row in board.rows if row.defense == "mp-dp")
    assert board.sentence(row) == (
        "mp-dp: 90 % accuracy; an attack beat guessing: server: images recovered (0 %, +7.0 dB, by "
        "phi-inversion); no attack beat guessing: client: the model (0 %)."
    )


# --- a goal from outside ------------------------------------------------------------------------


class Sums(GoalRanking):
    """A ranking that names its metric alone."""

    name: ClassVar[str] = "sum-inference"
    primary: ClassVar[str] = "fidelity"
    guess: ClassVar[float | None] = 0.0


def test_a_goal_from_outside_has_its_column_without_saying_more() -> None:
    assert Sums().question("training") == ("sum inference", "sum inference")
    assert Sums().question("batch").name == "sum inference (batch)"
    answer = Sums().answer({"fidelity": Cell(0.256, 0.2, 0.3, note="x")})
    assert (answer.value, answer.low, answer.text) == (0.256, 0.2, "0.26")
    assert Sums().answer({"fidelity": Cell(None, note="x")}).text is None


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            reconstruction(psnr=[9.0, 9.0], identified=[1.0, 0.0]),
            "fedsgd: server recovers 1 of 2 images (inverting-gradients, first round)",
        ),
        (
            reconstruction(attack="prior-mean", psnr=[9.0, 9.0], batch_size=2),
            "fedsgd: a guess recovers 0 of 2 images (prior-mean, first round, batch of 2)",
        ),
        (extraction(), "fedsgd: client copies the model, fidelity 100 % (steal, last round)"),
        (audit("dp"), "dp: server proves ε ≥ 5.00 where 3 is claimed (distinguish, first round)"),
        (reconstruction(status="failed"), ""),
        (membership(), ""),  # without an AUC there is no headline
    ],
)
def test_a_finished_cell_in_one_line(record: Record, line: str) -> None:
    assert headline(record) == line


def test_membership_says_what_it_is_about() -> None:
    scores = {"auc": ScoreRecord(value=0.653)}
    whole = membership().model_copy(update={"scores": scores})
    assert headline(whole) == "fedsgd: client tells who was trained on with AUC 0.65 (shadow)"
    batch = membership(about="batch", moment="first", threat="server").model_copy(update={"scores": scores})
    assert headline(batch) == "fedsgd: server tells who is in the batch with AUC 0.65 (shadow, first round)"
    assert ranking_of("membership").question("batch").title == "who is in the batch (AUC)"
