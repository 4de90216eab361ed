"""Label accuracy: against scikit-learn and scipy, and only where the attack was not told the labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import accuracy_score
from torch import Tensor

from leakboard.attacks.base import ReconstructionAnswer, ReconstructionTask
from leakboard.federation.settings import Public
from leakboard.leaderboard.goals.question import AttackFailed, CellFacts
from leakboard.leaderboard.goals.questions.reconstruction import ReconstructionQuestion
from leakboard.leaderboard.goals.reconstruction import labels_to_score
from leakboard.metrics.label_accuracy import LabelAccuracy, label_hits
from tests.metrics.helpers import images, truth


@pytest.mark.parametrize("records_in_batch", [1, 2, 9])
def test_against_the_best_order_by_scipy_scored_by_scikit_learn(records_in_batch: int) -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(30):
        found, true = torch.randint(4, (2, records_in_batch), generator=random)
        wrong = (found[None, :] != true[:, None]).numpy().astype(float)
        rows, columns = linear_sum_assignment(wrong)
        theirs = accuracy_score(true.numpy()[rows], found.numpy()[columns])
        assert float(label_hits(found, true).mean()) == pytest.approx(theirs)
        common = Counter(found.tolist()) & Counter(true.tolist())
        assert int(label_hits(found, true).sum()) == common.total()


def test_the_score_is_over_batches_and_says_why_there_is_none() -> None:
    picture = images(4)
    given = truth(picture, picture)
    assert LabelAccuracy().score(given).reason == "the attack returned no labels"
    true = torch.tensor([1, 2]), torch.tensor([3, 3])
    scored = replace(given, labels=true, recovered_labels=(torch.tensor([2, 1]), torch.tensor([1, 3])))
    assert LabelAccuracy().score(scored).per_item == (1.0, 1.0, 1.0, 0.0)
    assert LabelAccuracy().score(scored).value == np.mean([1, 1, 1, 0])
    told = replace(given, labels=true, no_labels="told")
    assert LabelAccuracy().score(told).value is None
    assert LabelAccuracy().score(told).reason == "told"
    with pytest.raises(ValueError, match="one label per record"):
        label_hits(torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))


def facts(**cell: object) -> CellFacts:
    pool = SimpleNamespace(labels=torch.arange(10))
    return cast(CellFacts, SimpleNamespace(pool=pool, batch_size=2, cell=SimpleNamespace(known_labels=False, **cell)))


def answer(labels: tuple[Tensor, ...] | None) -> ReconstructionAnswer:
    return ReconstructionAnswer(tuple(torch.zeros(2, 1, 4, 4) for _ in range(2)), labels=labels)


def test_an_attack_that_was_told_the_labels_is_not_scored() -> None:
    given, indices = answer((torch.tensor([5, 4]), torch.tensor([6, 7]))), torch.tensor([4, 5, 6, 7])
    true, recovered, why = labels_to_score(facts(), given, indices)
    assert [part.tolist() for part in true] == [[4, 5], [6, 7]]
    assert recovered == given.labels
    assert why == ""
    told = facts()
    told.cell.known_labels = True  # type: ignore[misc]
    assert labels_to_score(told, given, indices)[1:] == (None, "the attack was told the labels")
    of_several = answer((torch.tensor([5, 4, 1]), torch.tensor([6, 7, 1])))
    _, recovered, why = labels_to_score(facts(), of_several, indices)
    assert recovered is None
    assert "several clients" in why


def test_labels_travel_with_the_images_and_other_forms_are_refused() -> None:
    question, public = ReconstructionQuestion(), cast(Public, SimpleNamespace(shape=(1, 4, 4), classes=8))
    task = cast(ReconstructionTask, SimpleNamespace(sizes=(2, 2)))
    labelled = answer((torch.tensor([5, 4]), torch.tensor([6, 7])))
    for given in (labelled, answer(None)):
        question.check(given, task, public)
        back = question.restore(question.tensors(given), (), {})
        assert [part.tolist() for part in back.labels or ()] == [part.tolist() for part in given.labels or ()]
        assert len(back.images) == 2
    for wrong in ((torch.tensor([5, 4]),), (torch.tensor([5, 8]), torch.tensor([6, 7])), (torch.rand(2),) * 2):
        with pytest.raises(AttackFailed, match="labels must be"):
            question.check(answer(wrong), task, public)
