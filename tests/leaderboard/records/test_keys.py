"""What decides a result is in its key."""

from __future__ import annotations

from pathlib import Path

import torch

from leakboard.datasets.base import ImagePool
from leakboard.federation.models.module import Module
from leakboard.leaderboard.cli.main import main
from leakboard.leaderboard.planning.jobs import Job, Locations
from leakboard.leaderboard.planning.plan import Options, make_plan
from leakboard.leaderboard.records.record import PluginSpec, TrainingSpec
from leakboard.suites.schema import load_suite

NETWORKS = """
from torch import nn

class A(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

class B(A):
    pass
"""


def test_two_classes_of_one_file_are_two_models(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(NETWORKS)
    first, second = (Module(target=f"{file}:{name}").pinned().identity() for name in ("A", "B"))
    assert first != second


def test_test_sets_and_groups_are_part_of_the_data_s_structure() -> None:
    pixels = torch.zeros(4, 1, 16, 16, dtype=torch.uint8)
    labels, none = torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=torch.bool)
    plain = ImagePool(pixels, labels, none, ("a", "b"))
    tested = ImagePool(pixels, labels, torch.tensor([False, False, True, True]), ("a", "b"))
    grouped = ImagePool(pixels, labels, none, ("a", "b"), torch.arange(4))
    assert plain.digest() == tested.digest() == grouped.digest()
    assert len({plain.structure(), tested.structure(), grouped.structure()}) == 3


def test_an_attack_that_runs_another_depends_on_its_code(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\ndatasets: [digits]\nmodel: {name: mlp, params: {hidden: [4]}}\n"
        "training: {rounds: 2, batch_size: 8, clients: 3}\nobserve: {targets: 2}\ndefenses: [fedsgd]\nattacks:\n"
        "- {name: strip-membership, label: a, threats: [client], params: {attack: lira}}\n"
        "- {name: strip-membership, label: b, threats: [client], params: {attack: loss-threshold}}\n"
    )
    plan = make_plan(load_suite(str(file)), Options(tmp_path / "run"))
    first, second = (set(cell.ingredients["answer"]["modules"]) for cell in plan.cells)
    assert any("lira" in module for module in first - second)
    assert any("loss_threshold" in module for module in second - first)


def test_what_must_not_be_guessed_depends_on_the_data() -> None:
    plugin = PluginSpec(label="x", name="x", parameters={})
    spec = TrainingSpec(dataset=plugin, model=plugin, defense=plugin, training={}, observe={}, seed=0)
    jobs = [
        Job(run="", training=spec, training_key="", data_digest=digest, locations=Locations()) for digest in ("a", "b")
    ]
    assert jobs[0].private_seed != jobs[1].private_seed


def test_a_model_that_a_defense_cannot_perturb_is_one_sentence(tmp_path: Path, capsys: object) -> None:
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "name: s\ndatasets: [digits]\nmodel: {name: resnet8, params: {norm: batch}}\n"
        "training: {rounds: 2, batch_size: 8, clients: 3}\nobserve: {targets: 2}\ndefenses: [fedsgd, mp]\n"
        "attacks: [{name: prior, threats: [server]}]\n"
    )
    status = main(["run", "--suite", str(suite), "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err  # type: ignore[attr-defined]
    assert status == 2
    assert said.count("\n") == 1
    assert "BatchNorm2d" in said
    assert not (tmp_path / "run").exists()
