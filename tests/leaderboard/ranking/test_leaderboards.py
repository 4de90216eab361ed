"""Ranking tables from records made by hand: who stands where, and what the table admits."""

from __future__ import annotations

import numpy as np
import pytest

from leakboard.leaderboard.ranking.leaderboards import ranking_tables
from leakboard.leaderboard.ranking.utility_gate import utility_of
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.table import Row, Table
from tests.leaderboard.ranking.test_evidence import TARGETS, on_halves
from tests.leaderboard.synthetic import membership, reconstruction

PRIOR = [10.0, 11.0, 9.0, 10.0, 12.0, 8.0, 10.0, 10.0]


def plus(excess: float) -> list[float]:
    return [value + excess for value in PRIOR]


def defended(
    defense: str, excess: float, *, accuracy: float = 0.9, moment: str = "first", seed: int = 0
) -> list[Record]:
    """The prior and one attack on a defense, so many dB above it."""
    common = {"moment": moment, "seed": seed, "accuracy": accuracy}
    return [
        reconstruction(defense, "prior", PRIOR, **common),  # type: ignore[arg-type]
        reconstruction(defense, "inverting-gradients", plus(excess), **common),  # type: ignore[arg-type]
    ]


def only_table(records: list[Record], gate: float = 0.9) -> Table:
    (table,) = ranking_tables(records, "fedsgd", gate)
    return table


def rows(table: Table) -> dict[str, Row]:
    return {str(row.cells["defense"].value): row for row in table.rows}


def ranking(table: Table) -> dict[str, object]:
    return {name: row.cells["rank"].value for name, row in rows(table).items()}


def test_a_ranking_orders_by_harm_and_shares_ranks() -> None:
    table = only_table([*defended("fedsgd", 9), *defended("weak", 5), *defended("twin", 5), *defended("strong", 1)])
    assert ranking(table) == {"strong": 1, "weak": 2, "twin": 2, "fedsgd": 4}
    assert list(rows(table)) in (["strong", "weak", "twin", "fedsgd"], ["strong", "twin", "weak", "fedsgd"])
    assert rows(table)["weak"].cells["excess"].value == pytest.approx(5)
    assert rows(table)["weak"].cells["attack"].value == "inverting-gradients"


def test_identified_comes_before_psnr() -> None:
    blurred = [
        reconstruction("sharp", "prior", PRIOR),
        reconstruction("sharp", "inverting-gradients", plus(1), identified=[1.0] * TARGETS),
    ]
    table = only_table([*defended("fedsgd", 9), *blurred])
    assert ranking(table) == {"fedsgd": 1, "sharp": 2}
    assert rows(table)["sharp"].cells["identified"].value == 100


def test_what_touches_the_prior_is_printed_so_and_ties() -> None:
    noisy = [
        reconstruction("noisy", "prior", PRIOR),
        reconstruction("noisy", "inverting-gradients", [v + (3 if i % 2 else -2.9) for i, v in enumerate(PRIOR)]),
    ]
    table = only_table([*defended("fedsgd", 9), *noisy, *defended("none", 0)])
    assert rows(table)["none"].cells["excess"].text == "≤ prior"
    assert rows(table)["noisy"].cells["excess"].text == "≤ prior"
    assert rows(table)["fedsgd"].cells["excess"].text is None
    assert ranking(table) == {"none": 1, "noisy": 1, "fedsgd": 3}


def test_images_that_are_told_from_all_decoys_are_more_than_the_prior() -> None:
    around = [v + (8 if i % 2 else -1) for i, v in enumerate(PRIOR)]
    seen = [
        reconstruction("seen", "prior", PRIOR),
        reconstruction("seen", "inverting-gradients", around, identified=[1.0] * TARGETS),
    ]
    table = only_table([*defended("fedsgd", 9), *seen, *defended("none", 0)])
    cell = rows(table)["seen"].cells["excess"]
    assert cell.text is None
    assert cell.low is not None
    assert cell.low < 0
    assert ranking(table) == {"none": 1, "fedsgd": 2, "seen": 3}


def test_who_identifies_below_the_prior_is_no_better_than_who_gets_nothing() -> None:
    below = [v - 1.9 - (i % 2) for i, v in enumerate(PRIOR)]
    seen = [
        reconstruction("seen", "prior", PRIOR),
        reconstruction("seen", "inverting-gradients", below, identified=[1.0, 0.0] * (TARGETS // 2)),
    ]
    table = only_table([*defended("fedsgd", 9), *seen, *defended("none", 0)])
    assert rows(table)["seen"].cells["identified"].value
    assert rows(table)["seen"].cells["excess"].text == "≤ prior"
    assert ranking(table) == {"none": 1, "seen": 1, "fedsgd": 3}


def test_all_identified_is_worse_than_none_whatever_the_psnr() -> None:
    seen = [
        reconstruction("seen", "prior", PRIOR),
        reconstruction("seen", "inverting-gradients", plus(-2), identified=[1.0] * TARGETS),
    ]
    table = only_table([*defended("fedsgd", 9), *seen, *defended("none", 0)])
    assert ranking(table)["none"] == 1
    assert ranking(table)["seen"] != 1


def test_a_control_of_a_single_reported_target_shows_nothing() -> None:
    few = [
        reconstruction(name, attack, values)
        for name in ("fedsgd", "weak")
        for attack, values in (("prior", PRIOR[:2]), ("inverting-gradients", plus(5)[:2]))
    ]
    assert set(ranking(only_table(few)).values()) == {None}


def test_a_control_breaks_where_more_images_are_identified_than_by_chance_though_its_psnr_does_not_tell() -> None:
    around = [v + (3 if i % 2 else -2.9) for i, v in enumerate(PRIOR)]
    control = reconstruction("fedsgd", "inverting-gradients", around, identified=[1.0] * TARGETS)
    table = only_table([reconstruction("fedsgd", "prior", PRIOR), control, *defended("weak", 5)])
    assert ranking(table) == {"weak": 1, "fedsgd": 2}
    assert not any("does not break" in note for note in table.notes)


def test_a_control_that_identifies_a_quarter_of_the_images_breaks() -> None:
    """6 of 24, of which the reported half has some: chance is 0.1 %."""
    prior = PRIOR * 3
    nearly = [v + (9 if i % 4 == 1 else -3.1) for i, v in enumerate(prior)]
    hits = [1.0 if i % 4 == 1 else 0.0 for i in range(len(prior))]
    records = [reconstruction(n, "prior", prior) for n in ("fedsgd", "quiet")]
    records += [reconstruction("fedsgd", "inverting-gradients", nearly, identified=hits)]
    records += [reconstruction("quiet", "inverting-gradients", [v - 3 for v in prior])]
    table = only_table(records)
    low = rows(table)["fedsgd"].cells["excess"].low
    assert low is not None
    assert low < 0
    assert ranking(table) == {"quiet": 1, "fedsgd": 2}


def test_a_control_of_too_few_targets_is_told_so() -> None:
    wide = [v + (9 if i in (0, 1, 2, 3) else -3) for i, v in enumerate(PRIOR)]  # 3 dB on average, of four
    table = only_table([reconstruction("fedsgd", "prior", PRIOR), reconstruction("fedsgd", "a", wide)])
    (note,) = (note for note in table.notes if "control" in note)
    assert note.startswith(
        "Whether the control (fedsgd) breaks here cannot be told: too few targets: 0 of 4 identified"
    )
    assert "show nothing" not in note
    many = only_table([reconstruction("fedsgd", "prior", PRIOR * 8), reconstruction("fedsgd", "a", plus(-1) * 8)])
    assert any("its PSNR is not above the prior, nor are more images identified" in note for note in many.notes)


def test_the_best_prior_is_what_is_beaten() -> None:
    second = reconstruction("fedsgd", "prior-random", plus(4))
    table = only_table([*defended("fedsgd", 9), second])
    assert rows(table)["fedsgd"].cells["excess"].value == pytest.approx(5)


def test_the_prior_takes_part_in_the_worst_case() -> None:
    table = only_table([*defended("fedsgd", 9), *defended("good", -3)])
    assert rows(table)["good"].cells["attack"].value == "prior"


def test_the_table_reports_the_half_that_did_not_choose() -> None:
    lucky = reconstruction("fedsgd", "lucky", [p + e for p, e in zip(PRIOR, on_halves(20, 1), strict=True)])
    table = only_table([*defended("fedsgd", 9), lucky])
    row = rows(table)["fedsgd"]
    assert row.cells["attack"].value == "lucky"
    assert row.cells["excess"].value == pytest.approx(1)
    assert row.cells["each"].value == pytest.approx(9)  # for each target the best attack


@pytest.mark.parametrize("excess", [0.0, -3.0])
def test_a_control_that_does_not_break_ranks_nobody(excess: float) -> None:
    table = only_table([*defended("fedsgd", excess), *defended("weak", 5)])
    assert set(ranking(table).values()) == {None}
    assert any(
        "The control (fedsgd) does not break here" in note and "nobody is ranked" in note for note in table.notes
    )


def test_a_missing_control_ranks_nobody() -> None:
    table = only_table(defended("weak", 5))
    assert set(ranking(table).values()) == {None}
    assert list(ranking(table)) == ["weak"]
    assert any("There is no control (fedsgd) among the records" in note for note in table.notes)
    assert any("it has no score" in note for note in table.notes)


def test_without_a_prior_the_table_says_what_is_missing() -> None:
    table = only_table([reconstruction("fedsgd", "inverting-gradients", plus(9))])
    assert table.rows == ()
    assert any("There is no prior among the attacks" in note for note in table.notes)


def test_what_does_not_train_stands_below_the_line() -> None:
    records = [
        *defended("fedsgd", 9, accuracy=0.8),
        *defended("noise", 0, accuracy=0.5),
        *defended("ok", 3, accuracy=0.72),
    ]
    table = only_table(records)
    assert ranking(table) == {"ok": 1, "fedsgd": 2, "noise": None}
    assert [row.muted for row in table.rows] == [False, False, True]
    assert "does not train: 50.00 % accuracy, 72.00 % needed" in rows(table)["noise"].cells["rank"].note
    assert any("at least 90 % of the accuracy of fedsgd, that is 72.00 %" in note for note in table.notes)
    loose = only_table(records, gate=0.5)
    assert ranking(loose) == {"noise": 1, "ok": 2, "fedsgd": 3}


def test_failed_cells_are_counted() -> None:
    failed = reconstruction("weak", "new-attack", PRIOR, status="timeout")
    table = only_table([*defended("fedsgd", 9), *defended("weak", 5), failed])
    assert any("1 of 5 cells did not give a score" in note for note in table.notes)
    # a defense does not win because an attack on it gave no answer
    assert ranking(table) == {"fedsgd": 1, "weak": None}
    assert rows(table)["weak"].cells["rank"].note == "incomplete: new-attack gave no answer"


def test_a_seed_that_failed_for_one_attack_or_defense_stops_no_table() -> None:
    records = [
        record for seed in (0, 1) for name, e in (("fedsgd", 9), ("weak", 5)) for record in defended(name, e, seed=seed)
    ]
    broken = reconstruction("weak", "inverting-gradients", PRIOR, seed=1, status="crashed")
    records = [broken if record.key == broken.key else record for record in records]
    table = only_table(records)
    assert ranking(table) == {"fedsgd": 1, "weak": None}
    assert rows(table)["weak"].cells["excess"].value == pytest.approx(5)
    # an unfinished run: one defense has the first seed, the other the second
    apart = only_table([*defended("fedsgd", 9, seed=0), *defended("weak", 5, seed=1)])
    assert ranking(apart) == {"weak": 1, "fedsgd": 1}


def test_the_round_that_ranks_is_where_the_control_breaks_most() -> None:
    records = [
        *defended("fedsgd", 3, moment="first"),
        *defended("fedsgd", 9, moment="last"),
        *defended("weak", 20, moment="first"),
        *defended("weak", 5, moment="last"),
    ]
    table = only_table(records)
    assert table.title == "Reconstruction, digits, threat server, last round, batch size 1"
    assert rows(table)["weak"].cells["excess"].value == pytest.approx(5)


def test_several_seeds_make_one_row() -> None:
    records = [record for seed in range(3) for record in defended("fedsgd", 9 + seed, seed=seed)]
    cell = rows(only_table(records))["fedsgd"].cells["excess"]
    assert cell.value == pytest.approx(10)
    assert cell.low is not None
    assert cell.low > 9.5  # the spread between seeds is not that of the targets


def attacked(defense: str, shift: float, attack: str = "shadow", accuracy: float = 0.9) -> Record:
    random = np.random.default_rng(7)
    members = [index % 2 == 0 for index in range(200)]
    scores = random.normal(size=200) + shift * np.array(members)
    return membership(defense, attack, scores.tolist(), members, accuracy=accuracy)


def test_membership_is_ranked_by_the_worst_auc() -> None:
    table = only_table([attacked("fedsgd", 3), attacked("fedsgd", 0, "loss-threshold"), attacked("dp", 0.5)])
    assert table.title == "Membership, digits, threat client"
    assert ranking(table) == {"dp": 1, "fedsgd": 2}
    row = rows(table)["fedsgd"]
    assert row.cells["attack"].value == "shadow"
    assert isinstance(row.cells["auc"].value, float)
    assert row.cells["auc"].value > 0.95
    assert row.cells["tpr"].value is None  # 100 non-members, of which the reported half has 50
    assert "fewer than 100" in row.cells["tpr"].note


def test_membership_ties_share_a_rank() -> None:
    table = only_table([attacked("fedsgd", 3), attacked("a", 1), attacked("b", 1)])
    assert ranking(table) == {"a": 1, "b": 1, "fedsgd": 3}


def test_membership_is_not_ranked_where_the_control_is_a_coin() -> None:
    table = only_table([attacked("fedsgd", 0), attacked("dp", 3)])
    assert set(ranking(table).values()) == {None}
    assert any("its AUC interval is not above 0.5" in note for note in table.notes)


def test_one_table_a_goal_in_order_and_all_cells_in_the_lists() -> None:
    records = [attacked("fedsgd", 3), *defended("fedsgd", 9), reconstruction("weak", status="failed")]
    tables = ranking_tables(records, "fedsgd", 0.9)
    assert [table.title.split(",")[0] for table in tables] == ["Reconstruction", "Membership"]
    lists = cell_tables(records)
    assert [len(table.rows) for table in lists] == [3, 1]
    (failed,) = [row for row in lists[0].rows if row.muted]
    assert (failed.cells["status"].value, failed.cells["status"].note) == ("failed", "broken")
    assert ranking_tables([], "fedsgd", 0.9) == []


def test_a_run_in_which_everything_failed_has_a_table() -> None:
    table = only_table([reconstruction(status="failed"), reconstruction(attack="prior", status="failed")])
    assert ranking(table) == {"fedsgd": None}
    assert rows(table)["fedsgd"].cells["rank"].note == ("incomplete: inverting-gradients, prior gave no answer: broken")
    assert any("2 of 2 cells did not give a score" in note for note in table.notes)


def test_accuracy_counts_each_training_once() -> None:
    records = [*defended("fedsgd", 9, accuracy=0.8, seed=0), *defended("fedsgd", 9, accuracy=0.6, seed=1)]
    utility = utility_of([*records, records[0]], "fedsgd", 0.9)
    assert utility.accuracy["fedsgd"] == pytest.approx(0.7)
    low, high = utility.interval["fedsgd"]
    assert low < 0.7 < high
    assert high - low < 0.05  # over 2,000 test images
    assert utility.needed == pytest.approx(0.63)
    assert utility.passes("fedsgd")
    assert not utility.passes("never trained")
    assert utility.cell("never trained").value is None


def test_a_row_with_fewer_seeds_is_compared_with_the_control_at_these_seeds() -> None:
    control = [*defended("fedsgd", 9, accuracy=0.9, seed=0), *defended("fedsgd", 9, accuracy=0.5, seed=1)]
    utility = utility_of([*control, *defended("dp", 9, accuracy=0.75, seed=0)], "fedsgd", 0.9)
    assert utility.needed == pytest.approx(0.63)
    assert utility.needed_by("dp") == pytest.approx(0.81)
    assert utility.standing("dp") == "below"
    assert "at these seeds" in utility.note
    both = utility_of([*control, *defended("dp", 9, accuracy=0.75, seed=2)], "fedsgd", 0.9)
    assert both.needed_by("dp") == both.needed
    assert "at these seeds" not in both.note


def test_a_training_without_accuracy_is_no_accuracy() -> None:
    utility = utility_of([reconstruction(accuracy=None)], "fedsgd", 0.9)
    assert utility.needed is None
    assert utility.passes("anybody")
    assert "nothing is gated" in utility.note
