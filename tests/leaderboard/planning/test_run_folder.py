"""A run's folder: views that hold what a threat sees, and names in records that lead nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from leakboard.core.errors import UserError
from leakboard.datasets.digits import Digits
from leakboard.federation.view import View
from leakboard.leaderboard.api.run import open_run
from leakboard.leaderboard.cells.answer import load_answer
from leakboard.leaderboard.goals.reconstruction import Reconstruction
from leakboard.leaderboard.page.images import originals, reconstructions
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.records.record import Record
from tests.leaderboard.runs import call, records
from tests.leaderboard.synthetic import reconstruction


@pytest.mark.parametrize(
    ("threat", "parties", "holders"),
    [
        ("server", ("server",), set()),
        ("client", ("client:1",), {"client:1"}),
        ("server+clients:2", ("server", "client:1", "client:2"), {"client:1", "client:2"}),
    ],
)
def test_a_view_is_that_of_its_threat(tiny_run: Path, threat: str, parties: tuple[str, ...], holders: set[str]) -> None:
    view = open_run(tiny_run).view(threat)

    assert isinstance(view, View)
    assert view.parties == parties
    assert set(view.secrets) == set(parties)
    assert set(view.holdings) == holders
    assert view.public.defense == "fedsgd"
    messages = [message for observation in view.observations for message in observation.messages]
    assert messages
    assert all({message.sender, message.receiver} & set(parties) for message in messages)
    assert all(set(observation.states) <= set(parties) for observation in view.observations)


def test_a_client_holds_its_own_shard(tiny_run: Path) -> None:
    pool = Digits().read()
    shard = splits_of(open_run(tiny_run).jobs[0], pool).shards[1]
    assert torch.equal(open_run(tiny_run).view("client").holdings["client:1"].images, pool.take(shard).images)


def test_a_view_of_something_else_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'fedsgd'"):
        open_run(tiny_run).view("server", defense="fedsdg")
    with pytest.raises(UserError, match="seed 7"):
        open_run(tiny_run).view("server", seed=7)
    with pytest.raises(UserError, match="There is no threat"):
        open_run(tiny_run).view("sever")
    with pytest.raises(UserError, match="There is no run"):
        open_run(tmp_path).view("server")


def test_a_run_opens_with_its_records_in_order(tiny_run: Path) -> None:
    opened = open_run(tiny_run)
    assert [record.key for record in opened.records] == [job.key for job in opened.jobs]
    assert opened.notes == ()
    assert all(opened.opened.job_of(record) == job for record, job in zip(opened.records, opened.jobs, strict=True))


def save_images(path: Path, images: torch.Tensor) -> None:
    notes = {"flags": "[]", "diagnostics": "{}"}
    cost = json.dumps({"wall_seconds": 1, "cpu_seconds": 1, "peak_memory_mib": 1})
    save_file({"images/0": images}, str(path), {**notes, "cost": cost})


@pytest.mark.parametrize(
    "name", ["../../secret.safetensors", "{outside}", "..", "/", "sub/../../../secret.safetensors"]
)
def test_a_record_cannot_lead_out_of_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "records"
    folder.mkdir(parents=True)
    outside = tmp_path / "secret.safetensors"
    save_images(outside, torch.ones(2, 1, 32, 32))
    record = reconstruction().model_copy(update={"reconstructions": name.format(outside=outside)})
    assert reconstructions(record, folder, None) is None
    save_images(folder / "secret.safetensors", torch.zeros(2, 1, 32, 32))  # what it may find: a file beside it
    found = reconstructions(record, folder, None)
    assert found is None or float(found.max()) == 0


@pytest.mark.parametrize("content", [b"", b"noise" * 100, b"\xff" * 64])
def test_a_broken_image_file_costs_the_pictures_only(content: bytes, tiny_run: Path, tmp_path: Path) -> None:
    record = next(r for r in records(tiny_run).values() if r.reconstructions)
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "record.json").write_text(record.to_json())
    (folder / record.reconstructions).write_bytes(content)

    outcome = call("show", folder / "record.json")

    assert outcome.code == 0
    assert "psnr" in outcome.out
    assert "reconstruction 0" not in outcome.out


@pytest.mark.parametrize("indices", [[10**6, 0], [-1, 0]])
def test_targets_that_are_not_in_the_data_have_no_originals(indices: list[int], tiny_run: Path) -> None:
    record = next(r for r in records(tiny_run).values() if r.reconstructions)
    other = Record.model_validate({**record.model_dump(mode="json"), "target_indices": indices})
    assert originals(record, None) is not None
    assert originals(other, None) is None


def test_originals_and_reconstructions_are_those_of_the_record(tiny_run: Path) -> None:
    record = next(r for r in records(tiny_run).values() if r.cell.attack.name == "inverting-gradients")

    truth = originals(record, None)
    rebuilt = reconstructions(record, tiny_run / "records", truth)

    assert truth is not None
    assert rebuilt is not None
    assert torch.equal(truth, Digits().read().take(torch.tensor(record.target_indices)).images)
    answer, _ = load_answer(Reconstruction(), tiny_run / "records" / record.reconstructions)
    assert rebuilt.shape == truth.shape
    error = (rebuilt.clamp(0, 1) - truth).square().mean((1, 2, 3))
    assert (10 * torch.log10(1 / error)).tolist() == pytest.approx(record.scores["psnr"].per_item, abs=1e-3)
    assert record.cost is not None
    assert set(answer.flags) <= set(record.flags)  # the harness adds remarks of its own
