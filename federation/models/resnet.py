"""Residual networks for 32x32 images (He et al. 2016, section 4.2) with projection shortcuts."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from leakboard.federation.models.base import Model, Residual


class ResNet(Model):
    """Three stages of residual blocks at widths w, 2w, 4w, then global average pooling and a linear layer."""

    citation: ClassVar[str] = "He et al., CVPR 2016"
    blocks: ClassVar[int]

    width: int = Field(16, ge=1, le=1024, description="channels of the first stage")

    def block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """The basic block: two 3x3 convolutions; with a stride or a larger width it has a 1x1 projection."""
        body = nn.Sequential(
            self.convolution(inputs, outputs, 3, stride), nn.ReLU(), self.convolution(outputs, outputs, 3)
        )
        return Residual(body, self.projection(inputs, outputs, stride))

    def projection(self, inputs: int, outputs: int, stride: int) -> nn.Module | None:
        """A 1x1 convolution if the shapes differ (option B), None if they agree."""
        return None if inputs == outputs and stride == 1 else self.convolution(inputs, outputs, 1, stride)

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """(N, C, H, W) to logits (N, classes)."""
        layers: list[nn.Module] = [self.convolution(shape[0], self.width, 3), nn.ReLU()]
        inputs = self.width
        for stage in range(3):
            outputs = self.width * 2**stage
            for index in range(self.blocks):
                layers.append(self.block(inputs, outputs, 2 if stage and not index else 1))
                inputs = outputs
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes, bias=self.bias)]
        return nn.Sequential(*layers)


class ResNet8(ResNet):
    """ResNet of 8 layers: one basic block per stage."""

    name: ClassVar[str] = "resnet8"
    blocks: ClassVar[int] = 1


class ResNet11(ResNet):
    """ResNet of 11 layers: three stages of one bottleneck block (1x1, 3x3, 1x1)."""

    name: ClassVar[str] = "resnet11"
    blocks: ClassVar[int] = 1

    def block(self, inputs: int, outputs: int, stride: int) -> nn.Module:
        """The bottleneck block; its inner width is a quarter of its outer width."""
        inner = max(1, outputs // 4)
        body = nn.Sequential(
            self.convolution(inputs, inner, 1),
            nn.ReLU(),
            self.convolution(inner, inner, 3, stride),
            nn.ReLU(),
            self.convolution(inner, outputs, 1),
        )
        return Residual(body, self.projection(inputs, outputs, stride))


class ResNet20(ResNet):
    """ResNet of 20 layers: three basic blocks per stage (the paper's CIFAR-10 network)."""

    name: ClassVar[str] = "resnet20"
    blocks: ClassVar[int] = 3


class ResNet56(ResNet):
    """ResNet of 56 layers: nine basic blocks per stage (the paper's CIFAR-100 network)."""

    name: ClassVar[str] = "resnet56"
    blocks: ClassVar[int] = 9
