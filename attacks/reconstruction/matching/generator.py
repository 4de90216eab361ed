"""The attacker's generator: it learns from the auxiliary images what images look like, and never sees a member.

It is the decoder of Generative Latent Optimisation (Bojanowski et al., ICML 2018): every auxiliary image i gets a
code z_i on a sphere, and codes and decoder G are fitted together,

    min_{G, z}  mean_i || G(z_i) - x_i ||^2,    ||z_i|| = sqrt(dim)

It is not a GAN, unlike the paper's. With a few hundred to a few thousand images and minutes on one core, GANs are
known to be brittle (none was tried here), while this is plain regression. An inversion needs a generator that can
come close to images that it has not seen, more than one that samples well. By that measure (the best PSNR over z of
32 held-out CIFAR-10 images, after 20 epochs on 1,968, one run each) a spherical autoencoder reached 21.8 dB, this one
21.4 and a VAE 20.9. This one is the simplest, because it has no encoder.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from leakboard.core.caches import cache_folder
from leakboard.core.errors import Unsupported
from leakboard.core.files import keep_tensors, kept_tensors
from leakboard.core.seeds import derive_seed, digest_of
from leakboard.federation.payload import raw_bytes

FOLDER = cache_folder() / "generators"
#: computed at import, so that a later edit of the file does not change the digest of the running code
SOURCE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
#: the first feature is smaller than the image by this factor
REDUCTION = 8
#: slope of the leaky ReLU below 0
SLOPE = 0.2


@dataclass(frozen=True)
class GeneratorSettings:
    """Size and training of a generator."""

    latent: int
    width: int
    epochs: int
    seed: int
    batch: int = 32
    learning_rate: float = 2e-3
    #: the codes move faster than the weights, because each code is used once per epoch
    code_rate: float = 2e-2


class Generator(nn.Module):
    """z (N, dim) -> f1 (N, 8w, s/8, s/8) -> f2 (N, 4w, s/4, s/4) -> f3 (N, 2w, s/2, s/2) -> f4 (N, w, s, s) -> image.

    Each arrow is a block: upsampling by 2 (nearest), 3x3 convolution, leaky ReLU. The image is (N, C, s, s) in (0, 1).
    `w` is the width. Points of the search are numbered 0 for z and i for f_i.
    """

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int) -> None:
        super().__init__()
        channels, height, side = shape
        if height != side or side % REDUCTION:
            raise Unsupported(
                f"the generator makes square images whose side is a multiple of 8; given: {height}x{side}"
            )
        first = (8 * width, side // REDUCTION, side // REDUCTION)
        flat = first[0] * first[1] * first[2]
        start = nn.Sequential(nn.Linear(latent, flat), nn.Unflatten(1, first), nn.LeakyReLU(SLOPE))
        grown = [_twice_as_large(many * width, many * width // 2) for many in (8, 4, 2)]
        end = nn.Sequential(nn.Conv2d(width, channels, 3, padding=1), nn.Sigmoid())
        self.latent = latent
        self.blocks = nn.ModuleList([start, *grown, end])

    @property
    def layers(self) -> int:
        """The number of features between z and the image."""
        return len(self.blocks) - 1

    def image(self, point: Tensor, layer: int = 0) -> Tensor:
        """The image of a point of this layer."""
        for block in self.blocks[layer:]:
            point = block(point)
        return point

    def next_feature(self, point: Tensor, layer: int) -> Tensor:
        """The point of layer `layer + 1` that follows from a point of this layer."""
        return cast(Tensor, self.blocks[layer](point))

    def forward(self, z: Tensor) -> Tensor:
        """The image of z."""
        return self.image(z)


def _twice_as_large(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inputs, outputs, 3, padding=1), nn.LeakyReLU(SLOPE))


def on_sphere(z: Tensor) -> Tensor:
    """The nearest point to each z (..., dim) on the sphere of radius sqrt(dim), where normal draws concentrate.

    >>> on_sphere(torch.tensor([[3.0, 4.0]])).square().sum().round().item()
    2.0
    """
    return cast(Tensor, z * z.shape[-1] ** 0.5 / z.norm(dim=-1, keepdim=True).clamp(min=1e-12))


def untrained_generator(shape: tuple[int, int, int], settings: GeneratorSettings) -> Generator:
    """A generator with random weights from the settings' seed; frozen.

    Weights are drawn as in He et al. (2015), which keeps features at the same size from block to block. With torch's
    own draw they shrink, and a short search on digits (untrained convnet, six auxiliary victims) ended at 9.7 dB
    instead of 30.8.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        generator = Generator(shape, settings.latent, settings.width)
        for name, value in generator.named_parameters():
            nn.init.zeros_(value) if name.endswith("bias") else nn.init.kaiming_normal_(value, a=SLOPE)
    return generator.requires_grad_(False)


def trained_generator(
    images: Tensor,
    settings: GeneratorSettings,
    progress: Callable[[str], None],
    seconds: float = math.inf,
    folder: Path | None = None,
) -> tuple[Generator, bool]:
    """The generator for these auxiliary images (N, C, H, W), and whether its training was completed.

    It is loaded from `folder` or trained and then saved there. The file's name is the digest of images, settings, this
    file and torch's version, so an older generator is never used. An incomplete file is ignored. Training that takes
    longer than `seconds` stops, and its result is not saved. Training always runs on the CPU, so that all devices get
    the same result.
    """
    channels, height, width = images.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        generator = Generator((channels, height, width), settings.latent, settings.width).requires_grad_(False)
    file = (folder or FOLDER) / f"{_key(images, settings)}.safetensors"
    if _load_into(generator, file):
        return generator, True
    finished = _train(generator.requires_grad_(True), images.cpu(), settings, progress, time.monotonic() + seconds)
    generator.requires_grad_(False)
    if finished:
        keep_tensors(file, generator.state_dict())
    return generator, finished


def _key(images: Tensor, settings: GeneratorSettings) -> str:
    content = hashlib.sha256(raw_bytes(images.cpu())).hexdigest()
    return digest_of(list(images.shape), content, asdict(settings), SOURCE, torch.__version__)


def _load_into(generator: Generator, file: Path) -> bool:
    """Load the weights from a file; False, without any change, if the file is missing or incomplete."""
    state = generator.state_dict()
    tensors = kept_tensors(file, sum(tensor.nbytes for tensor in state.values()))
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
    if tensors is None or {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} != expected:
        return False
    generator.load_state_dict(tensors)
    return True


def _train(
    generator: Generator,
    images: Tensor,
    settings: GeneratorSettings,
    progress: Callable[[str], None],
    deadline: float,
) -> bool:
    """Fit codes and weights together (Adam, one-cycle learning rate); returns whether there was enough time."""
    random = torch.Generator().manual_seed(derive_seed(settings.seed, "generator", "training"))
    codes = on_sphere(torch.randn(len(images), settings.latent, generator=random)).requires_grad_()
    rates = [settings.learning_rate, settings.code_rate]
    groups = zip((generator.parameters(), [codes]), rates, strict=True)
    optimiser = torch.optim.Adam([{"params": list(values), "lr": rate} for values, rate in groups])
    steps = settings.epochs * -(-len(images) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rates, total_steps=steps + 1, pct_start=0.1)
    for epoch in range(settings.epochs):
        if time.monotonic() > deadline:
            return False
        error = 0.0
        for rows in torch.split(torch.randperm(len(images), generator=random), settings.batch):
            loss = (generator(on_sphere(codes[rows])) - images[rows]).square().flatten(1).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            error += float(loss.detach()) * len(rows) / images.numel()
        if (epoch + 1) % max(1, settings.epochs // 10) == 0:
            progress(f"generator: epoch {epoch + 1} of {settings.epochs}, mean squared error {error:.4f}")
    return True
