"""Over all metrics: what they must declare, and that their scores keep to it."""

from __future__ import annotations

import importlib
import inspect
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leakboard import metrics
from leakboard.core.plugins import is_plugin
from leakboard.core.registry import ROOT, check_unique, describe_module, importing_us, plugin_files
from leakboard.metrics.base import (
    ExtractionMetric,
    ExtractionTruth,
    MembershipMetric,
    MembershipTruth,
    Metric,
    ReconstructionMetric,
    Score,
)
from tests.metrics.helpers import images, truth

FILES = [path for path in plugin_files() if path.parent == ROOT / "metrics"]
MODULES = [importlib.import_module(f"leakboard.metrics.{path.stem}") for path in FILES]
CLASSES: list[type[Metric]] = [
    value
    for module in MODULES
    for value in vars(module).values()
    if is_plugin(value) and value.__module__ == module.__name__
]
OURS = {
    *("psnr", "mse", "test_mse", "feat_mse", "ssim", "lpips", "identified", "identified_lpips"),
    *("asr", "auc", "tpr@1%fpr", "tpr@0.1%fpr", "asr_best_threshold", "accuracy"),
    *("fidelity", "stolen_accuracy", "canonical_distance"),
}


def test_all_metrics_are_found_and_their_names_are_unique() -> None:
    entries = [entry for module in MODULES for entry in describe_module(module, module.__name__)]
    assert {entry["name"] for entry in check_unique(entries)} >= OURS


@pytest.mark.parametrize("metric", CLASSES, ids=lambda c: c.name)
def test_a_metric_declares_what_it_is(metric: type[Metric]) -> None:
    assert metric.kind == "metric"
    assert metric.goal in ("reconstruction", "membership", "extraction", "audit", "training")
    assert isinstance(metric.higher_is_better, bool)
    assert isinstance(metric.unit, str)
    assert metric.version >= 1
    low, high = metric.bounds
    assert low is None or high is None or low < high
    assert metric.summary().endswith((".", ")")) or metric.summary()
    assert metric.citation or "Definition" in (inspect.getdoc(metric) or "")
    metric()  # every parameter has a default


@pytest.mark.parametrize("metric", CLASSES, ids=lambda c: c.name)
def test_its_module_has_a_pure_function_with_an_example(metric: type[Metric]) -> None:
    module = sys.modules[metric.__module__]
    functions = [
        value for _, value in inspect.getmembers(module, inspect.isfunction) if value.__module__ == module.__name__
    ]
    documented = [doc for doc in map(inspect.getdoc, functions) if doc and ">>>" in doc]
    assert any("Shapes:" in doc and ("Definition:" in doc or "Citation:" in doc) for doc in documented)


def check(score: Score, metric: Metric) -> None:
    if score.value is None:
        assert score.reason
        return
    assert not score.reason
    low, high = metric.bounds
    for value in (score.value, *score.per_item):
        assert math.isfinite(value)
        assert low is None or value >= low
        assert high is None or value <= high
    if score.per_item:
        assert score.value == pytest.approx(sum(score.per_item) / len(score.per_item))


@pytest.mark.parametrize("metric", [c for c in CLASSES if issubclass(c, ReconstructionMetric)], ids=lambda c: c.name)
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 100.0])
def test_reconstruction_scores_keep_to_the_bounds(metric: type[ReconstructionMetric], scale: float) -> None:
    original = images(4)
    reconstruction = original + scale * torch.randn(original.shape)
    check(metric().score(truth(reconstruction, original, images(9, seed=2))), metric())


@pytest.mark.parametrize("metric", [c for c in CLASSES if issubclass(c, MembershipMetric)], ids=lambda c: c.name)
@pytest.mark.parametrize("shift", [-5.0, 0.0, 0.5, 5.0])
def test_membership_scores_keep_to_the_bounds(metric: type[MembershipMetric], shift: float) -> None:
    members = torch.arange(2400) % 2 == 0
    scores = torch.randn(2400) + shift * members
    score = metric().score(MembershipTruth(scores, scores > shift / 2, members))
    assert score.value is not None
    check(score, metric())


def theft(noise: float) -> ExtractionTruth:
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    true = {name: torch.randn(value.shape) for name, value in network.state_dict().items()}
    stolen = {name: value + noise * torch.randn(value.shape) for name, value in true.items()}
    records = torch.randn(200, 6)
    said = [torch.func.functional_call(network, model, (records,)) for model in (stolen, true)]
    return ExtractionTruth(stolen, true, network, said[0], said[1], said[1].argmax(1))


@pytest.mark.parametrize("metric", [c for c in CLASSES if issubclass(c, ExtractionMetric)], ids=lambda c: c.name)
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 100.0])
def test_extraction_scores_keep_to_the_bounds(metric: type[ExtractionMetric], noise: float) -> None:
    score = metric().score(theft(noise))
    assert score.value is not None
    check(score, metric())


def test_more_harm_lies_in_the_direction_that_is_declared() -> None:
    original, decoys = images(8), images(50, seed=2)
    near, far = (truth(original + s * torch.randn(original.shape), original, decoys) for s in (0.05, 5.0))
    compared = set()
    for metric in [c for c in CLASSES if issubclass(c, ReconstructionMetric)]:
        better, worse = metric().score(near).value, metric().score(far).value
        if better is not None and worse is not None:
            assert (better > worse) == metric.higher_is_better, metric.name
            compared.add(metric.name)
    assert {"psnr", "ssim", "mse", "identified"} <= compared  # those that need no weights
    good, bad = theft(0.01), theft(10.0)
    for thief in [c for c in CLASSES if issubclass(c, ExtractionMetric)]:
        better, worse = thief().score(good).value, thief().score(bad).value
        assert better is not None
        assert worse is not None
        assert (better > worse) == thief.higher_is_better, thief.name


def test_the_package_itself_is_light() -> None:
    code = "import sys; from leakboard import metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=importing_us(), check=False).returncode == 0
    assert Path(str(metrics.__file__)).resolve().parent == ROOT / "metrics"
