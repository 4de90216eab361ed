"""What a cell tells a membership attack is told in full, and never evaluated."""

from __future__ import annotations

from pathlib import Path

from tests.leaderboard.runs import call, records, write_suite

SPY = """
from typing import ClassVar

import torch

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask


class Spy(MembershipAttack):
    '''Says what it was told: how many members and others, and whether any of them is asked about.'''

    name: ClassVar[str] = "spy"
    citation: ClassVar[str] = "a test"

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        scores = torch.zeros(len(task.candidates))
        told = {"members": 0.0, "others": 0.0, "asked": 0.0}
        if task.known is not None:
            asked = {image.numpy().tobytes() for image in task.candidates.images}
            told["members"] = float(task.known.members.sum())
            told["others"] = float((~task.known.members).sum())
            told["asked"] = float(sum(image.numpy().tobytes() in asked for image in task.known.records.images))
        return MembershipAnswer(scores, scores > 0.5, diagnostics=told)
"""


def test_half_of_the_members_are_told_and_the_other_half_is_asked(tmp_path: Path) -> None:
    (tmp_path / "spy.py").write_text(SPY)
    suite = write_suite(
        tmp_path,
        attacks=[
            {"name": "loss-threshold", "threats": ["client"]},
            {"name": "known-members", "threats": ["client"], "known_members": 0.5, "params": {"epochs": 2}},
            {"name": "known-members", "label": "untold", "threats": ["client"]},
            {"name": "spy", "threats": ["client"], "known_members": 0.5},
            {"name": "spy", "label": "spy-untold", "threats": ["client"]},
        ],
    )
    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--plugin", tmp_path / "spy.py")
    assert outcome.code == 0, outcome.err
    found = {record.cell.attack.label: record for record in records(tmp_path / "run").values()}

    everyone, half = found["loss-threshold"], found["known-members"]
    assert (half.status, found["untold"].status) == ("ok", "skipped")
    assert "known_members" in found["untold"].reason
    assert set(half.target_indices) < set(everyone.target_indices)
    inside, outside = sum(everyone.members), len(everyone.members) - sum(everyone.members)
    assert sum(half.members) == inside - round(inside / 2)
    assert len(half.members) - sum(half.members) == outside - round(outside / 2)
    assert half.flags == [f"was told {round(inside / 2)} members and {round(outside / 2)} others"]
    assert half.cell.known_members == 0.5

    assert found["spy"].diagnostics == {"members": round(inside / 2), "others": round(outside / 2), "asked": 0}
    assert found["spy"].target_indices == half.target_indices
    assert found["spy-untold"].diagnostics == {"members": 0, "others": 0, "asked": 0}
    assert found["spy-untold"].target_indices == everyone.target_indices


def test_a_share_of_one_would_leave_nobody_to_ask(tmp_path: Path) -> None:
    attacks = [{"name": "known-members", "threats": ["client"], "known_members": 1.0}]
    outcome = call("run", "--suite", write_suite(tmp_path, attacks=attacks), "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "known_members" in outcome.err
