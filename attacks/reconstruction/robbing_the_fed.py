"""Robbing the Fed: a server that sends weights by which a sum of gradients falls apart into records."""

from __future__ import annotations

from typing import ClassVar

import torch

from leakboard.attacks.base import (
    Inversion,
    Knowledge,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
    gradient_flags,
)
from leakboard.core.errors import Unsupported
from leakboard.defenses.building_blocks.imprint import imprinted_records, signs_of_imprint
from leakboard.federation.task import Task


class RobbingTheFed(ReconstructionAttack):
    """Records from the gradient of an imprinted first layer (`Defense.deviate` of schemes with a plain model).

    Neighbouring rows of the layer differ by the records between their thresholds, so x = (dW_i - dW_{i+1}) / (db_i -
    db_{i+1}) for every bin with one record. Of B records in k bins of equal mass, B (1 - 1/k)^(B - 1) are alone and
    exact: 39 of 64 for k = 128. Secure aggregation does not help: a sum over clients is a larger batch.

    The block of the paper is put in front of any network. Here the messages keep their form, so the first layer itself
    is imprinted: it must be fully connected with a bias. A client that looks would notice (the flags of an answer name
    what). Published: 60 of 64 CIFAR-10 images from 1,000 rows (Guo et al. 2025); 54 % of 100 images from about 200 rows
    (Boenisch et al. 2023, their own variant).
    """

    name: ClassVar[str] = "robbing-the-fed"
    citation: ClassVar[str] = "Fowl et al., Robbing the Fed: Directly Obtaining Private Data (...), ICLR 2022"
    threats: ClassVar[tuple[str, ...]] = ("server:active",)

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Read every bin; the mean image stands for records that were not alone."""
        problems = task.problems(knowledge)
        noticed = signs_of_imprint(knowledge.task, problems[0].model)
        if len(noticed) < 3:
            raise Unsupported(
                f"the server of the defense '{knowledge.public.defense}' sent no imprinted first layer: that needs the "
                "threat server:active, a model in plain and a fully connected first layer with a bias"
            )
        images, found = [], 0
        for problem in problems:
            guess = knowledge.auxiliary.images.mean(0).expand(problem.gradient.records, -1, -1, -1).clone()
            read = _read(knowledge.task, problem)
            guess[: len(read)] = read
            found += len(read)
            images.append(guess)
        flags = [*gradient_flags(problems), *(f"a client would notice: {sign}" for sign in noticed)]
        return ReconstructionAnswer(tuple(images), tuple(flags), {"bins_per_problem": found / len(problems)})


def _read(task: Task, problem: Inversion) -> torch.Tensor:
    """The images (N, C, H, W) of the fullest bins, N at most the number of records."""
    weight = next(name for name in task.parameter_names if name.endswith("weight"))
    values = problem.gradient.values
    matrix, bias = values[weight].double(), values[weight.removesuffix("weight") + "bias"].double()
    if not bool(matrix.isfinite().all()) or not bool(bias.isfinite().all()):
        return torch.zeros(0, *task.public.shape)
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (task.public.mean, task.public.std))
    inputs = imprinted_records(matrix, bias, problem.gradient.records).float()
    return (inputs.view(-1, *task.public.shape) * std + mean).nan_to_num(0, 0, 0).clamp(0, 1)
