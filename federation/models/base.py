"""What a model plugin is, and the layers that all networks use.

For the tables, networks have no batch norm and no biases (docs/decisions.md, 9.5). `norm: batch` with cross-entropy is
the reference for what a user would do without a defense.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from leakboard.core.plugins import Plugin


class Model(Plugin):
    """Base of all networks: `build` makes an untrained one with torch's default initialisation."""

    kind: ClassVar[str] = "model"

    norm: Literal["none", "batch"] = Field("none", description="batch normalisation after each convolution, or none")
    bias: bool = Field(False, description="whether convolutions and linear layers have biases")

    @abstractmethod
    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A network from images (N, *shape), normalised, to logits (N, classes)."""

    def convolution(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
        """A padded convolution, followed by batch norm if the model has it."""
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=self.bias)
        return conv if self.norm == "none" else nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)): the block of He et al. 2016; an empty shortcut is the identity."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut if shortcut is not None else nn.Identity()
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map images or features (N, C, H, W) to features."""
        return self.activation(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]
