"""Which records are in a batch, from Phi, which clients send without noise."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.func import functional_call

from leakboard.attacks.base import Knowledge
from leakboard.attacks.membership.building_blocks.batch import BatchMembership, Loss, Mixture
from leakboard.attacks.membership.building_blocks.signals import last_linear
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.noise.budget import clipping
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task

#: the name of q, the row of last weights that gives alpha, next to the network's own parameters
HEAD = "head"


class PhiMembership(BatchMembership):
    """Batch membership from Phi of model perturbation, which carries no noise for any epsilon.

    Phi is the mean gradient of alpha^2 / 2, where alpha = sum_j h_j / s_j = q . h with the last activations h of the
    true network. In the coordinates of the true weights and q (`defenses.perturbation.clean`) the server can compute
    the same gradient for any candidate, with or without labels, and also the clipping factor c_b.
    """

    name: ClassVar[str] = "phi-membership"
    citation: ClassVar[str] = "LeakBoard: Phi of Yang et al. is an exact gradient of a function that the server knows"
    can_adapt: ClassVar[bool] = True

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses what the honest reading ignores."""
        return True

    def refuses(self, defense: Defense) -> str:
        """Only model perturbation sends Phi."""
        return "" if isinstance(defense, ModelPerturbation) else f"the defense '{defense.name}' sends no Phi"

    def mixtures(self, knowledge: Knowledge, round_index: int) -> dict[str, Mixture]:
        """Phi of every owner whose Phi the server can read in this round."""
        defense = knowledge.defense
        if not isinstance(defense, ModelPerturbation):
            raise Unsupported(self.refuses(defense))
        found = {}
        for observation in knowledge.view.of_kind("train", round_index):
            for owner, parts in defense.clean_parts(observation, knowledge.public).items():
                mean = Gradient({**parts.phi, HEAD: parts.features}, 1, parts.records)
                at = {**parts.model, HEAD: parts.head}
                clipped = None if parts.clip is None else clipping(parts.clip)
                found[owner] = Mixture(mean, at, _activity(knowledge.task, parts), parts.model, clipped)
        if not found:
            raise Unsupported(f"this view ({knowledge.view.threat}) holds no Phi of a single client without noise")
        return found


def _activity(task: Task, parts: CleanParts) -> Loss:
    """alpha^2 / 2 of one record, as a function of the true weights and q."""

    def loss(parameters: Parameters, image: Tensor, target: Tensor) -> Tensor:
        own = {name: value for name, value in parameters.items() if name != HEAD}
        caught: list[Tensor] = []
        hook = last_linear(task).register_forward_pre_hook(lambda _, given: caught.append(given[0]))
        try:
            functional_call(task.skeleton(), {**parts.model, **own}, (task.normalise(image),))
        finally:
            hook.remove()
        return 0.5 * (caught[0] @ parameters[HEAD]).square().sum()

    return loss
