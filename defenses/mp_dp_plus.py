"""LeakBoard's own variant: what the paper's scheme would need to keep its promise to clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Noise
from leakboard.defenses.building_blocks.model_perturbation import unpack_secret
from leakboard.defenses.building_blocks.perturbed_parts import PARTS, PerturbedParts
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.building_blocks.summed_codes import SharedNoise
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats
from leakboard.defenses.noise.budget import Budget
from leakboard.defenses.noise.calibration import composed_epsilon, gaussian_epsilon
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.defenses.perturbation.client import Expanded, Parts, part_norms, train_clipped
from leakboard.federation.example_norms import clip_factors
from leakboard.federation.example_passes import Pass
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation


class MpDpPlus(SecureSum, SharedNoise, Budget, PerturbedParts):
    """mp-dp hardened: gradient, Psi and Phi are all clipped, noised and masked; the server sees only their sums.

    Clients weigh example b by c_b = min(1, B / ||g_b||, B_psi / ||Psi_b||, B_phi / ||Phi_b||). They can compute all of
    these themselves, so the sensitivities are S_i = 2 B_i / batch. Gaussian noise sigma_i on part i with
    sum_i S_i^2 / sigma_i^2 = mu(epsilon, delta)^2 makes a round (epsilon, delta)-DP for any R, and

        sigma_i^2 = (S_i / w_i) sum_j w_j S_j / mu^2,   w = (1, gamma, v)

    minimises the variance of the recovered gradient. Each client adds its share of the noise, as in tp-smc. Secure
    aggregation hides the single messages; all R are within [1/2, 2].

    Limitation: the model's function is not hidden from clients. They estimate r from their own labelled data and remove
    it, and positive rescaling does not change the function of a ReLU network (docs/decisions.md, 8.11).
    """

    name: ClassVar[str] = "mp-dp+"
    citation: ClassVar[str] = "LeakBoard: a hardened variant of Yang et al. (docs/decisions.md, 8.11 and 9.8)"
    claim: ClassVar[str] = (
        "The server learns only (epsilon, delta)-DP sums; clients see a perturbed model, which hides no function."
    )
    transitional: ClassVar[bool] = False
    spread: ClassVar[float] = 2.0

    # wide bounds cost little if gamma is small: at these values the noise is 1.1 times that of the gradient alone.
    # Relative to cdp there are also the factors sqrt(K / (t - 1)), 1.6 for K = 5, and R, 1.1 on average: 1.9 in total
    clip_psi: float = Field(500.0, gt=0, description="L2 bound of an example's Psi")
    clip_phi: float = Field(1e5, gt=0, description="L2 bound of an example's Phi")
    gamma: float = Field(3e-4, gt=0, le=1, description="largest gamma: the smaller, the less noise and hiding")
    noise: bool = Field(True, description="switch all noise off (for exactness tests)")

    def check(self, public: Public) -> None:
        """Noise needs a bound. The noise on Psi is that of V2, in which the client contracts it."""
        if self.noise and self.clip is None:
            raise UserError("The defense 'mp-dp+' needs clip if its noise is on: S has no bound; given: clip null.")
        if self.variant != "V2":
            raise UserError(f"The defense 'mp-dp+' supports only variant V2; given: {self.variant}.")
        super().check(public)

    # --- clipping --------------------------------------------------------------------------------

    def _first_scale(self, expanded: Expanded) -> float:
        """The scale of gamma is a parameter."""
        return self.gamma

    def clips(self, me: Party) -> bool:
        """Clients compute the norms themselves: no oracle is needed."""
        return self.clip is not None

    def clipped_parts(
        self, me: Party, hidden: Parameters, direction: Tensor | None, images: Tensor, targets: Tensor
    ) -> tuple[Parts | None, Tensor]:
        """c_b from the norms of what the client itself would send for each example."""

        def factors(made: Pass) -> Tensor:
            return self._factors_of(made.norms(keep=True))

        given = (self.expanded(me.public), hidden, direction, images, targets)
        found = train_clipped(*given, factors)
        whole, own = (None, self._factors_of(part_norms(*given))) if found is None else found
        if me.oracle is not None:
            me.oracle.note_clipping(own)
        return whole, own

    def _factors_of(self, norms: Iterable[Tensor]) -> Tensor:
        """c_b (B,) for the norms (B,) of gradient, Psi and Phi."""
        own = [clip_factors(norm, bound).float() for norm, bound in zip(norms, self.bounds(), strict=True)]
        return torch.stack(own).amin(0)

    def record_factors(self, observation: Observation, public: Public, batch: LabelledImages) -> Tensor | None:
        """c_b as a client computes it on the model that the server sent."""
        if self.clip is None:
            return None
        task, sent = task_of(public), next(m.payload for m in observation.messages if m.kind == "model")
        images = task.normalise(batch.images.to(task.dtype))
        targets = torch.nn.functional.one_hot(batch.labels, public.classes).to(images)
        return self._factors_of(part_norms(self.expanded(public), sent["model"], sent["direction"], images, targets))

    def bounds(self) -> tuple[float, float, float]:
        """B, B_psi, B_phi."""
        return (self.clip if self.clip is not None else math.inf, self.clip_psi, self.clip_phi)

    def part_bounds(self) -> tuple[float, float, float]:
        """B, B_psi, B_phi if clipping is on."""
        return super().part_bounds() if self.clip is None else self.bounds()

    # --- noise -------------------------------------------------------------------------------------

    def sigmas(self, public: Public, batch: int) -> dict[str, float]:
        """The noise that the sum needs, by part; the weights are root mean squares for uniform gamma and r^a."""
        if not self.noise:
            return dict.fromkeys(PARTS, 0.0)
        weights = (1.0, self.gamma / math.sqrt(3), self.gamma**2 * public.classes / (3 * math.sqrt(5)))
        sizes = [self.size(batch) * bound / self.bounds()[0] for bound in self.bounds()]
        total = sum(w * s for w, s in zip(weights, sizes, strict=True))
        mu = self.round_mu(public)
        return {p: math.sqrt(s / w * total) / mu for p, s, w in zip(PARTS, sizes, weights, strict=True)}

    def share_sigmas(self, public: Public, batch: int) -> dict[str, float]:
        """One client's share of the noise: divided by sqrt(t - spare)."""
        root = math.sqrt(self.certain_shares(public))
        return {part: sigma / root for part, sigma in self.sigmas(public, batch).items()}

    def noised(self, me: Party, part: str, values: Floats) -> Floats:
        """Client: add Gaussian noise to every value."""
        with me.phase("DP"):
            sigma = self.share_sigmas(me.public, me.context.batch_size)[part]
            return values + sigma * me.stream(f"gaussian {part}").normal(len(values))

    def codecs(self, public: Public, batch: int) -> dict[str, FixedPoint]:
        """44-bit codes for values within the bound and 6 standard deviations (without clipping: 2^20)."""
        sigmas = self.share_sigmas(public, batch)
        bounds = self.bounds() if self.clip is not None else (2.0**20,) * 3
        return {p: FixedPoint(44, bound + 6 * sigmas[p]) for p, bound in zip(PARTS, bounds, strict=True)}

    def clean_parts(self, observation: Observation, public: Public) -> dict[str, CleanParts]:
        """Always empty, even with colluders: there is noise on Psi and Phi as well."""
        return {} if self.noise else super().clean_parts(observation, public)

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """R times the noise of gradient, gamma Psi and v Phi together; averaged over clients in their mean."""
        gradients = self.read(observation, public).gradients if self.noise else {}
        found = {}
        for name, gradient in gradients.items():
            secret = unpack_secret(observation.states[SERVER]["secret"])
            weights = (1.0, float(secret.gamma), float(secret.additive.square().sum()))
            shares = self.share_sigmas(public, observation.context.batch_size).values()
            sigma = math.hypot(*(w * s for w, s in zip(weights, shares, strict=True)))
            found[name] = self.multiplied_noise(observation, public, sigma / math.sqrt(gradient.clients))
        return found

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon; both hold for the server's view."""
        if not self.noise or self.clip is None:
            return {"dp_holds": False, "reason": "noise or clipping is switched off"}
        batch = public.training.batch_size
        sizes = [self.size(batch) * bound / self.bounds()[0] for bound in self.bounds()]
        mu = math.hypot(*(s / sigma for s, sigma in zip(sizes, self.sigmas(public, batch).values(), strict=True)))
        all_noise = math.sqrt(self.fewest_senders(public) / self.certain_shares(public))
        return {
            **self.budget_claims(public, mu),
            **{f"sigma_share_{part}": sigma for part, sigma in self.share_sigmas(public, batch).items()},
            "epsilon_round_by_threat": {"server": gaussian_epsilon(mu / all_noise, self.delta)},
            "epsilon_total_by_threat": {
                "server": composed_epsilon(mu / all_noise, self.compositions(public), self.delta)
            },
            "honest_clients": self.least_honest(public),
            **self.graph_claims(public),
            **self.holds(),
        }
