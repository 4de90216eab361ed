"""Learning to Invert: a network from gradients to images, trained through the defense on auxiliary images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import (
    STOPPED,
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.attacks.reconstruction.matching.labels import labels_of
from leakboard.attacks.reconstruction.regression.learner import FEWEST
from leakboard.attacks.reconstruction.regression.network import Examples, NetworkInverter, trained
from leakboard.attacks.reconstruction.regression.sketch import Sketch
from leakboard.attacks.reconstruction.regression.sources import CHUNK, Imitated, Plain, in_single_precision, sends_plain
from leakboard.attacks.reconstruction.ridge import usable
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters

#: share of the auxiliary images, and their largest number, that decide which epoch is the best
HELD_OUT, MOST_HELD_OUT = 0.1, 500
#: share of the time that gradients may take
TIME_FOR_GRADIENTS = 0.6
#: values of all auxiliary batches together (4 bytes each): what a cell's memory has room for
MOST_VALUES = 2**28
#: the largest shift, in pixels, of an image that is used again
SHIFT = 3


class LearningToInvert(ReconstructionAttack):
    """A network of two hidden layers from sketched gradients to pixels, one for all problems on the same model.

    The attacker computes what it would have read of its own images with their own labels: the defense simulates a
    client's message (`Defense.simulate`), and its own reading makes a gradient of it (`regression.sources.Imitated`).
    The network is trained on these pairs, so it adapts to any defense, noise included. Features are a count sketch of
    each tensor, standardised. The loss of a batch is the squared error under the best order of its images (Hungarian
    method), so that order does not matter. A tenth of the auxiliary images choose the epoch; if no epoch beats the mean
    image on them, the answer is the mean image.

    Each auxiliary image is used once, then mirrored, then mirrored or not and shifted by a few pixels. The paper has
    50,000 images, 3,000 units and 200 epochs on a GPU. Its tables were not available to us; docs/attacks.md has our
    learning curve. Unlike the paper's code, a batch is defended as the client does it: the mean, not each record.
    """

    name: ClassVar[str] = "learning-to-invert"
    citation: ClassVar[str] = "Wu et al., Learning to Invert: Simple Adaptive Attacks for Gradient Inversion, UAI 2023"
    can_adapt: ClassVar[bool] = True

    samples: int = Field(10_000, ge=16, le=1_000_000, description="auxiliary gradients that the network learns from")
    bins: int = Field(1024, ge=1, description="features per tensor")
    units: int = Field(1000, ge=1, le=100_000, description="of each hidden layer")
    epochs: int = Field(30, ge=1, le=100_000, description="passes over the auxiliary gradients")
    learning_rate: float = Field(1e-3, gt=0, description="step size of Adam; falls to 0 as a cosine")
    flip: bool = Field(True, description="use the mirror images of auxiliary images too")

    @property
    def adaptive(self) -> bool:
        """It runs the defense's own code."""
        return True

    def budget(self) -> dict[str, int]:
        """Auxiliary gradients per model, and epochs."""
        return {"gradients": self.samples, "epochs": self.epochs}

    def work(self, problems: int) -> tuple[float, float]:
        """One gradient per example, once for all problems."""
        return float(self.samples), 0.0

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """One network per model and number of records."""
        if knowledge.public.training.is_local:
            raise Unsupported("with local steps auxiliary gradients would be those of one step, without the defense")
        problems = task.problems(knowledge)
        values = self.samples * max(p.gradient.records for p in problems) * math.prod(knowledge.public.shape)
        if values > MOST_VALUES:
            raise Unsupported(
                f"samples x records x pixels may be at most {MOST_VALUES:,}; given: {values:,} (fewer `samples` help)"
            )
        guess = knowledge.auxiliary.images.mean(0)
        images = [guess.expand(problem.gradient.records, -1, -1, -1).clone() for problem in problems]
        explained, late = [0.0] * len(problems), 0
        for found in _groups(problems):
            # draws depend on the first problem: sorted, so that the order in which problems come changes nothing
            group = sorted(found, key=lambda i: knowledge.generator_for(problems[i], "order").initial_seed())
            inverter = self.inverter(knowledge, [problems[i] for i in group])
            late += len(group) if knowledge.time_left() <= 0 else 0
            for index in group if inverter is not None else ():
                assert inverter is not None
                images[index], explained[index] = inverter(problems[index].gradient.values), inverter.explained
            knowledge.progress(f"one network for {len(group)} of {len(problems)} problems")
        flags = gradient_flags(problems)
        if late:
            flags.append(f"{STOPPED} in {late} of {len(problems)} problems")
        return ReconstructionAnswer(tuple(images), tuple(flags), {"explained": sum(explained) / len(explained)})

    def inverter(self, knowledge: Knowledge, problems: Sequence[Inversion]) -> NetworkInverter | None:
        """What is learned for problems on the same model; None without time."""
        random = knowledge.generator_for(problems[0], "network")
        like = {name: problems[0].gradient.values[name] for name in knowledge.task.parameter_names}
        sketch = Sketch(like, self.bins, random)
        source = _Source(knowledge, problems)
        records, pool = problems[0].gradient.records, knowledge.auxiliary
        order = torch.randperm(len(pool.labels), generator=random)
        few = max(1, min(MOST_HELD_OUT, round(HELD_OUT * len(order)), self.samples // 4))
        unseen = _batches(pool.select(order[:few]), few, records, random, flip=False)
        seen = _batches(pool.select(order[few:]), self.samples, records, random, flip=self.flip)
        limit = 0.0 if knowledge.deadline is None else (1 - TIME_FOR_GRADIENTS) * knowledge.time_left()
        held_out = _examples(knowledge, source, sketch, unseen, limit, "held out")
        train = _examples(knowledge, source, sketch, seen, limit, "examples")
        if held_out is None or train is None or len(train.features) < FEWEST:
            return None
        return trained(
            sketch,
            train,
            held_out,
            units=self.units,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            random=random,
            stop=lambda: knowledge.time_left() <= 0,
        )


class _Source:
    """What would be read of images: plain gradients if nothing else is sent, otherwise the problems in turn."""

    def __init__(self, knowledge: Knowledge, problems: Sequence[Inversion]) -> None:
        first = Imitated(knowledge, problems[0], labels_of(knowledge, problems[0]))
        model = in_single_precision(problems[0].model)
        plain = not knowledge.task.buffer_names and sends_plain(first)
        self.plain = Plain(knowledge.task, model) if plain else None
        others = () if plain else problems[1:]
        self.imitated = [first, *(Imitated(knowledge, problem, labels_of(knowledge, problem)) for problem in others)]

    def gradients(self, images: Tensor, labels: Tensor, number: int, seed: int) -> Parameters:
        """Gradients (N, *shape) of the chunk with this number: batches (N, M, C, H, W) with labels (N, M)."""
        if self.plain is not None:
            return self.plain.gradients(images, labels)
        return self.imitated[number % len(self.imitated)].gradients(images, seed, labels)


def _groups(problems: Sequence[Inversion]) -> Iterator[list[int]]:
    """Usable problems that share their model and their numbers of records and clients."""
    rest = [i for i, problem in enumerate(problems) if usable(problem.gradient.values)]
    while rest:
        first = problems[rest[0]]
        group = [i for i in rest if _same(first, problems[i])]
        rest = [i for i in rest if i not in group]
        yield group


def _same(one: Inversion, two: Inversion) -> bool:
    sizes = [(p.gradient.records, p.gradient.clients) for p in (one, two)]
    return sizes[0] == sizes[1] and all(torch.equal(value, two.model[name]) for name, value in one.model.items())


def _examples(
    knowledge: Knowledge, source: _Source, sketch: Sketch, batches: tuple[Tensor, Tensor], limit: float, name: str
) -> Examples | None:
    """Sketches of as many gradients as there is time for, with noise by the name; None if there is none."""
    rows: list[Tensor] = []
    for number, (images, labels) in enumerate(zip(*(torch.split(part, CHUNK) for part in batches), strict=True)):
        if knowledge.time_left() <= max(0.0, limit):
            break
        rows.append(sketch(source.gradients(images, labels, number, derive_seed(knowledge.seed, name, number))))
    if not rows:
        return None
    features = torch.cat(rows)
    used = features.isfinite().all(1)
    return Examples(features[used], batches[0][: len(used)][used]) if bool(used.any()) else None


def _batches(
    pool: LabelledImages, count: int, records: int, random: torch.Generator, *, flip: bool
) -> tuple[Tensor, Tensor]:
    """Images (count, M, C, H, W) and labels (count, M): all images once, then mirrored, then shifted."""
    size = len(pool.labels)
    passes = [torch.randperm(size, generator=random) for _ in range(-(-count * records // size))]
    index = torch.cat(passes)[: count * records]
    images, turn = pool.images[index], torch.arange(len(index)) // size
    mirrored = (turn == 1) | ((turn > 1) & (torch.rand(len(index), generator=random) < 0.5))
    if flip:
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
    for i in (turn > int(flip)).nonzero()[:, 0].tolist():
        down, right = torch.randint(-SHIFT, SHIFT + 1, (2,), generator=random).tolist()
        images[i] = torch.roll(images[i], (down, right), (-2, -1))
    return images.view(count, records, *images.shape[1:]), pool.labels[index].view(count, records)
