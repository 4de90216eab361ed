"""`--plugin FILE` works for every kind of plugin."""

from __future__ import annotations

from pathlib import Path

from tests.leaderboard.runs import call, records, write_suite

DATASET = '''
from typing import ClassVar
import torch
import leakboard as lb
from leakboard.datasets.base import ImagePool

class Stripes(lb.Dataset):
    """Stripes, across or down."""
    name: ClassVar[str] = "stripes"
    mean: ClassVar[tuple[float, ...]] = (0.5,)
    std: ClassVar[tuple[float, ...]] = (0.5,)

    def read(self):
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(200) % 2
        pixels = torch.randint(0, 100, (200, 1, 8, 8), generator=generator).to(torch.uint8)
        pixels[labels == 0, :, ::2, :] += 100
        pixels[labels == 1, :, :, ::2] += 100
        return ImagePool(pixels, labels, torch.zeros(200, dtype=torch.bool), ("across", "down"))
'''
MODEL = '''
from typing import ClassVar
import math
from torch import nn
import leakboard as lb

class Line(lb.Model):
    """One layer."""
    name: ClassVar[str] = "line"

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
'''
METRIC = '''
from typing import ClassVar
import leakboard as lb

class Worst(lb.ReconstructionMetric):
    """The largest error of any pixel."""
    name: ClassVar[str] = "worst_pixel"
    higher_is_better: ClassVar[bool] = False

    def score(self, truth):
        return lb.Score(0.25)
'''


def test_a_run_with_a_data_set_a_model_and_a_metric_of_ones_own(tmp_path: Path) -> None:
    for name, text in (("stripes", DATASET), ("line", MODEL), ("worst", METRIC)):
        (tmp_path / f"{name}.py").write_text(text)
    attacks = [{"name": "prior", "threats": ["server"]}]
    suite = write_suite(tmp_path, datasets=["stripes"], model="line", attacks=attacks)
    plugins = [tmp_path / f"{name}.py" for name in ("stripes", "line", "worst")]

    outcome = call("run", "--suite", suite, "--out", tmp_path / "run", "--workers", 1, "--plugin", *plugins)

    assert outcome.code == 0, outcome.err
    for record in records(tmp_path / "run").values():
        assert record.cell.training.dataset.name == "stripes"
        assert record.cell.training.model.name == "line"
        assert record.scores["worst_pixel"].value == 0.25
