"""`observe.probe_batch` as an axis, through whole tiny runs: one cell for each observed round and batch size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from leakboard.attacks.base import ReconstructionTask
from leakboard.datasets.loading import load_pool
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cells.question import make_question
from leakboard.leaderboard.planning.jobs import Job
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.records.record import CellSpec, Record
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.suites.schema import load_suite
from tests.leaderboard.runs import call, records, write_suite

SIZES = (1, 2, 4)
TARGETS = 8
CHANGES: dict[str, Any] = {
    "defenses": ["fedsgd", "mp-dp"],
    "attacks": [
        {"name": "prior", "threats": ["server"]},
        {"name": "inverting-gradients", "threats": ["server"], "params": {"iterations": 3}, "known_labels": True},
        {"name": "phi-inversion", "threats": ["server"], "params": {"iterations": 3}},
        {"name": "loss-threshold", "threats": ["client"]},
        {"name": "received-model", "threats": ["client"]},
    ],
}


def finished(folder: Path, probe_batch: Any) -> Path:
    observe = {"rounds": ["first", "last"], "targets": TARGETS, "probe_batch": probe_batch}
    suite = write_suite(folder, observe=observe, **CHANGES)
    outcome = call("run", "--suite", suite, "--out", folder / "run", "--workers", 2, "--keep-transcripts")
    assert outcome.code == 0, outcome.err
    return folder / "run"


@pytest.fixture(scope="module")
def one_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the suite the sizes are in no order: the smallest is the first all the same."""
    return finished(tmp_path_factory.mktemp("several"), [4, 1, 2])


def jobs_of(run: Path) -> tuple[Job, ...]:
    return make_plan(load_suite(str(run.parent / "suite.yaml")), Options(run=run)).cells


def test_reconstructions_have_a_cell_for_each_round_and_batch_size_and_other_goals_do_not(several: Path) -> None:
    found = records(several)
    images = [r for r in found.values() if r.cell.goal == "reconstruction"]
    asked = {(r.cell.training.defense.label, r.cell.attack.label, r.cell.moment) for r in images}
    assert len(asked) == 2 * 3 * 2
    for place in asked:
        mine = [r for r in images if (r.cell.training.defense.label, r.cell.attack.label, r.cell.moment) == place]
        assert sorted(r.cell.batch_size for r in mine) == list(SIZES)
    others = [r for r in found.values() if r.cell.goal != "reconstruction"]
    assert {r.cell.probe_batch for r in others} == {None}
    assert sum(r.cell.goal == "extraction" for r in others) == 2 * 2
    assert sum(r.cell.goal == "membership" for r in others) == 2


def test_every_size_has_as_many_batches_and_no_record_is_in_two(several: Path) -> None:
    seen: dict[int, list[int]] = {}
    for record in records(several).values():
        if record.cell.goal == "reconstruction" and record.status == "ok":
            mine = seen.setdefault(record.cell.batch_size, record.target_indices)
            assert mine == record.target_indices
            assert len(record.scores["psnr"].per_item) == TARGETS * record.cell.batch_size
    every = [index for indices in seen.values() for index in indices]
    assert len(set(every)) == len(every) == TARGETS * sum(SIZES)


def test_more_batch_sizes_change_nothing_of_the_smallest(one_size: Path, several: Path) -> None:
    """The same streams, seeds and views: every score, of every goal, bit by bit."""
    alone, beside = records(one_size), records(several)
    assert set(alone) < set(beside)
    for name, record in alone.items():
        other = beside[name]
        assert (record.status, record.scores) == (other.status, other.scores), name
        assert record.target_indices == other.target_indices
        assert (record.member_scores, record.flags) == (other.member_scores, other.flags)
        assert record.diagnostics == other.diagnostics


def test_a_cell_sees_the_probes_of_its_own_size_alone(several: Path) -> None:
    for job in jobs_of(several):
        assert job.cell is not None
        if job.cell.attack.label not in ("phi-inversion", "loss-threshold"):
            continue
        question = make_question(job) if job.training.defense.label == "mp-dp" else None
        if question is None:
            continue
        probes = [o.context for o in question.knowledge.view.of_kind("probe")]
        size = job.cell.batch_size if job.cell.goal == "reconstruction" else 1
        assert {o.batch_size for o in probes} == {size}
        assert len(probes) == 2 * TARGETS


def test_labels_and_problems_belong_to_the_size(several: Path) -> None:
    (job,) = [
        job
        for job in jobs_of(several)
        if job.cell is not None
        and (job.cell.attack.label, job.cell.batch_size, job.cell.moment) == ("inverting-gradients", 4, "last")
        and job.training.defense.label == "fedsgd"
    ]
    pool = load_pool(job.make_dataset())
    shard = splits_of(job, pool).shards[0]
    places = torch.arange(TARGETS * (1 + 2), TARGETS * (1 + 2 + 4))

    question = make_question(job)

    assert isinstance(question.task, ReconstructionTask)
    assert question.task.known_labels is not None
    assert torch.equal(torch.cat(question.task.known_labels), pool.labels[shard[places]])
    problems = question.task.problems(question.knowledge)
    assert [problem.gradient.records for problem in problems] == [4] * TARGETS == list(question.task.sizes)


def test_probe_numbers_differ_within_a_round_and_tell_their_size(several: Path) -> None:
    for round_index in (0, 3):
        probes = [o.context for o in open_run(several).view("server").of_kind("probe", round_index)]
        assert [o.probe for o in probes] == list(range(TARGETS * len(SIZES)))
        assert [o.batch_size for o in probes] == [size for size in SIZES for _ in range(TARGETS)]


def test_the_key_and_the_file_name_tell_the_size(one_size: Path, several: Path) -> None:
    jobs = [job for job in jobs_of(several) if job.cell is not None and job.cell.goal == "reconstruction"]
    assert len({job.key for job in jobs}) == len({job.answer_key for job in jobs}) == len(jobs)
    for job in jobs:
        assert job.cell is not None
        assert (f"--b{job.cell.batch_size}--" in job.record_file.name) == (job.cell.batch_size > 1)
    assert not any("--b" in name for name in records(one_size))


def test_the_estimate_counts_the_problems_of_all_sizes(one_size: Path, several: Path) -> None:
    from leakboard.leaderboard.planning.estimate import estimate

    plan = make_plan(load_suite(str(several.parent / "suite.yaml")), Options(run=several))
    found = estimate(plan)
    assert all(job.key in found for job in plan.cells)
    single = make_plan(load_suite(str(one_size.parent / "suite.yaml")), Options(run=one_size))
    assert len(plan.cells) - len(single.cells) == 2 * 3 * 2 * 2


# --- what is shown ------------------------------------------------------------------------------


def test_every_table_card_and_picture_names_its_batch_size(several: Path) -> None:
    html = (several / "report" / "index.html").read_text(encoding="utf-8")
    for size in SIZES:
        titles = re.findall(rf"<h2>(Reconstruction, digits, threat server, \w+ round, batch size {size})</h2>", html)
        assert len(titles) == 1
        assert f"· batch size {size}" in html
        assert f"Batch size {size}: {size} record{'s' if size > 1 else ''} per gradient; 3 clients." in html
    assert re.search(r"server, \w+ round, batch size 1</span>", html)  # the cards show the smallest
    assert not re.search(r"server, \w+ round, batch size 4</span>", html)
    assert "Privacy against accuracy: reconstruction, digits, batch size 1" in html
    assert {f"pictures-digits-server-first{end}.png" for end in ("", "-b2", "-b4")} <= {
        path.name for path in (several / "report" / "figures").glob("*.png")
    }


def test_the_list_and_show_name_the_batch_size(several: Path) -> None:
    (table,) = [t for t in cell_tables(list(records(several).values())) if t.title.endswith("reconstruction")]
    assert {row.cells["batch"].value for row in table.rows} == set(SIZES)
    path = next((several / "records").glob("*--fedsgd--prior--server--first--b4--*.json"))
    assert "4 records per gradient" in call("show", path).out


# --- older records ------------------------------------------------------------------------------


def older(observe: dict[str, Any], run: Path) -> CellSpec:
    """A cell as it was written before there was a `probe_batch` in it."""
    record = next(r for r in records(run).values() if r.cell.goal == "reconstruction")
    given = json.loads(record.to_json())
    del given["cell"]["probe_batch"]
    given["cell"]["training"]["observe"] = observe
    return Record.model_validate(given).cell


def test_a_record_without_the_field_means_what_it_meant(one_size: Path) -> None:
    assert older({"rounds": ["first"], "probe_batch": 1, "targets": 8}, one_size).batch_size == 1
    assert older({"rounds": ["first"], "probe_batch": 4, "targets": 8}, one_size).batch_size == 4
    assert older({}, one_size).batch_size == 1
    assert older({"probe_batch": "many"}, one_size).batch_size == 1
