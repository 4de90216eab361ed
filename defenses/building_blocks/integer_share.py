"""Distributed integer noise under secure aggregation: what ddg and skellam share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import erfc

from leakboard.core.errors import UserError
from leakboard.core.randomness import Stream
from leakboard.defenses.base import Noise, even_noise
from leakboard.defenses.building_blocks.clipped import Clipped
from leakboard.defenses.building_blocks.rotation import padded_size, rotate, unrotate
from leakboard.defenses.building_blocks.secure_sum import SecureSum
from leakboard.defenses.building_blocks.summed_codes import SharedNoise
from leakboard.defenses.building_blocks.vectors import flat, shaped
from leakboard.defenses.crypto.fixed_point import Floats, Integers
from leakboard.defenses.crypto.stand_in import where
from leakboard.defenses.noise.integers import epsilon_of, gaussian_sum_rdp, rounded, rounded_size, skellam_rdp
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation

Law = Literal["discrete Gaussian", "Skellam"]
#: the part of delta for the event that rounding makes a difference larger than the bound that is accounted for
ROUNDING_SHARE = 1e-3
#: Kairouz et al.'s probability that a conditional rounding is drawn again
REDRAWN = math.exp(-0.5)


@dataclass(frozen=True)
class Lattice:
    """One release: vectors of norm c, scaled by s and rounded, with integer noise of which `shares` count.

    `moves` is S, how far neighbours move a vector. `beta` is the probability that rounding moves it further than
    `rounded_size` says. Sums of `clients` vectors live modulo 2^bits, and `deviations` of their standard deviations
    must fit into half of that range.
    """

    law: Law
    dimension: int
    clients: int
    shares: int
    clip: float
    moves: float
    bits: int
    deviations: float
    beta: float

    def scale(self, sigma: float) -> float:
        """s = 1 / gamma, so that 2^bits gamma = 2 k sqrt(c^2 n^2 / d + n (gamma^2 / 4 + sigma^2)).

        sigma is the noise of one client before scaling.
        """
        k, n = self.deviations, self.clients
        spread = math.sqrt((self.clip * n) ** 2 / self.dimension + n * sigma**2)
        return math.sqrt(4.0**self.bits - n * k**2) / (2 * k * spread)

    def rdp(self, sigma: float, shares: int | None = None) -> Floats:
        """Renyi divergences of one release at `ORDERS`, if so many noises remain in the sum."""
        scale, count = self.scale(sigma), shares or self.shares
        one, two = rounded_size(self.moves * scale, self.dimension, self.beta)
        if self.law == "Skellam":
            return skellam_rdp(one, two, count * (scale * sigma) ** 2)
        return gaussian_sum_rdp(one, two, scale * sigma, count, self.dimension)


@lru_cache(maxsize=256)
def calibrated(lattice: Lattice, epsilon: float, times: int, delta: float) -> float | None:
    """The smallest noise of a client for which `times` releases cost epsilon at delta; None if the bits do not suffice.

    As the noise grows, the scale shrinks until rounding alone moves the sum too far.
    """

    def excess(log_sigma: float) -> float:
        return math.log(max(epsilon_of(lattice.rdp(math.exp(log_sigma)), times, delta), 1e-9) / epsilon)

    low, high = math.log(lattice.moves) - 15, math.log(lattice.moves) + 25
    if excess(high) > 0:
        return None
    return math.exp(float(brentq(excess, low, high, xtol=1e-12)))


def wrapped_share(bits: int, totals: Integers) -> float:
    """The share of sums that are outside [-2^(b-1), 2^(b-1)), and so come out wrong.

    >>> wrapped_share(8, np.array([-129, -128, 127, 128]))
    0.5
    """
    return float(np.mean(totals != centred(bits, totals)))


def centred(bits: int, totals: Integers) -> Integers:
    """Sums modulo 2^b, in [-2^(b-1), 2^(b-1))."""
    half = np.int64(1) << np.int64(bits - 1)
    found: Integers = ((totals + half) & (2 * half - 1)) - half
    return found


class IntegerShare(SecureSum, SharedNoise, Clipped):
    """Clipped gradients, rotated, rounded to integers at random and noised with integers; only their sum is opened.

    1. Client: x = s H D g, with g the clipped gradient padded to d = 2^p values, D public signs and H the orthogonal
       Walsh-Hadamard matrix; z = floor(x + u) with u uniform; it masks z + noise modulo 2^b.
    2. Server: the sum modulo 2^b, in [-2^(b-1), 2^(b-1)), divided by s, rotated back, over K.

    t - `spare` clients' noises suffice for the budget, as in tp-smc. `sensitivity: record`: two gradients that differ
    by one record, rounded with the same u, differ by the random rounding of x - x', which has norm S s. So
    `rounded_size` bounds it but for a probability that delta pays for. `sensitivity: client` is Kairouz et al.'s
    setting: z itself is drawn again until it is within the bound.
    """

    law: ClassVar[Law]

    bits: int = Field(16, ge=8, le=32, description="b: the masked sum is modulo 2^b")
    deviations: float = Field(6.0, ge=1, le=20, description="k: how many deviations of the sum fit into half the range")
    value_range: float = Field(8.0, gt=0, description="largest norm of an update if clip is off")

    @abstractmethod
    def integer_noise(self, stream: Stream, sigma: float, count: int) -> Integers:
        """`count` draws of one client's noise, of standard deviation sigma in integers."""

    # --- the release ----------------------------------------------------------------------------

    def ring_bits(self) -> int:
        """b."""
        return self.bits

    def lattice(self, public: Public, batch: int) -> Lattice:
        """The release of one round, with clients' batches of this size."""
        bound = self.clip if self.clip is not None else self.value_range
        beta = self._rounding_delta(public) if self.sensitivity == "record" else REDRAWN
        count, certain = self.code_count(public), self.certain_shares(public)
        given = (bound, self.size(batch), self.bits, self.deviations, beta)
        return Lattice(self.law, count, public.training.per_round, certain, *given)

    def _rounding_delta(self, public: Public) -> float:
        """A record's rounding may exceed its bound in each round that counts: what one of them may take of delta."""
        return ROUNDING_SHARE * self.delta / self.compositions(public)

    def _left_delta(self) -> float:
        """What the noise may take of delta."""
        return self.delta * (1 - ROUNDING_SHARE) if self.sensitivity == "record" else self.delta

    def share_sigma(self, public: Public, batch: int) -> float:
        """The standard deviation of one client's noise, in units of the gradient."""
        if not self.noise:
            return 0.0
        times = self.compositions(public) if self.epsilon_per == "run" else 1
        found = calibrated(self.lattice(public, batch), self.epsilon, times, self._left_delta())
        if found is None:
            raise UserError(
                f"The defense '{self.name}' needs more bits for epsilon {self.epsilon:g} "
                f"in {self.code_count(public)} dimensions; given: bits {self.bits}."
            )
        return found

    def scale(self, public: Public, batch: int) -> float:
        """s: integers per unit of the gradient."""
        return self.lattice(public, batch).scale(self.share_sigma(public, batch))

    def check(self, public: Public) -> None:
        """The range must hold the noise of a batch and of single records."""
        super().check(public)
        if 4.0**self.bits <= 4 * public.training.per_round * self.deviations**2:
            clients = public.training.per_round
            raise UserError(
                f"The defense '{self.name}' needs more bits for {clients} clients; given: bits {self.bits}."
            )
        self.share_sigma(public, public.training.batch_size)

    # --- the client -----------------------------------------------------------------------------

    def code_count(self, public: Public) -> int:
        """d: the number of parameters, padded to a power of two."""
        return padded_size(sum(value.numel() for value in task_of(public).skeleton().parameters()))

    def codes(self, me: Party) -> Integers:
        """Client: clip, rotate, round and noise."""
        gradient, batch = flat(self.clipped_gradient(me)), me.context.batch_size
        sigma, scale = self.share_sigma(me.public, batch), self.scale(me.public, batch)
        with me.phase("Rotate"):
            turned = scale * rotate(gradient, where(me.context))
            found = rounded(me.stream("rounding"), turned, self._longest(me))
        with me.phase("DP"):
            if self.noise:
                found = found + self.integer_noise(me.stream("integer noise"), scale * sigma, len(found))
        if me.oracle is not None:
            measure = partial(wrapped_share, self.bits)
            me.oracle.measure_sum("wrapped_share", where(me.context), found, len(me.participants), measure)
        return found

    def _longest(self, me: Party) -> float:
        """The largest norm of rounded values; no bound where a record is what neighbours differ by."""
        if self.sensitivity == "record" or self.clip is None:
            return math.inf
        batch = me.context.batch_size
        return rounded_size(self.clip * self.scale(me.public, batch), self.code_count(me.public), REDRAWN)[1]

    # --- the server -----------------------------------------------------------------------------

    def decoded(self, public: Public, context: RoundContext, totals: Integers, clients: int) -> Payload:
        """The mean gradient: the sum as a number around zero, scaled and rotated back."""
        like: Parameters = dict(task_of(public).skeleton().named_parameters())
        count = sum(value.numel() for value in like.values())
        values = centred(self.bits, totals) / (self.scale(public, context.batch_size) * clients)
        gradient = shaped(unrotate(values, where(context), count), like)
        return {"gradient": {name: value.to(task_of(public).dtype) for name, value in gradient.items()}}

    def apply(self, me: Party, average: Payload, clients: int) -> None:
        """Server: one step of SGD."""
        self.step(me, average["gradient"], {})

    # --- what others may ask ----------------------------------------------------------------------

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """One share of the noise and of the rounding (variance gamma^2 / 6 on average), over clients in a mean."""
        if not self.noise:
            return {}
        batch = observation.context.batch_size
        share = math.hypot(self.share_sigma(public, batch), 1 / (self.scale(public, batch) * math.sqrt(6)))
        gradients = self.read(observation, public).gradients
        return {name: even_noise(g.values, share / math.sqrt(g.clients)) for name, g in gradients.items()}

    def round_epsilon(self, public: Public) -> float:
        """The epsilon of one round: epsilon itself, or what the noise of the whole training costs in one."""
        return self.epsilon if self.epsilon_per == "round" else self._epsilon(public, 1)

    def _epsilon(self, public: Public, times: int, shares: int | None = None) -> float:
        batch = public.training.batch_size
        rdp = self.lattice(public, batch).rdp(self.share_sigma(public, batch), shares)
        return epsilon_of(rdp, times, self._left_delta())

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed epsilon (K - t colluders) and what each threat gets, all by Renyi accounting."""
        if not self.noise:
            return {"dp_holds": False, "reason": "all noise is switched off"}
        batch, senders, times = public.training.batch_size, self.fewest_senders(public), self.compositions(public)
        share, honest = self.share_sigma(public, batch), self.least_honest(public)
        mu = self.size(batch) / (share * math.sqrt(self.certain_shares(public)))
        found = self.budget_claims(public, mu) | {
            "sigma_share": share,
            "honest_clients": honest,
            **self.graph_claims(public),
            "bits": self.bits,
            "rounding_step": 1 / self.scale(public, batch),
            "noise_over_exact_gaussian": self.round_mu(public) / mu,
            "wrapped_share_expected": float(erfc(self.deviations / math.sqrt(2))),
            **self.holds(),
        }
        if self.clip is None:
            return found
        threats = {"server": senders, "client": senders - 1, "server+keys": senders}
        return found | {
            "epsilon_round_exact": self._epsilon(public, 1),
            "epsilon_run_exact": self._epsilon(public, times),
            "epsilon_round_by_threat": {name: self._epsilon(public, 1, left) for name, left in threats.items()},
            "epsilon_total_by_threat": {name: self._epsilon(public, times, left) for name, left in threats.items()},
        }
