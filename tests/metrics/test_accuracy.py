from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy

from leakboard.metrics.accuracy import Accuracy, accuracy
from leakboard.metrics.base import TrainingTruth


def test_accuracy_against_scikit_learn_and_torchmetrics() -> None:
    logits, labels = torch.randn(200, 5), torch.randint(0, 5, (200,))
    ours = accuracy(logits, labels)
    assert ours == pytest.approx(accuracy_score(labels, logits.argmax(1)))
    assert ours == pytest.approx(float(multiclass_accuracy(logits, labels, num_classes=5, average="micro")))
    assert Accuracy().score(TrainingTruth(logits, labels)).value == ours


def test_a_diverged_model_does_not_score_by_chance() -> None:
    logits = torch.full((4, 2), math.nan)
    assert accuracy(logits, torch.zeros(4, dtype=torch.int64)) == 0.0


def test_one_class_and_no_records() -> None:
    assert accuracy(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64)) == 1.0
    empty = Accuracy().score(TrainingTruth(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
    assert empty.value is None
    assert empty.reason
    with pytest.raises(ValueError, match="N at least 1"):
        accuracy(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
