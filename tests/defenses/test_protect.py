"""A `protect` that returns something else than a gradient: one sentence that names party, tensor and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from leakboard.contract.worlds import make_world
from leakboard.core.errors import UserError
from leakboard.defenses.base import Defense
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters

RETURNED: dict[str, tuple[Callable[[Parameters], Any], str]] = {
    "another shape": (
        lambda gradient: {name: value.flatten()[:2] for name, value in gradient.items()},
        "The defense 'odd': `protect` of client:0 must return '1.weight' in shape (8, 1024); given: (2,).",
    ),
    "a name too few": (
        lambda gradient: {name: value for name, value in gradient.items() if name != "3.weight"},
        "The defense 'odd': `protect` of client:0 must return a tensor '3.weight' of shape (10, 8); given: nothing.",
    ),
    "a number": (
        lambda gradient: {**gradient, "3.weight": 0.5},
        "The defense 'odd': `protect` of client:0 must return a tensor '3.weight' of shape (10, 8); given: float.",
    ),
    "a tensor": (
        lambda gradient: torch.zeros(3),
        "The defense 'odd': `protect` of client:0 must return a dict of tensors; given: Tensor.",
    ),
}


class Odd(Defense):
    """Sends what a test tells it."""

    name: ClassVar[str] = "odd"
    case: str

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Whatever the case asks for."""
        sent: Parameters = RETURNED[self.case][0](gradient)
        return sent


@pytest.mark.parametrize("case", list(RETURNED))
def test_what_cannot_be_averaged_is_one_sentence(case: str) -> None:
    with pytest.raises(UserError) as caught:
        make_world(Odd(case=case), model_parameters={"hidden": [8]})
    assert str(caught.value) == RETURNED[case][1]
