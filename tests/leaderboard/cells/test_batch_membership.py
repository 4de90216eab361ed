"""`about: batch`: was a record in the victim's batch of an observed round? Another question, with another truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.datasets.loading import load_pool
from leakboard.federation.settings import VICTIM
from leakboard.federation.task import task_of
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.publishing.verify import _suite_of
from leakboard.leaderboard.ranking.leaderboards import ranking_tables
from leakboard.leaderboard.records.record import Record
from leakboard.suites.schema import load_suite
from tests.leaderboard.planning.test_known_members import SPY
from tests.leaderboard.runs import call, write_suite
from tests.leaderboard.synthetic import membership

TOLD = SPY.replace(
    'told = {"members"', 'told = {"round": float(-1 if task.round_index is None else task.round_index), "members"'
)
BATCH = 16


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str | None], Record]]:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "spy.py").write_text(TOLD)
    suite = write_suite(
        folder,
        training={"rounds": 5, "batch_size": BATCH, "clients": 3},
        attacks=[
            {"name": "loss-threshold", "threats": ["server"]},
            {"name": "loss-threshold", "label": "in-batch", "threats": ["server"], "about": "batch"},
            {"name": "spy", "threats": ["server"], "about": "batch"},
            {"name": "spy", "label": "told", "threats": ["server"], "about": "batch", "known_members": 0.5},
        ],
    )
    outcome = call("run", "--suite", suite, "--out", folder / "run", "--plugin", folder / "spy.py", "--workers", 2)
    assert outcome.code == 0, outcome.err
    records = open_run(folder / "run").records
    assert {record.status for record in records} == {"ok"}
    return folder / "run", {(r.cell.attack.label, r.cell.moment): r for r in records}


Found = tuple[Path, dict[tuple[str, str | None], Record]]


def test_there_is_one_cell_a_round_and_the_attack_knows_which(found: Found) -> None:
    _, records = found
    assert set(records) == {
        ("loss-threshold", None),
        *((label, moment) for label in ("in-batch", "spy", "told") for moment in ("first", "last")),
    }
    assert [records["spy", moment].diagnostics["round"] for moment in ("first", "last")] == [0, 4]
    assert records["in-batch", "first"].cell.about == "batch"
    assert records["loss-threshold", None].cell.about == "training"


@pytest.mark.parametrize(("moment", "index"), [("first", 0), ("last", 4)])
def test_the_members_are_the_records_behind_the_victim_s_message(found: Found, moment: str, index: int) -> None:
    """Their gradient is what the victim sent, to rounding; the truth was noted, here it is computed."""
    folder, records = found
    record = records["in-batch", moment]
    job = open_run(folder).jobs[0]
    pool = load_pool(job.make_dataset())
    splits = splits_of(job, pool)
    members = torch.tensor([i for i, m in zip(record.target_indices, record.members, strict=True) if m])
    others = [i for i, m in zip(record.target_indices, record.members, strict=True) if not m]
    assert len(members) == BATCH
    assert set(members.tolist()) <= set(splits.shards[0].tolist())
    assert set(others) == set(splits.non_members.tolist())
    assert record.members != sorted(record.members, reverse=True)  # shuffled

    view = open_run(folder).view("server")
    (observation,) = view.of_kind("train", index)
    sent = next(m.payload["gradient"] for m in observation.messages if m.sender == VICTIM)
    model = next(m.payload["model"] for m in observation.messages if m.kind == "model")
    data = pool.take(members)
    own, _ = task_of(view.public).gradient(model, data.images, data.labels)
    assert all(torch.allclose(own[name], sent[name], atol=1e-5) for name in own)


def test_half_of_a_batch_can_be_told(found: Found) -> None:
    _, records = found
    for moment in ("first", "last"):
        whole, half = records["spy", moment], records["told", moment]
        assert half.diagnostics["members"] == BATCH / 2
        assert half.diagnostics["asked"] == 0
        assert sum(half.members) == BATCH / 2
        assert set(half.target_indices) < set(whole.target_indices)


def test_it_has_a_table_of_its_own(found: Found) -> None:
    _, *titles = [table.title for table in open_run(found[0]).tables()]  # the first is the scoreboard
    assert len(titles) == 2
    assert titles[0] == "Membership, digits, threat server"
    assert titles[1].startswith("Membership in the batch, digits, threat server, ")


def test_verifying_such_a_record_asks_the_same_question(found: Found, tmp_path: Path) -> None:
    record = found[1]["in-batch", "last"]
    plan = make_plan(_suite_of(record, ""), Options(run=tmp_path))
    assert record.cell in [job.cell for job in plan.cells]


def in_batch(attack: str, moment: str, scores: list[float], first_target: int) -> Record:
    """Ten of a batch and ten non-members (the same in every round)."""
    made = membership("fedsgd", attack, scores, [True] * 10 + [False] * 10)
    cell = made.cell.model_copy(update={"about": "batch", "moment": moment})
    targets = [*range(first_target, first_target + 10), *range(10)]
    return made.model_copy(update={"cell": cell, "key": cell.slug, "target_indices": targets})


def test_rounds_and_questions_are_never_mixed() -> None:
    """Each round has other members: attacks are compared in one round, the one in which the control breaks most."""
    perfect, useless = [1.0] * 10 + [0.0] * 10, [0.0] * 20
    whole = membership("fedsgd", "shadow", [0.5, 0.0] * 10, [True, False] * 10)
    records = [
        whole,
        in_batch("a", "first", useless, 100),
        in_batch("b", "first", useless, 100),
        in_batch("a", "last", perfect, 200),
        in_batch("b", "last", useless, 200),
    ]
    plain, batch = ranking_tables(records, "fedsgd", 0.9)
    assert plain.rows[0].cells["attack"].value == "shadow"
    assert batch.title.endswith("last round")
    assert batch.rows[0].cells["attack"].value == "a"
    assert batch.rows[0].cells["auc"].value == 1.0


def test_only_membership_attacks_can_be_asked_about_a_batch(tmp_path: Path) -> None:
    attacks = [{"name": "prior", "threats": ["server"], "about": "batch"}]
    with pytest.raises(UserError, match="'prior' has no 'about: batch': its goal is reconstruction"):
        load_suite(str(write_suite(tmp_path, attacks=attacks)))
    attacks = [{"name": "loss-threshold", "threats": ["server"], "about": "batch"}]
    with pytest.raises(UserError, match=r"observe.rounds must not be empty"):
        load_suite(str(write_suite(tmp_path, attacks=attacks, observe={"rounds": []})))
