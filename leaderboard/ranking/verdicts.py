"""The verdict on a defense in one table: held, did not hold, not shown. The rule is that of docs/architecture.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leakboard.leaderboard.ranking.goal_ranking import BROKEN, HELD, NOT_ASKED, NOT_SHOWN, ListedRanking, ranking_of
from leakboard.leaderboard.ranking.leaderboards import Board, Place, place_of
from leakboard.leaderboard.ranking.silence import unanswered
from leakboard.leaderboard.records.record import PRIOR, Record
from leakboard.leaderboard.tables.table import Cell, Column, Row

#: why a table that ranks nobody shows nothing
CONTROL_HOLDS = "attacks do not break the control here (or too few targets show it), or there is no generalisation gap"


class Finding(NamedTuple):
    """The result of a defense in one table: the worst attack (with its record), its score, verdict and reason."""

    place: Place
    attack: Cell | None
    score: str
    verdict: str
    why: str = ""
    #: the observed round of the ranking; other rounds may leak more or less
    moment: str = ""
    #: the row of the table; None where the defense has none
    row: Row | None = None
    #: the keys of the records behind the score, one per seed
    records: tuple[str, ...] = ()

    @property
    def goal(self) -> str:
        """What was asked."""
        return self.place.question

    @property
    def threat(self) -> str:
        """Who attacks."""
        return self.place.threat

    @property
    def size(self) -> str:
        """The batch size of a reconstruction in words; larger batches have separate tables."""
        return self.place.size

    @property
    def said(self) -> str:
        """The verdict in words."""
        return ranking_of(self.place.goal).words.get(self.verdict, self.verdict)

    @property
    def style(self) -> str:
        """The verdict as a CSS class."""
        return self.verdict.replace(" ", "-")


def finding_of(board: Board, label: str, own: Sequence[Record]) -> Finding:
    """What a table says of a defense; `own` are all its records."""
    place = board.place
    asked = [record for record in own if place_of(record) == place]
    row = next((row for row in board.table.rows if row.cells["defense"].value == label), None)
    if row is None:
        return Finding(place, None, "", *_without_score(asked))
    column = primary_of(board)
    if not row.cell(column).is_number:  # the row says why there is no score
        return Finding(place, None, "", NOT_SHOWN, row.cells[board.table.columns[0].key].note, row=row)
    found = next((found for found in board.rows if found.defense == label), None)
    records = found.reported.records if found is not None else ()
    moment = records[0].cell.moment if records else None
    verdict, why = _verdict(board, row, asked)
    attack = row.cells["attack"]
    keys = tuple(record.key for record in records) or tuple(filter(None, [attack.link]))
    return Finding(place, attack, _score(column, row.cell(column), board.over), verdict, why, moment or "", row, keys)


def questions(boards: Sequence[Board]) -> list[list[Board]]:
    """The boards of each question (goal, what it is about, threat) in all its cases, in the order of the boards.

    Cases are observed rounds, batch sizes, and shares of the batch among the candidates. The first case is the smallest
    batch with the largest share, in the round in which the control breaks most.
    """
    found: dict[tuple[str, str, str, str], list[Board]] = {}
    for board in boards:
        place = board.place
        found.setdefault((place.dataset, place.goal, place.about, place.threat), []).append(board)
    ordered = (sorted(group, key=lambda b: (b.place.batch_size, -b.place.share)) for group in found.values())
    return [[case for board in group for case in (board, *board.rounds)] for group in ordered]


def worst_finding(cases: Sequence[Board], label: str, own: Sequence[Record]) -> Finding:
    """What one question says of a defense in its worst case, which is chosen like the worst attack.

    The case with the largest harm on the choosing half is reported on the other half. Only cases in which the control
    breaks show anything, so only these are candidates. A defense held only if it held in all of them and no attack was
    silent in any: otherwise the worst case in which it did not hold is reported. So the chance of a false alarm is at
    most the sum of those of the cases.
    """
    candidates = [case for case in cases if case.valid] or list(cases[:1])
    rows = [(row.chosen, case) for case in candidates for row in case.rows if row.defense == label]
    if not rows:
        found = [finding_of(case, label, own) for case in candidates]
        return next((finding for finding in found if finding.verdict != NOT_ASKED), found[0])
    ordered = [case for _, case in sorted(rows, key=lambda item: item[0], reverse=True)]
    findings = [finding_of(case, label, own) for case in ordered]
    finding = next((found for found in findings if found.verdict == BROKEN), findings[0])
    if finding.verdict != HELD:
        return finding
    for case in candidates:
        silent = _silence(case, label, [record for record in own if place_of(record) == case.place])
        if silent is not None and silent[0] == NOT_SHOWN:
            return finding._replace(verdict=silent[0], why=silent[1])
    return finding


def primary_of(board: Board) -> Column:
    """The column that tells the harm."""
    key = ranking_of(board.place.goal).primary
    return next(column for column in board.table.columns if column.key == key)


def _score(column: Column, cell: Cell, over: str) -> str:
    shown = " ".join(filter(None, [Cell(cell.value).main(column), column.unit, cell.interval(column)]))
    return f"{column.title} {shown}" + (f" over {over}" if over else "")


def _without_score(asked: Sequence[Record]) -> tuple[str, str]:
    """The verdict where a defense has no score: not asked if there was no attack at all."""
    reasons = [record.reason for record in asked if record.status != "skipped"]
    if reasons:
        return NOT_SHOWN, reasons[0] or "no attack gave a score"
    return NOT_ASKED, asked[0].reason if asked else ""


def _verdict(board: Board, row: Row, asked: Sequence[Record]) -> tuple[str, str]:
    """Whether the defense held; if that is not known, the reason."""
    ranking = ranking_of(board.place.goal)
    if isinstance(ranking, ListedRanking):
        verdict = ranking.listed_verdict(row.cells, valid=board.valid)
        return (_silence(board, _label(row), asked) or verdict) if verdict[0] == HELD else verdict
    if not board.valid:
        return NOT_SHOWN, CONTROL_HOLDS
    if _leaks(board, row):
        return BROKEN, ""
    silent = _silence(board, _label(row), asked)
    if silent is not None:
        return silent
    if not board.utility.passes(str(row.cells["defense"].value)):
        return NOT_SHOWN, "its model does not train: there is little to leak"
    return HELD, ""


def _label(row: Row) -> str:
    return str(row.cells["defense"].value)


def _silence(board: Board, label: str, asked: Sequence[Record]) -> tuple[str, str] | None:
    """The verdict if attacks gave no answer, which is not a win; None if all answered."""
    attacks = [record for record in asked if record.cell.attack.name != PRIOR]  # a guess is not an attack
    if not any(record.status == "ok" for record in attacks):
        return _without_score(attacks)
    missing = unanswered(asked, [cell for cell in board.waiting if cell.training.defense.label == label])
    return (NOT_SHOWN, missing) if missing else None


def _leaks(board: Board, row: Row) -> bool:
    """Whether the worst attack did better than guessing, by the rule of its goal."""
    found = next(found for found in board.rows if found.defense == row.cells["defense"].value)
    return ranking_of(board.place.goal).leaks(found)
