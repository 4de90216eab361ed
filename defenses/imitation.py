"""The optional half of a defense: hooks by which attacks imitate the scheme, as its author states it.

Every hook has a default that says "nothing special", so a defense works without any of them. Attacks ask these hooks
and never look at a defense's parameters: one scheme's `clip` bounds a record's gradient, another's a whole update.
What an attack can do with each:

| hook | who asks | what happens without it |
|---|---|---|
| `mimic_records`, `mimic` | adaptive attacks, membership in a batch, audits | candidates are compared unchanged |
| `noise_scale` | attacks that weigh values by their noise | all values count alike |
| `joint_noise` | audits | clients' noises are taken for independent |
| `noise_over_rounds` | attacks that combine rounds | rounds have independent noise |
| `open_updates` | audits | the clients' own messages are read |
| `simulate` | anybody who wants a client's message | runs `update` as a client would |
| `rehearsal` | shadow models | the defense itself is run |
| `deviate`, `deviates_on` | the threat `server:active` | imprinted weights if the model is plain, else skipped |

`leakboard.contract.imitation` checks every hook that a defense overrides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch

from leakboard.core.randomness import derive_key
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.reading import AGGREGATE, Gradient
from leakboard.federation.party import Message, Party, RoundContext
from leakboard.federation.payload import Parameters, Payload, copy_value, size_in_bytes
from leakboard.federation.settings import SERVER, Public, client_name
from leakboard.federation.transcript import Observation

#: what a defense does to gradients, on values (N, *shape) of N gradients, each on its own; differentiable
Transform = Callable[[Parameters], Parameters]


@dataclass(frozen=True)
class Noise:
    """The noise on a gradient of a reading, as its holders know it: mean 0, independent from value to value.

    `deviation` is the standard deviation of every value. `bound` is given where the noise is uniform: its largest size.
    """

    deviation: Parameters
    bound: Parameters | None = None


@dataclass(frozen=True)
class JointNoise:
    """The noise on several gradients of a reading together: how it is correlated between clients.

    `laws` is the noise of each by owner, `correlation` (n, n), positive definite, in the order of `laws`. Value i of
    owners a and b has Cov = correlation[a, b] deviation_a[i] deviation_b[i]; other pairs of values are independent.
    """

    laws: Mapping[str, Noise]
    correlation: torch.Tensor


def even_noise(like: Parameters, deviation: float) -> Noise:
    """Noise of the same deviation on every value of a gradient of this form.

    >>> even_noise({"w": torch.zeros(2)}, 0.5).deviation["w"]
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return Noise({name: torch.full(value.shape, deviation, dtype=torch.float64) for name, value in like.items()})


class Imitation(ABC):
    """What a defense lets others imitate; `Defense` inherits it, and a plugin overrides the hooks that it needs."""

    @abstractmethod
    def update(self, me: Party) -> None:
        """Client: compute and send its update (`Defense.update`)."""

    # --- what happens to gradients ------------------------------------------------------------

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """What the scheme does to a client's gradient without drawing anything (pruning, rounding).

        As far as `observed` shows, which may be a mean over several clients. Adaptive attacks do the same to the
        gradients of their candidates, client by client, before they compare. None: nothing. For values that are
        clamped to [-1, 1]:

            return lambda gradients: {name: value.clamp(-1, 1) for name, value in gradients.items()}
        """
        return None

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """What the scheme does to each record's own gradient before a client takes the mean (clipping); None: nothing.

        Needs a network without batch norm, where a record has a gradient of its own. For a norm of at most `self.clip`:

            return clipping(self.clip)  # leakboard.defenses.noise.budget
        """
        return None

    # --- the noise on them --------------------------------------------------------------------

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """The law of the noise on the gradients that `read` finds, by owner, given all that the observation holds.

        Nothing for gradients without noise. For N(0, s^2) on every value of every client's gradient:

            return {owner: even_noise(g.values, s) for owner, g in self.read(observation, public).gradients.items()}
        """
        return {}

    def joint_noise(self, observation: Observation, public: Public) -> JointNoise:
        """The noise on all gradients that `read` finds together. Override it where messages share noise.

        Here: the laws of `noise_scale`, clients independent of each other. A mean over clients that are all known by
        themselves is left out, because it holds nothing new; any other mean is taken for one over other clients.
        """
        laws = dict(self.noise_scale(observation, public))
        if laws.keys() >= {AGGREGATE, *observation.context.participants}:
            del laws[AGGREGATE]
        return JointNoise(laws, torch.eye(len(laws), dtype=torch.float64))

    def noise_over_rounds(self, public: Public, batch: int) -> torch.Tensor | None:
        """How the noise on the mean gradient of each round follows from independent draws of deviation 1.

        M (rounds + 1, draws) if clients have batches of this size: n_t = sum_i M[t, i] z_i for every value of the mean,
        with the same z for all batch sizes. The last row is for a round after the last, as probes are. None: the noise
        of a round says nothing about that of another.
        """
        return None

    # --- messages -----------------------------------------------------------------------------

    def open_updates(self, observation: Observation, public: Public) -> Mapping[str, tuple[Payload, int]]:
        """The updates that these parties can read, by owner as in `read`: all parts, and over how many clients a mean.

        Here: the clients' own messages.
        """
        return {m.sender: (m.payload, 1) for m in observation.messages if m.kind == "update"}

    def simulate(
        self, public: Public, own_state: Payload, images: torch.Tensor, labels: torch.Tensor, seed: int
    ) -> Payload:
        """The message that a client would send for these images (N, C, H, W) and labels (N,).

        What any outsider can run: it needs the public settings and `own_state`, the content of the `model`
        message that a client gets, and touches no other party's state. Randomness comes from `seed`.
        """
        sent: list[Message] = []
        secret = derive_key(seed.to_bytes(16, "little", signed=True), "simulate")
        me = Party(client_name(0), public, secret)
        me.context = RoundContext(0, None, "train", public.clients[: public.training.per_round], len(labels))
        me.batch = LabelledImages(images, labels)
        body: Payload = copy_value(own_state)
        me._inbox.append(Message("distribute", SERVER, me.name, "model", body, size_in_bytes(body)))
        me._step, me._deliver = "update", sent.append
        self.update(me)
        return sent[-1].payload

    def simulates_exactly(self) -> bool:
        """Whether a simulated message has the law of a real one.

        False where a client uses something that an outsider lacks, such as an oracle's norms. An attack then computes
        gradients by `mimic_records`, `mimic` and `noise_scale` instead.
        """
        return True

    # --- whole runs ---------------------------------------------------------------------------

    def deviate(self) -> Self | None:
        """The scheme with a server that deviates to its own advantage where clients check nothing (`server:active`).

        Its messages keep the form that clients expect; their law may differ. None: no such strategy is known.
        """
        return None

    def deviates_on(self, public: Public) -> bool:
        """Whether what `deviate` gave makes a difference on this network; otherwise `server:active` is skipped."""
        return True

    def rehearsal(self) -> Self:
        """A defense that trains the very same model at less cost, for shadow models; here the defense itself."""
        return self
