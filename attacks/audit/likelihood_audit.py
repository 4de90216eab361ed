"""The likelihood ratio of two neighbouring worlds, from one run of the protocol."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from leakboard.attacks.audit.building_blocks.worlds import Worlds
from leakboard.attacks.base import AuditAnswer, AuditAttack, AuditTask, Knowledge
from leakboard.core.errors import Unsupported
from leakboard.federation.transcript import Observation


class LikelihoodAudit(AuditAttack):
    """Tells the two worlds apart by the likelihood ratio of all observations, given what each world would have sent.

    `part: gradient` takes all gradients g_k of the honest reading (those of the clients, otherwise the sum), and what
    they would be without noise in world b. For the victim that follows from either batch; for the other clients it
    follows from their records, which the adversary of differential privacy knows. The joint covariance of the noise
    (`Defense.joint_noise`) is diag(R) (sigma_eta^2 I + sigma_Delta^2 L) diag(R) per coordinate under mp-dp.
    Generalised least squares then gives

        nd/2 log( D_0 / D_1 ),  D_b = sum_i e_i^T C^-1 e_i,  e_ki = (g_ki - g_ki(b)) / s_ki

    This is the Gaussian log-likelihood ratio, with the common factor of the noise estimated from the trial itself.
    Clients whose noise is independent of the victim's carry no information and are left out. With
    `noise_aware: false` only the victim's own gradient is used, with equal weights. `part: view` adds the ratio of all
    other parts of the update that are plain numbers (Psi and Phi). It also subtracts their share from the gradient, so
    that nothing counts twice. `part: support` only assumes that the noise on the victim's gradient is bounded:
    max_i |g - g(0)|_i / s_i - max_i |g - g(1)|_i / s_i.
    """

    name: ClassVar[str] = "audit"
    citation: ClassVar[str] = (
        "Nasr et al., Adversary Instantiation: Lower Bounds for Differentially Private Machine Learning, S&P 2021 "
        "(the game); Neyman and Pearson 1933 (the test); Aitken 1936 (generalised least squares)"
    )
    can_adapt: ClassVar[bool] = True

    part: Literal["gradient", "view", "support"] = Field("gradient", description="what the ratio is computed on")
    noise_aware: bool = Field(True, description="weigh coordinates by the noise that the server knows they carry")

    @property
    def adaptive(self) -> bool:
        """Whether the attack uses more than the honest reading."""
        return self.part != "gradient" or self.noise_aware

    def work(self, problems: int) -> tuple[float, float]:
        """A trial costs about ten gradients: one per client, and those that the auditor computes."""
        return 10.0 * self.trials, 0.0

    def distinguish(self, knowledge: Knowledge, task: AuditTask) -> AuditAnswer:
        """One ratio per trial, computed from that trial only."""
        if knowledge.public.training.is_local:
            raise Unsupported("the likelihood is that of a gradient, and clients send updates of several local steps")
        worlds = Worlds(knowledge.defense, task)
        scores = torch.tensor([self._score(worlds, trial) for trial in task.trials], dtype=torch.float64)
        broken = int((~scores.isfinite()).sum())
        flags = (f"gradient holds no numbers: {broken} of {len(scores)} trials",) if broken else ()
        return AuditAnswer(scores.nan_to_num(0.0, 0.0, 0.0), flags)

    def _score(self, worlds: Worlds, trial: Observation) -> float:
        worlds.look(trial)
        if self.part == "support":
            return worlds.gradient(noise_aware=self.noise_aware).overhang()
        others = worlds.others() if self.part == "view" else []
        gradient = worlds.gradient(noise_aware=self.noise_aware, given_parts=bool(others))
        return sum(evidence.ratio() for evidence in (gradient, *others))
