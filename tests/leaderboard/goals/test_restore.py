"""An answer is restored from exactly the tensors that its goal writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakboard.core import registry
from leakboard.leaderboard.goals.base import Goal

SCORES = torch.zeros(3, dtype=torch.float64)
#: goal -> the tensors of an answer; a stolen model may lack some, because `check` compares it with the network
TENSORS: dict[str, dict[str, Tensor]] = {
    "membership": {"scores": SCORES, "decisions": SCORES.to(torch.uint8)},
    "audit": {"trials": SCORES},
    "reconstruction": {"images/0": torch.zeros(1, 1, 2, 2), "images/1": torch.ones(1, 1, 2, 2)},
    "extraction": {"model/weight": torch.zeros(2)},
}


def restored(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    goal = registry.create("goal", name)
    assert isinstance(goal, Goal)
    return goal.tensors(goal.restore(tensors, (), {}))


@pytest.mark.parametrize("name", TENSORS)
def test_the_tensors_of_an_answer_are_restored(name: str) -> None:
    again = restored(name, TENSORS[name])
    assert list(again) == list(TENSORS[name])
    assert all(torch.equal(again[key], value) for key, value in TENSORS[name].items())


@pytest.mark.parametrize("extra", ["more", "images/7", "trials2"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_too_many_is_refused(name: str, extra: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        restored(name, {**TENSORS[name], extra: SCORES})


#: one image alone is an answer to one problem, which `check` refuses because it counts them
GONE = [("membership", "scores"), ("membership", "decisions"), ("audit", "trials"), ("reconstruction", "images/0")]


@pytest.mark.parametrize(("name", "gone"), GONE)
def test_a_tensor_too_few_is_refused(name: str, gone: str) -> None:
    with pytest.raises((ValueError, LookupError)):
        restored(name, {key: value for key, value in TENSORS[name].items() if key != gone})
