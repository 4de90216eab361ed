"""A Flower app like any other: two clients train a small ResNet with batch norm on digits.

LeakBoard is one line in it: the strategy is `recorded`.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits
from torch import Tensor, nn

from leakboard.flower import recorded

RATE, BATCH, CLASSES = 0.02, 4, 10


class Block(nn.Module):
    """The basic block of a ResNet: two convolutions with batch norm, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(normed(inputs, outputs, 3, stride), nn.ReLU(), normed(outputs, outputs, 3, 1))
        self.shortcut = normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Features (N, C, H, W) to features."""
        return torch.relu(self.body(x) + self.shortcut(x))


def normed(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    """A convolution with batch norm."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def network() -> nn.Module:
    """A small ResNet with batch norm, for digits of 16 x 16 pixels."""
    blocks = Block(16, 16, 1), Block(16, 32, 2)
    return nn.Sequential(normed(1, 16, 3, 1), nn.ReLU(), *blocks, nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES))


def digits(part: slice) -> tuple[Tensor, Tensor]:
    """Some of scikit-learn's digits, as images (N, 1, 16, 16) in [0, 1]."""
    data = load_digits()
    images = torch.tensor(data.images[part], dtype=torch.float32)[:, None] / 16
    return nn.functional.interpolate(images, 16, mode="bilinear"), torch.tensor(data.target[part])


server = ServerApp()
client = ClientApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Federated averaging, as in any Flower app; what the server receives is written down."""
    torch.manual_seed(0)
    strategy = recorded(FedAvg(fraction_evaluate=0.0), str(context.run_config["recording"]))
    strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=int(context.run_config["rounds"]))


@client.train()
def train(message: Message, context: Context) -> Message:
    """One step of SGD on this round's batch of this client."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    first = 1000 * int(context.node_config["partition-id"]) + BATCH * int(message.content["config"]["server-round"])
    images, labels = digits(slice(first, first + BATCH))
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    torch.optim.SGD(net.parameters(), RATE).step()
    told = MetricRecord({"num-examples": len(labels), "loss": loss.item()})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": told}), reply_to=message)
