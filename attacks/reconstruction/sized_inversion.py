"""Sized inversion: match the direction and the size of the gradient, with a total variation that falls."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.building_blocks.candidate_transform import candidate_transform_of
from leakboard.attacks.reconstruction.inverting_gradients import InvertingGradients
from leakboard.attacks.reconstruction.matching.descent import Descent

#: the total variation is multiplied by this whenever the step size is divided by 10
FALL = 0.3
NOT_USED = "the gradient's size was not used: the defense changes it"


class SizedInversion(InvertingGradients):
    """`inverting-gradients` that also matches the gradient's size, with a total variation that falls.

    min_x  1 - cos(g(x), g)  +  size * log(||g(x)|| / ||g||)^2  +  tv_k * TV(x),    x in [0, 1],   tv_k = 0.3^k tv

    where k counts the decays of the step (3/8, 5/8, 7/8 of the iterations). A cosine does not see the scale of a
    gradient, and total variation falls with the contrast of an image. So the longer the plain attack runs, the paler
    its images become, although its cost falls. The size of the gradient keeps the contrast. A large total variation
    early makes the descent fast, and a small one late keeps the details.

    The size is used only where the observed one is that of the gradient: where the defense adds no noise and does
    nothing to gradients that `mimic` could imitate, or `mimic` is on. Elsewhere a flag says that it was not used.
    Settings: auxiliary victims of benchmarks/inversion.py, convnet (docs/reconstruction.md).
    """

    name: ClassVar[str] = "sized-inversion"
    citation: ClassVar[str] = "LeakBoard (docs/reconstruction.md); matching after Geiping et al., NeurIPS 2020"
    sees_scale: ClassVar[bool] = True

    learning_rate: float = Field(0.1, gt=0, description="in image units")
    tv: float = Field(8e-2, ge=0, description="first weight of the total variation of images in [0, 1]")
    size: float = Field(1e-2, ge=0, description="weight of the gradient's size")

    def size_weight(self, knowledge: Knowledge, problems: tuple[Inversion, ...]) -> float:
        """The weight of the gradient's size; none where the defense changes it in a way that is not imitated."""
        return self.size if self._size_is_true(knowledge, problems) else 0.0

    def descent(self) -> Descent:
        """Signed Adam with a falling total variation."""
        return Descent(self.iterations, self.learning_rate, self.tv, fall=FALL)

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Invert all problems in one optimisation."""
        answer = super().reconstruct(knowledge, task)
        if self._size_is_true(knowledge, task.problems(knowledge)):
            return answer
        return replace(answer, flags=(*answer.flags, NOT_USED))

    def _size_is_true(self, knowledge: Knowledge, problems: tuple[Inversion, ...]) -> bool:
        """Whether the observed size is that of the (imitated) gradient: no noise, and nothing left to imitate."""
        defense, public = knowledge.defense, knowledge.public
        if public.training.is_local:  # several steps: the update is shorter than the gradient
            return False
        if any(defense.noise_scale(observation, public) for observation in knowledge.view.of_kind("probe")):
            return False
        if self.mimic:
            return True
        known = ((candidate_transform_of(defense, p.gradient, public), p.gradient.values) for p in problems)
        return not any(change is not None and change.noticed(values, scale=True) for change, values in known)
