"""The worst case of a question: a defense held only if it held in every case in which the control breaks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leakboard.leaderboard.ranking import verdicts
from leakboard.leaderboard.ranking.goal_ranking import BROKEN, HELD, NOT_SHOWN
from leakboard.leaderboard.ranking.leaderboards import Board
from leakboard.leaderboard.ranking.verdicts import Finding, worst_finding


def case(name: str, harm: float, verdict: str, *, valid: bool = True) -> Board:
    """A board of one row, as far as `worst_finding` looks at it."""
    rows = (SimpleNamespace(defense="d", chosen=(harm,)),)
    return cast(Board, SimpleNamespace(place=name, rows=rows, valid=valid, verdict=verdict))


@pytest.fixture(autouse=True)
def known_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    def finding(board: Any, label: str, own: Any) -> Finding:
        return Finding(board.place, None, "", board.verdict)

    monkeypatch.setattr(verdicts, "finding_of", finding)
    monkeypatch.setattr(verdicts, "_silence", lambda board, label, asked: None)


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ((case("lucky", 2, HELD), case("broken", 1, BROKEN)), ("broken", BROKEN)),
        ((case("worse", 3, BROKEN), case("broken", 1, BROKEN)), ("worse", BROKEN)),
        ((case("worst", 2, HELD), case("other", 1, HELD)), ("worst", HELD)),
        ((case("worst", 2, NOT_SHOWN), case("broken", 1, BROKEN)), ("broken", BROKEN)),
        ((case("worst", 2, HELD), case("control holds", 3, BROKEN, valid=False)), ("worst", HELD)),
    ],
)
def test_a_defense_that_did_not_hold_in_one_case_did_not_hold(
    cases: tuple[Board, ...], expected: tuple[str, str]
) -> None:
    found = worst_finding(cases, "d", [])
    assert (cast(str, found.place), found.verdict) == expected
