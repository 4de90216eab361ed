"""One card per defense: its claim in its own words, the result under every threat, and its cost.

The verdicts follow one rule per goal. The rule is the same for all defenses, whatever they claim. The words of a claim
say which threats it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from leakboard.core import registry
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.ranking.epsilons import claims_of, exact_round, exact_run, number, per
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.verdicts import Finding, questions, worst_finding
from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.tables.phase_times import Setting, round_seconds, timed_trainings


@dataclass(frozen=True)
class Card:
    """A defense on a data set. `name` is the plugin's, `label` the suite's; `facts` are accuracy, cost and epsilon."""

    dataset: str
    label: str
    name: str
    claim: str
    remark: str
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


def cards(boards: Sequence[Board], records: Sequence[Record], claims: Mapping[str, str]) -> list[Card]:
    """The cards of all defenses, by data set. `claims` are the plugins' own sentences, by name.

    Of several observed rounds and batch sizes the worst for the defense is shown and named, as on the scoreboard.
    """
    found = []
    for dataset in dict.fromkeys(board.place.dataset for board in boards):
        here = [board for board in boards if board.place.dataset == dataset]
        mine = [record for record in records if record.cell.training.dataset.label == dataset]
        labels = natural_order({record.cell.training.defense.label for record in mine})
        control = here[0].utility.control
        for label in sorted(
            labels, key=lambda name: name != control
        ):  # the control first, because all others are compared with it
            own = [record for record in mine if record.cell.training.defense.label == label]
            name = registry.canonical_name("defense", own[0].cell.training.defense.name)
            findings = tuple(worst_finding(cases, label, own) for cases in questions(here))
            facts = (*_utility(here[0], label), *_cost(label, control, mine), *_epsilon(own, here, label))
            found.append(Card(dataset, label, name, claims.get(name, ""), _own_words(own), facts, findings))
    return found


# --- facts --------------------------------------------------------------------------------------


def _utility(board: Board, label: str) -> list[tuple[str, str]]:
    """Accuracy, compared with the control."""
    utility = board.utility
    if label not in utility.accuracy:
        return [("accuracy", "not known: its training did not finish")]
    shown = f"{100 * utility.accuracy[label]:.1f} %"
    if label != utility.control and utility.control in utility.accuracy:
        points = 100 * (utility.accuracy[label] - utility.accuracy[utility.control])
        shown += f" ({points:+.1f} points against {utility.control})".replace("-", "−")
    marks = {"below": "; not ranked: below the gate", "near": "; near the gate, ranked: the interval includes it"}
    return [("accuracy", shown + marks.get(utility.standing(label), ""))]


def _rounded(value: float) -> str:
    """Three digits, whole numbers from 1,000 on, no powers of ten."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _cost(label: str, control: str, records: Sequence[Record]) -> list[tuple[str, str]]:
    """CPU seconds and bytes per round, for each setting in which the defense was trained."""
    facts: list[tuple[str, str]] = []
    found = {setting: all_ for setting, all_ in timed_trainings(records).items() if label in all_}
    for setting, trainings in found.items():
        where = "" if len(found) == 1 else f" ({_short(setting, found)})"
        total, base = (round_seconds(trainings.get(name, [])) for name in (label, control))
        if total is None:
            facts.append((f"CPU per round{where}", "not known: its cryptography was neither done nor timed"))
        else:
            times = f", {_rounded(total / base)} times {control}'s" if base and label != control else ""
            facts.append((f"CPU per round{where}", f"{_rounded(total)} s{times}"))
        sent = fmean(sum(one.bytes_by_kind.values()) / max(1, one.client_rounds) for one in trainings[label])
        facts.append((f"sent per client and round{where}", f"{sent / 1e6:.3g} MB"))
    return facts


def _short(setting: Setting, among: Mapping[Setting, object]) -> str:
    """What distinguishes a setting from the others."""
    models = len({other.model for other in among}) > 1
    return ", ".join(filter(None, [setting.model if models else "", f"K = {setting.clients}"]))


def _epsilon(own: Sequence[Record], boards: Sequence[Board], label: str) -> list[tuple[str, str]]:
    """The nominal epsilon, the exact one, and the one that an audit proves under each threat."""
    claims = claims_of(own)
    facts = []
    nominal, a_round, a_run = number(claims, "epsilon_claimed"), exact_round(claims), exact_run(claims)
    if nominal is not None:
        facts.append(("ε nominal", f"{nominal:g} per {per(claims)}"))
    for name, value in (("ε exact per round", a_round), ("ε exact per run", a_run)):
        if value is not None:
            facts.append((name, f"{_rounded(value)}, for Gaussian noise, this graph and this delta"))
    for board in boards:
        rows = [row for row in board.table.rows if row.cells["defense"].value == label]
        if rows and "audited" in rows[0].cells and rows[0].cells["audited"].is_number:
            facts.append(
                ("ε audited", f"at least {rows[0].cells['audited'].value:.2f} per round ({board.place.threat})")
            )
            column = next(column for column in board.table.columns if column.key == "implied")
            if rows[0].cells["implied"].is_number:
                shown = " ".join((rows[0].cells["implied"].main(column), rows[0].cells["implied"].interval(column)))
                facts.append(("ε estimated", f"{shown} per round, for Gaussian noise ({board.place.threat})"))
    return facts


def _own_words(own: Sequence[Record]) -> str:
    """The reason why its epsilon does not hold, if the defense's own code gives one."""
    claims = claims_of(own)
    return str(claims.get("reason", "")) if claims.get("dp_holds") is False else ""
