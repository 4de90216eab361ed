"""Plain attacks beside those that know the defense, the goals without images, and what must not be ranked."""

from __future__ import annotations

import numpy as np
import pytest

from leakboard.leaderboard.ranking.audit_table import REFUTED, STANDS, outcome_of
from leakboard.leaderboard.ranking.generalisation_gap import gap_of
from leakboard.leaderboard.ranking.intervals import rate_difference
from leakboard.leaderboard.ranking.leaderboards import ranking_boards, ranking_tables
from leakboard.leaderboard.ranking.worst_case import KNOWS
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.formats import to_csv, to_html, to_json, to_latex, to_markdown, to_terminal
from tests.leaderboard.ranking.test_evidence import on_halves
from tests.leaderboard.ranking.test_leaderboards import PRIOR, attacked, defended, only_table, plus, ranking, rows
from tests.leaderboard.synthetic import audit, extraction, membership, reconstruction


def knowing(defense: str, excess: float, attack: str = "phi-inversion") -> Record:
    return reconstruction(defense, attack, plus(excess), adaptive=True)


def test_the_worst_case_names_its_attack_and_the_best_plain_one_stands_beside_it() -> None:
    table = only_table([*defended("fedsgd", 9), *defended("mp-dp", 1), knowing("mp-dp", 7), knowing("fedsgd", 2)])

    row = rows(table)["mp-dp"]
    assert (row.cells["attack"].value, row.cells["attack"].note) == ("phi-inversion", KNOWS)
    assert row.cells["excess"].value == pytest.approx(7)
    assert row.cells["plain_attack"].value == "inverting-gradients"
    assert row.cells["plain_excess"].value == pytest.approx(1)
    # an attack that knows the defense and does worse than a plain one is not the worst case
    other = rows(table)["fedsgd"]
    assert (other.cells["attack"].value, other.cells["attack"].note) == ("inverting-gradients", "")
    assert other.cells["plain_excess"].value == other.cells["excess"].value == pytest.approx(9)
    keys = [column.key for column in table.columns]
    assert keys.index("excess") < keys.index("plain_attack")
    assert not any("Only plain attacks ran" in note for note in table.notes)


def test_an_adaptive_attack_decides_the_ranks() -> None:
    plain = [*defended("fedsgd", 9), *defended("mp-dp", 1), *defended("ldp", 3)]
    assert ranking(only_table(plain)) == {"mp-dp": 1, "ldp": 2, "fedsgd": 3}
    assert ranking(only_table([*plain, knowing("mp-dp", 7)])) == {"ldp": 1, "mp-dp": 2, "fedsgd": 3}
    assert not any(column.key.startswith("plain_") for column in only_table(plain).columns)


def test_the_plain_attack_too_is_chosen_on_one_half_and_reported_on_the_other() -> None:
    prior = np.array(PRIOR)
    records = [
        *defended("fedsgd", 9),
        reconstruction("fedsgd", "lucky", (prior + on_halves(20, 4)).tolist()),
        reconstruction("fedsgd", "knows", (prior + on_halves(30, 30)).tolist(), adaptive=True),
    ]
    row = rows(only_table(records))["fedsgd"]
    assert (row.cells["attack"].value, row.cells["plain_attack"].value) == ("knows", "lucky")
    assert row.cells["plain_excess"].value == pytest.approx(4)


def test_of_equal_attacks_the_plain_one_is_named() -> None:
    table = only_table([knowing("fedsgd", 9), *defended("fedsgd", 9)])
    assert rows(table)["fedsgd"].cells["attack"].value == "inverting-gradients"


def test_membership_shows_the_plain_auc_beside_the_worst() -> None:
    adaptive = attacked("dp", 2, "strip").model_copy(update={"key": "strip"})
    adaptive = adaptive.model_copy(update={"cell": adaptive.cell.model_copy(update={"adaptive": True})})
    table = only_table([attacked("fedsgd", 3), attacked("dp", 0.2), adaptive])
    row = rows(table)["dp"]
    assert (row.cells["attack"].value, row.cells["plain_attack"].value) == ("strip", "shadow")
    worst, plain = row.cells["auc"], row.cells["plain_auc"]
    assert isinstance(worst.value, float)
    assert isinstance(plain.value, float)
    assert worst.value > 0.85 > 0.7 > plain.value
    assert plain.low is not None
    assert "has 46 non-members a seed, fewer than 100" in row.cells["plain_tpr"].note


def test_a_missing_rate_gives_its_reason_in_every_format() -> None:
    table = only_table([attacked("fedsgd", 3)])
    reason = "has 46 non-members a seed, fewer than 100"
    for text in (to_markdown(table), to_csv([table]), to_json([table]), to_latex(table), to_html(table)):
        assert reason in text
    assert reason in " ".join(to_terminal(table).split())


def test_a_half_without_members_has_no_rates_but_a_table() -> None:
    scores, members = [3.0, 2.0, 1.0, 0.0], [True, False, False, False]
    found = [
        membership("fedsgd", scores=np.roll(scores, shift).tolist(), members=np.roll(members, shift).tolist())
        for shift in range(4)  # in some of them the only member is on the half that chooses
    ]
    cells = [rows(only_table([record]))["fedsgd"].cells["asr"] for record in found]
    assert {cell.value is None for cell in cells} == {True, False}
    assert {cell.note for cell in cells if cell.value is None} == {"the reported half has one class only"}


# --- the generalisation gap


def gapped(defense: str, shift: float, test: float, train: float | None, **given: str) -> Record:
    members = [index % 2 == 0 for index in range(200)]
    scores = np.random.default_rng(7).normal(size=200) + shift * np.array(members)
    return membership(
        defense,
        scores=scores.tolist(),
        members=members,
        accuracy=test,
        train_accuracy=train,
        **given,  # type: ignore[arg-type]
    )


def test_nobody_is_ranked_without_a_generalisation_gap() -> None:
    table = only_table([gapped("fedsgd", 3, 0.90, 0.91), gapped("dp", 1, 0.90, 0.90)])
    assert set(ranking(table).values()) == {None}
    (note,) = [note for note in table.notes if note.startswith("No generalisation gap: it cannot rank defenses.")]
    assert "by 1.0 points [" in note

    told = only_table([gapped("fedsgd", 3, 0.90, 0.99), gapped("dp", 1, 0.90, 0.90)])
    assert ranking(told) == {"dp": 1, "fedsgd": 2}
    assert not any("generalisation" in note for note in told.notes)
    # what is not known is not held against the table
    assert ranking(only_table([gapped("fedsgd", 3, 0.90, None), gapped("dp", 1, 0.90, 0.90)])) == ranking(told)


def test_membership_in_a_batch_needs_no_gap_and_has_a_table_of_its_own() -> None:
    batch = {"about": "batch", "moment": "first", "threat": "server"}
    records = [gapped("fedsgd", 3, 0.9, 0.9, **batch), gapped("dp", 1, 0.9, 0.9, **batch)]
    table = only_table(records)
    assert table.title == "Membership in the batch, digits, threat server, first round"
    assert ranking(table) == {"dp": 1, "fedsgd": 2}
    both = ranking_tables([*records, gapped("fedsgd", 3, 0.9, 0.99, threat="server")], "fedsgd", 0.9)
    assert [table.title for table in both] == ["Membership, digits, threat server", table.title]


def test_batches_of_two_rounds_are_not_mixed() -> None:
    weak, strong = (gapped("fedsgd", s, 0.9, 0.9, about="batch", moment=m) for s, m in ((0.1, "first"), (3, "last")))
    table = only_table([weak, strong])
    assert table.title.endswith("last round")
    value = rows(table)["fedsgd"].cells["auc"].value
    assert isinstance(value, float)
    assert value > 0.95


def test_the_gap_counts_each_training_once_and_all_its_records() -> None:
    records = [gapped("fedsgd", 3, 0.90, 0.93), gapped("fedsgd", 3, 0.90, 0.93), gapped("other", 3, 0.1, 0.9)]
    gap = gap_of(records, "fedsgd")
    assert gap is not None
    assert gap.value == pytest.approx(0.03)
    assert gap.interval == rate_difference(930, 1000, 900, 1000)
    assert gap.is_there
    assert gap_of(records, "absent") is None
    assert gap_of([gapped("fedsgd", 3, 0.93, 0.90)], "fedsgd").is_there is False  # type: ignore[union-attr]


def test_the_interval_of_a_difference_covers_it() -> None:
    """Coverage of Newcombe's 95 % interval at 300 and 200: 94 to 96.6 % of 4,000 draws (false alarm below 1e-3)."""
    random = np.random.default_rng(0)
    drawn = zip(random.binomial(300, 0.95, 4000), random.binomial(200, 0.9, 4000), strict=True)
    inside = [rate_difference(int(a), 300, int(b), 200).contains(0.05) for a, b in drawn]
    assert 0.94 < np.mean(inside) < 0.966
    assert rate_difference(0, 0, 1, 2) == (-1, 1)


# --- extraction


def stolen(defense: str, share: float, **given: object) -> Record:
    return extraction(defense, fidelity=[float(index % 20 < 20 * share) for index in range(200)], **given)  # type: ignore[arg-type]


def test_extraction_is_ranked_by_fidelity_with_ties_by_test_records() -> None:
    hides = stolen("mp", 0.1), stolen("mp", 0.9, attack="strip", adaptive=True)
    table = only_table([stolen("fedsgd", 1), *hides, stolen("twin", 0.9), stolen("noisy", 0.5)])
    assert table.title == "Extraction, digits, threat client, last round"
    assert ranking(table) == {"noisy": 1, "mp": 2, "twin": 2, "fedsgd": 4}
    row = rows(table)["mp"]
    assert (row.cells["attack"].value, row.cells["plain_attack"].value) == ("strip", "steal")
    assert row.cells["fidelity"].value == pytest.approx(90, abs=5)
    assert row.cells["plain_fidelity"].value == pytest.approx(10, abs=5)
    assert row.cells["canonical_distance"].value == 0.25


def test_extraction_is_not_ranked_where_even_the_open_model_is_not_stolen() -> None:
    table = only_table([stolen("fedsgd", 0.9), stolen("mp", 0.1)])
    assert set(ranking(table).values()) == {None}
    assert any("its fidelity is below 99 %" in note for note in table.notes)


def test_the_round_that_ranks_extraction_is_that_of_the_better_model() -> None:
    early = extraction("fedsgd", stolen=(0, 0, 0, 1), moment="first")
    assert only_table([early, extraction("fedsgd", moment="last")]).title.endswith("last round")


# --- audit


def test_a_claim_is_refuted_where_the_audit_exceeds_it() -> None:
    records = [audit("fedsgd", audited=6.5, details={"ceiling": 6.5, "trials": 2000}), audit("mp-dp", audited=5.0)]
    table = only_table([*records, audit("ldp", audited=1.5)])
    assert table.title == "Audit, digits, threat server"
    found = {name: row.cells["verdict"] for name, row in rows(table).items()}
    assert {name: outcome_of(cell) for name, cell in found.items()} == {"fedsgd": "", "ldp": STANDS, "mp-dp": REFUTED}
    assert found["fedsgd"].note == "it claims no epsilon here"
    cells = rows(table)["mp-dp"].cells
    shown = [cells[name].value for name in ("claimed", "round", "composed", "audited", "ceiling", "trials")]
    assert shown == [3.0, 3.1, 40.0, 5.0, 6.5, 2000]
    assert "rank" not in cells


def test_a_refuted_claim_stands_beside_what_the_defense_itself_says_of_it() -> None:
    made = audit("cdp", audited=5.0)
    assert made.training is not None
    claims = {"dp_holds": False, "reason": "only if the server is trusted"}
    record = made.model_copy(update={"training": made.training.model_copy(update={"claims": claims})})
    verdict = rows(only_table([record]))["cdp"].cells["verdict"]
    assert (verdict.value, verdict.note) == (REFUTED, "only if the server is trusted")


def test_of_several_seeds_the_median_bound_is_shown() -> None:
    lucky = [audit("mp-dp", "lucky", audited=value, seed=seed) for seed, value in enumerate((9.0, 0.1, 0.2))]
    steady = [audit("mp-dp", "steady", audited=1.0, seed=seed, adaptive=True) for seed in range(3)]
    cells = rows(only_table([*lucky, *steady]))["mp-dp"].cells
    assert (cells["attack"].value, cells["audited"].value) == ("steady", 1.0)
    assert (cells["plain_attack"].value, cells["plain_audited"].value) == ("lucky", 0.2)
    assert outcome_of(cells["verdict"]) == STANDS


def test_the_worst_audit_is_chosen_on_the_half_that_is_not_reported() -> None:
    """The largest of several bounds is too large too often."""
    lucky = audit("mp-dp", "lucky", audited=3.5, details={"claimed": 3.0, "choosing": 1.0, "trials": 2000})
    better = audit("mp-dp", "better", audited=2.5, details={"claimed": 3.0, "choosing": 2.0, "trials": 2000})
    cells = rows(only_table([lucky, better]))["mp-dp"].cells
    assert (cells["attack"].value, cells["audited"].value, outcome_of(cells["verdict"])) == ("better", 2.5, STANDS)


def test_an_audit_without_a_bound_or_a_control_that_breaks_says_so() -> None:
    table = only_table([audit("fedsgd", audited=0.0), audit("mp-dp", audited=None)])
    assert list(rows(table)) == ["fedsgd"]
    assert any("its audit proves no epsilon" in note for note in table.notes)


# --- all together


def everything() -> list[Record]:
    """A run with every goal, threats out of order."""
    threats = ("client", "server:active", "server+clients:10", "server+keys", "server+clients:2", "server")
    moved = [
        reconstruction("fedsgd", name, plus(excess), threat=threat)
        for threat in threats
        for name, excess in (("prior", 0.0), ("inverting-gradients", 9.0))
    ]
    return [audit("fedsgd"), extraction(), attacked("fedsgd", 3), *moved]


def test_goals_and_threats_stand_in_a_fixed_order() -> None:
    places = [board.place for board in ranking_boards(everything(), "fedsgd", 0.9)]
    order = ["server", "server+keys", "server+clients:2", "server+clients:10", "server:active", "client"]
    assert [place.threat for place in places if place.goal == "reconstruction"] == order
    assert list(dict.fromkeys(place.goal for place in places)) == [
        "reconstruction",
        "membership",
        "extraction",
        "audit",
    ]


def test_every_goal_has_its_list_of_cells() -> None:
    lists = {table.title: table.rows[0].cells for table in cell_tables(everything())}
    assert lists["All cells: extraction"]["fidelity"].value == 1.0
    assert lists["All cells: membership"]["about"].value == "training"
    bounds = [lists["All cells: audit"][name].value for name in ("epsilon_lower", "claimed", "ceiling", "trials")]
    assert bounds == [5.0, 3.0, 6.5, 2000]


def under(threat: str, *records: Record) -> list[Record]:
    return [r.model_copy(update={"cell": r.cell.model_copy(update={"threat": threat})}) for r in records]


def test_the_control_of_an_active_server_is_the_one_that_is_honest() -> None:
    """Nothing is hidden from it, so it has no strategy; without its row nobody could be ranked."""
    skipped = [
        r.model_copy(update={"status": "skipped", "scores": {}}) for r in under("server:active", *defended("fedsgd", 9))
    ]
    active = under("server:active", *defended("mp-dp", 5), *defended("ldp", 2))
    tables = ranking_tables([*defended("fedsgd", 9), *skipped, *active], "fedsgd", 0.9)
    (found,) = (table for table in tables if "server:active" in table.title)
    assert ranking(found) == {"ldp": 1, "mp-dp": 2, "fedsgd": 3}
