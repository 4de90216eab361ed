"""The cards: what a defense claims, what held, what it costs."""

from __future__ import annotations

import pytest

from leakboard.leaderboard.page.cards import Card, _rounded, cards
from leakboard.leaderboard.ranking.goal_ranking import BROKEN, HELD, NO_CLAIM, NOT_ASKED, NOT_SHOWN
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.page.test_charts import a_run, boards
from tests.leaderboard.ranking.test_leaderboards import attacked, defended, plus
from tests.leaderboard.ranking.test_worst_case import gapped, knowing, stolen
from tests.leaderboard.synthetic import audit, extraction, reconstruction
from tests.leaderboard.tables.test_phase_times import timed


def card(records: list[Record], label: str, claims: dict[str, str] | None = None) -> Card:
    (found,) = (card for card in cards(boards(records), records, claims or {}) if card.label == label)
    return found


def verdicts(records: list[Record], label: str) -> dict[str, str]:
    return {f"{finding.goal} {finding.threat}": finding.verdict for finding in card(records, label).findings}


def test_a_card_tells_claim_findings_and_records() -> None:
    found = card(a_run(), "mp-dp", {"mp-dp": "The server learns nothing."})
    assert found.claim == "The server learns nothing."
    by_goal = {finding.goal: finding for finding in found.findings}
    assert list(by_goal) == ["reconstruction", "membership", "extraction", "audit"]
    worst = by_goal["reconstruction"]
    assert worst.verdict == BROKEN
    assert worst.attack is not None
    assert worst.attack.value == "phi-inversion"
    assert worst.attack.link in {record.key for record in a_run()}
    assert worst.score.startswith("identified 0.0 % [")
    assert by_goal["audit"].verdict == BROKEN
    assert by_goal["audit"].score.startswith("ε audited 5.00 over the half of the trials")
    assert dict(found.facts)["ε audited"] == "at least 5.00 per round (server)"


def test_the_control_comes_first_and_all_defenses_have_a_card() -> None:
    found = cards(boards(a_run("a-name-before-fedsgd")), a_run("a-name-before-fedsgd"), {})
    assert [card.label for card in found] == ["fedsgd", "a-name-before-fedsgd", "noise"]
    assert found[0].claim == ""


def test_a_plain_attack_that_is_no_better_than_guessing_means_held() -> None:
    records = [*defended("fedsgd", 9), *defended("quiet", 0), attacked("fedsgd", 3), attacked("quiet", 0)]
    assert set(verdicts(records, "quiet").values()) == {HELD}
    assert set(verdicts(records, "fedsgd").values()) == {BROKEN}


def test_an_identified_image_breaks_a_defense_though_its_psnr_does_not() -> None:
    sharp = [
        reconstruction("sharp", "prior", plus(0)),
        reconstruction("sharp", "inverting-gradients", plus(-1), identified=[1.0] * 8),
    ]
    assert verdicts([*defended("fedsgd", 9), *sharp], "sharp") == {"reconstruction server": BROKEN}


def test_a_stolen_model_must_agree_on_more_than_half() -> None:
    records = [stolen("fedsgd", 1), stolen("weak", 0.9), stolen("mp", 0.1)]
    assert verdicts(records, "weak") == {"extraction client": BROKEN}
    assert verdicts(records, "mp") == {"extraction client": HELD}


def test_what_was_not_shown_or_not_asked_is_not_called_held() -> None:
    calm = [gapped("fedsgd", 3, 0.9, 0.9), gapped("dp", 0, 0.9, 0.9)]  # no generalisation gap
    assert verdicts(calm, "dp") == {"membership client": NOT_SHOWN}
    broken = reconstruction("quiet", "slow", status="timeout")
    silent = [*defended("fedsgd", 9), *defended("quiet", 0), broken]
    assert verdicts(silent, "quiet") == {"reconstruction server": NOT_SHOWN}
    (finding,) = card(silent, "quiet").findings
    assert "slow gave no answer" in finding.why
    alone = [*defended("fedsgd", 9), reconstruction("x", "slow", status="failed")]
    assert verdicts(alone, "x") == {"reconstruction server": NOT_SHOWN}
    skipped = [*defended("fedsgd", 9), reconstruction("x", "slow", status="skipped"), extraction(), extraction("x")]
    assert verdicts(skipped, "x") == {"reconstruction server": NOT_ASKED, "extraction client": BROKEN}
    assert verdicts([*defended("fedsgd", 9), extraction("x")], "x")["reconstruction server"] == NOT_ASKED


def test_an_incomplete_defense_that_leaks_all_the_same_did_not_hold() -> None:
    records = [*defended("fedsgd", 9), *defended("leaky", 5), reconstruction("leaky", "slow", status="crashed")]
    assert verdicts(records, "leaky") == {"reconstruction server": BROKEN}


def test_silence_is_no_win_for_a_defense_that_does_not_train_either() -> None:
    silent = reconstruction("noise", "slow", status="timeout", accuracy=0.3)
    records = [*defended("fedsgd", 9), *defended("noise", 0, accuracy=0.3), silent]
    assert verdicts(records, "noise") == {"reconstruction server": NOT_SHOWN}
    assert "not ranked" in dict(card(records, "noise").facts)["accuracy"]


@pytest.mark.parametrize(("audited", "verdict"), [(2.0, HELD), (4.0, BROKEN)])
def test_an_audit_is_held_against_the_claim(audited: float, verdict: str) -> None:
    assert verdicts([audit("fedsgd"), audit("dp", audited=audited)], "dp") == {"audit server": verdict}
    bare = audit("plain", audited=audited, details={"ceiling": 6.5, "trials": 2000})
    assert verdicts([audit("fedsgd"), bare], "plain") == {"audit server": NO_CLAIM}


def test_facts_compare_with_the_control() -> None:
    claims = {
        "epsilon_claimed": 3.0,
        "epsilon_run_exact": 45.2,
        "dp_holds": False,
        "reason": "Phi has no noise",
    }
    records = [
        timed("fedsgd", {"client/Train": 1.2}),
        timed("dp", {"client/Train": 2.4}, accuracy=0.85, claims=claims, bytes_by_kind={"update": 24_000_000}),
    ]
    found = card(records, "dp")
    assert found.remark == "Phi has no noise"
    assert dict(found.facts) == {
        "accuracy": "85.0 % (−5.0 points against fedsgd)",
        "CPU per round": "0.2 s, 2 times fedsgd's",
        "sent per client and round": "2 MB",
        "ε nominal": "3 per round",
        "ε exact per run": "45.2, for Gaussian noise, this graph and this delta",
    }
    assert dict(card(records, "fedsgd").facts)["accuracy"] == "90.0 %"


def test_a_total_that_is_not_known_is_not_made_up() -> None:
    records = [timed("fedsgd", {"client/Train": 1.2}), timed("he", {"client/Train": 2.4}, claims={"crypto": "sampled"})]
    assert dict(card(records, "he").facts)["CPU per round"].startswith("not known")


def test_knowing_the_defense_counts() -> None:
    records = [*defended("fedsgd", 9), *defended("mp-dp", 0)]
    assert verdicts(records, "mp-dp") == {"reconstruction server": HELD}
    assert verdicts([*records, knowing("mp-dp", 7)], "mp-dp") == {"reconstruction server": BROKEN}


def test_a_guess_alone_is_no_attack() -> None:
    guessed = [reconstruction("x", "prior", plus(0)), reconstruction("x", "slow", status="skipped")]
    assert verdicts([*defended("fedsgd", 9), *guessed], "x") == {"reconstruction server": NOT_ASKED}


@pytest.mark.parametrize(
    ("value", "shown"), [(0.02514, "0.0251"), (55.46, "55.5"), (999.4, "999"), (999.6, "1,000"), (2213.0, "2,213")]
)
def test_large_ratios_are_written_without_powers_of_ten(value: float, shown: str) -> None:
    assert _rounded(value) == shown
