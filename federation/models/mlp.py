"""A multi-layer perceptron."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from leakboard.core.errors import UserError
from leakboard.federation.models.base import Model


class Mlp(Model):
    """Fully connected network with ReLU: the smallest model on which closed-form attacks are exact."""

    name: ClassVar[str] = "mlp"
    citation: ClassVar[str] = "Rumelhart et al., Nature 1986"

    hidden: tuple[int, ...] = Field((256, 128), description="widths of the hidden layers")
    norm: Literal["none", "batch"] = Field("none", description="only `none`: batch norm needs convolutions here")

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Flatten, then hidden layers with ReLU, then logits."""
        if self.norm != "none":
            raise UserError("The model 'mlp' has no batch norm: norm must be 'none'; given: 'batch'.")
        widths = [math.prod(shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=self.bias), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], classes, bias=self.bias))
