"""A small convolutional network."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from leakboard.federation.models.base import Model


class ConvNet(Model):
    """Three 3x3 convolutions (the last two strided) and a linear layer: the size of LeNet, cheap without pooling."""

    name: ClassVar[str] = "convnet"
    citation: ClassVar[str] = "after LeCun et al., Proc. IEEE 1998"

    width: int = Field(16, ge=1, le=1024, description="channels of the first convolution")

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """(N, C, H, W) -> width -> 2 width at H/2 -> 2 width at H/4 -> logits."""
        channels, height, width = shape
        features = 2 * self.width * ((height + 3) // 4) * ((width + 3) // 4)
        return nn.Sequential(
            self.convolution(channels, self.width, 3),
            nn.ReLU(),
            self.convolution(self.width, 2 * self.width, 3, stride=2),
            nn.ReLU(),
            self.convolution(2 * self.width, 2 * self.width, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(features, classes, bias=self.bias),
        )
