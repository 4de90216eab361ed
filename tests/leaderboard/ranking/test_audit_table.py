"""The audit table: the estimate beside the bound, and no verdict without its power."""

from __future__ import annotations

import re

import pytest

from leakboard.defenses.noise.calibration import gaussian_epsilon, gaussian_mu
from leakboard.leaderboard.ranking.audit_table import DOUBTED, STANDS
from leakboard.leaderboard.ranking.goal_ranking import BROKEN, HELD, NOT_SHOWN
from leakboard.leaderboard.records.record import Record, ScoreRecord
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.metrics.audit_power import AuditPower, audit_power
from leakboard.metrics.base import AuditMetric, AuditTruth
from leakboard.metrics.epsilon_lower import EpsilonLower
from leakboard.metrics.mu import Mu
from tests.leaderboard.page.test_cards import card
from tests.leaderboard.ranking.test_leaderboards import only_table, rows
from tests.leaderboard.synthetic import audit
from tests.metrics.test_epsilon_lower import gaussian_game


def scored(*, mu: float, trials: int = 700, seed: int = 0, attack: str = "distinguish") -> Record:
    """A record as scoring makes it, of a Gaussian mechanism with this mu that claims epsilon 3."""
    truth = AuditTruth(*gaussian_game(mu, trials, seed), 1e-5, 3.0)
    made = audit("mp-dp", attack, details={})
    metrics: list[AuditMetric] = [EpsilonLower(), Mu(), AuditPower()]
    given = {metric.name: metric.score(truth) for metric in metrics}
    details = {"claimed": 3.0, "delta": 1e-5}
    scores = {n: ScoreRecord(value=s.value, details={**s.details, **details}) for n, s in given.items()}
    return made.model_copy(update={"scores": scores})


def test_a_claim_is_never_called_not_refuted_without_the_power_to_refute_it() -> None:
    """In records of today's code, which name it, and in older ones, for which it is computed."""
    record = scored(mu=gaussian_mu(3.0))
    older = record.model_copy(update={"scores": {"epsilon_lower": record.scores["epsilon_lower"]}})
    shown = [str(rows(only_table([one]))["mp-dp"].cells["verdict"].value) for one in (record, older)]
    assert shown[0] == shown[1]
    power = audit_power(700, 3.0)
    assert shown[0].startswith(f"{STANDS} (power at noise / 2: bound {power.bound_2x:.0%}".replace("%", " %"))
    assert "estimate 100 %" in shown[0]
    for verdict in shown:
        assert re.fullmatch(rf"{STANDS} \(power .*bound \d+ %.*bound \d+ %.*\)", verdict)


def test_without_the_number_of_trials_nothing_is_said_to_stand() -> None:
    verdict = rows(only_table([audit("mp-dp", audited=1.0, details={"claimed": 3.0})]))["mp-dp"].cells["verdict"]
    assert verdict.value is None
    assert "power is not known" in verdict.note


def test_the_table_gives_the_estimate_what_it_means_and_what_could_be_proved() -> None:
    record = scored(mu=gaussian_mu(3.0))
    cells = rows(only_table([record]))["mp-dp"].cells
    found = record.scores["mu"]
    assert (cells["mu"].value, cells["mu"].low, cells["mu"].high) == (
        found.value,
        found.details["low"],
        found.details["high"],
    )
    assert cells["implied"].value == pytest.approx(gaussian_epsilon(found.value or 0))
    assert cells["provable"].value == audit_power(700, 3.0).provable
    lists = {table.title: table.rows[0].cells for table in cell_tables([record])}["All cells: audit"]
    assert (lists["mu"].value, lists["low"].value) == (found.value, found.details["low"])


def test_noise_half_as_large_is_exceeded_by_the_estimate_where_the_bound_is_silent() -> None:
    cells = rows(only_table([scored(mu=2 * gaussian_mu(3.0))]))["mp-dp"].cells
    assert float(cells["audited"].value or 0) < 3 < (cells["implied"].low or 0)
    assert cells["verdict"].value == DOUBTED


def test_of_several_attacks_the_estimate_is_that_of_the_half_that_did_not_choose() -> None:
    weak, strong = scored(mu=0.1, attack="weak"), scored(mu=0.7, attack="strong")
    cells = rows(only_table([weak, strong]))["mp-dp"].cells
    assert cells["attack"].value == "strong"
    assert cells["mu"].value == strong.scores["mu"].details["evaluated"]
    assert cells["mu"].low == strong.scores["mu"].details["evaluated_low"]


def test_separated_worlds_have_no_upper_end() -> None:
    cells = rows(only_table([scored(mu=30.0)]))["mp-dp"].cells
    assert cells["mu"].high is None
    assert cells["mu"].value == cells["mu"].low
    assert "perfectly separated" in cells["mu"].note


@pytest.mark.parametrize(("times", "verdict"), [(1, HELD), (2, NOT_SHOWN), (8, BROKEN)])
def test_a_card_says_that_a_claim_held_with_the_power_and_never_where_the_estimate_exceeds_it(
    times: int, verdict: str
) -> None:
    found = card([audit("fedsgd"), scored(mu=times * gaussian_mu(3.0))], "mp-dp")
    (finding,) = found.findings
    assert finding.verdict == verdict
    assert ("power" in finding.why) == (verdict == HELD)
    assert "[" in dict(found.facts)["ε estimated"]
