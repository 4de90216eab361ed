"""What `lb.attack` refuses, with one sentence each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakboard as lb
from tests.leaderboard.api.foreign import CLASSES, SHAPE, gradient_of, refusal, smooth


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1).round())  # type: ignore[no-any-return]


class Noisy(Rounded):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.flatten(1) + torch.randn(256))  # type: ignore[no-any-return]


def test_what_cannot_be_attacked_gets_one_sentence() -> None:
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(256, CLASSES))
    assert "dropout in train mode ('1')" in refusal(dropout)
    assert "draws at random" in refusal(Noisy())
    assert "not differentiable" in refusal(Rounded())
    idle = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    gradient = [*gradient_of(idle, *smooth(1)).values(), torch.zeros(1)]
    idle.register_parameter("idle", nn.Parameter(torch.zeros(1)))
    order = {"idle": gradient[2], "1.weight": gradient[0], "1.bias": gradient[1]}
    assert "'idle' has no influence" in _refused(idle, gradient=order)
    assert "at least two classes" in refusal(nn.Sequential(nn.Flatten(), nn.Linear(256, 1)), loss="mse", gradient={})
    assert "must give logits (1, classes) for images (1, 3, 16, 16)" in refusal(shape=(3, 16, 16))


def _refused(net: nn.Module, **settings: Any) -> str:
    with pytest.raises(lb.UserError) as caught:
        lb.attack("inverting-gradients", model=net, shape=SHAPE, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gradient": None}, "needs an update"),
        ({"update": {}}, "only one of"),
        ({"gradient": None, "update": {}}, "needs the `learning_rate`"),
        ({"gradient": {}}, "nothing for the parameter '1.weight' (32, 256)"),
        ({"gradient": {"x": torch.zeros(1)}}, "'x', which is no parameter"),
        ({"gradient": [torch.zeros(1)]}, "must have 4 tensors"),
        ({"gradient": [torch.zeros(32, 256), None, torch.zeros(5, 32), torch.zeros(5)]}, "nothing for the parameter"),
        ({"gradient": [torch.zeros(9), torch.zeros(9), torch.zeros(9), torch.zeros(9)]}, "in shape (32, 256)"),
        ({"gradient": 3}, "a dict of tensors"),
        ({"shape": None}, "shape of an image is not known"),
        ({"shape": (16, 16)}, "three whole numbers"),
        ({"records": 0}, "at least 1"),
        ({"labels": [9]}, "from 0 to 4"),
        ({"loss": "hinge"}, "`loss` must be"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "`loss` must be"),
        ({"std": 0}, "`std` must be"),
        ({"auxiliary": (torch.ones(2, 1, 16, 16) * 2, torch.zeros(2).long())}, "in [0, 1]"),
        ({"auxiliary": smooth(2, shape=(1, 8, 8))}, "images of shape (1, 16, 16)"),
        ({"auxiliary": 3}, "must be (images, labels)"),
        ({"defense": "secagg"}, "no single gradient"),
        ({"transcript": "nowhere", "gradient": None}, "holds no transcript"),
        ({"params": {"iterations": 0}}, "iterations"),
        ({"name": "inverting-gradient"}, "did you mean 'inverting-gradients'"),
        ({"name": "update-inference"}, "needs the view of client"),
        ({"name": "received-model"}, "about extraction"),
        ({"name": "phi-inversion"}, "does not apply here"),
        ({"name": "gifd"}, "`auxiliary`"),
        ({"name": "loss-threshold"}, "needs `candidates`"),
        ({"name": "lira", "candidates": smooth(2)}, "shadow models"),
        ({"name": "gradient-membership", "gradient": None, "candidates": smooth(2)}, "needs an update"),
        ({"device": "tpu"}, "device must be"),
        ({"seed": "x"}, "`seed` must be a whole number"),
        ({"time_limit": 0}, "`time_limit` must be a positive number"),
        ({"auxiliary": (torch.zeros(2, 1, 16, 16), torch.tensor([0, 5]))}, "labels from 0 to 4; given: 0 to 5"),
        ({"known": 3}, "three tensors"),
    ],
)
def test_bad_input_gets_one_sentence(changes: dict[str, Any], expected: str) -> None:
    assert expected in refusal(**changes)
