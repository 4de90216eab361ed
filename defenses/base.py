"""The contract of a defense: steps that run as parties, an honest reading of a view, a client anyone can simulate.

The base class is the whole of FedSGD: the server sends its model, each client sends one gradient, the
server averages and takes a step. A defense overrides the part that it changes; most need only `protect`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from leakboard.core.plugins import Plugin
from leakboard.core.randomness import derive_key
from leakboard.datasets.base import LabelledImages
from leakboard.federation.party import Message, Party, RoundContext, Step
from leakboard.federation.payload import Parameters, Payload, copy_value, size_in_bytes
from leakboard.federation.settings import SERVER, Public, client_name
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View


@dataclass(frozen=True)
class Gradient:
    """A gradient that a view lets its holders compute.

    `clients` is 1 for an individual one and K for the mean over K clients; `records` is how many
    records it averages over in all.
    """

    values: Parameters
    clients: int
    records: int


@dataclass(frozen=True)
class Reading:
    """The honest reading of one observation: the model that was trained on, and gradients by owner.

    Owners are client names; the mean over all participants stands under `AGGREGATE`.
    """

    context: RoundContext
    model: Parameters | None
    gradients: Mapping[str, Gradient]


@dataclass(frozen=True)
class Noise:
    """The noise on a gradient of a reading, as its holders know it: mean 0, independent from value to value.

    `deviation` is the standard deviation of every value. `bound` is given where the noise is uniform: its largest size.
    """

    deviation: Parameters
    bound: Parameters | None = None


@dataclass(frozen=True)
class JointNoise:
    """The noise on several gradients of a reading together: how it goes along from client to client.

    `laws` is the noise of each by owner, `correlation` (n, n), positive definite, in the order of `laws`. Value i of
    owners a and b has Cov = correlation[a, b] deviation_a[i] deviation_b[i]; other pairs of values are independent.
    """

    laws: Mapping[str, Noise]
    correlation: torch.Tensor


AGGREGATE = "aggregate"
#: what a defense does to gradients, on values (N, *shape) of N gradients, each on its own; differentiable
Transform = Callable[[Parameters], Parameters]


class Defense(Plugin):
    """Base of all defenses: plain FedSGD. Override `protect`, or whole steps, or the whole protocol."""

    kind: ClassVar[str] = "defense"
    #: what the scheme promises, in one sentence, for the cards and the docs
    claim: ClassVar[str] = ""

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """What `list --json` prints; for a defense also what it claims."""
        return {**super().describe(), "claim": cls.claim}

    # --- who takes part, and in which steps -------------------------------------------------

    def third_parties(self) -> tuple[str, ...]:
        """Parties beside server and clients, for example a key authority."""
        return ()

    def setup(self) -> Sequence[Step]:
        """Steps before the first round: the server draws the initial model."""
        return (Step("initialise", SERVER, self.initialise),)

    def protocol(self) -> Sequence[Step]:
        """The steps of one round, in order."""
        return (
            Step("distribute", SERVER, self.distribute),
            Step("update", "client", self.update),
            Step("aggregate", SERVER, self.aggregate),
        )

    def closing(self) -> Sequence[Step]:
        """Steps after the last round: the clients get the trained model."""
        return (Step("distribute", SERVER, self.distribute),)

    # --- the steps of plain FedSGD ----------------------------------------------------------

    def initialise(self, me: Party) -> None:
        """Server, once: draw the initial model."""
        seed = int(me.stream("initial model").words(1)[0]) >> 1
        me.state["model"] = task_of(me.public).initial(seed)

    def distribute(self, me: Party) -> None:
        """Server: send the model to this round's clients."""
        me.broadcast(me.participants, "model", {"model": me.state["model"]})

    def update(self, me: Party) -> None:
        """Client: compute the gradient of its batch on the model it got, protect it, send it."""
        assert me.batch is not None
        model = me.expect("model")["model"]
        with me.phase("Train"):
            gradient, buffers = task_of(me.public).gradient(model, me.batch.images, me.batch.labels)
        me.send(SERVER, "update", {"gradient": self.protect(me, gradient), "buffers": buffers})

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: what it sends in place of its gradient. Here: the gradient itself."""
        return gradient

    def aggregate(self, me: Party) -> None:
        """Server: average what arrived and take one step of SGD."""
        updates = list(me.received("update").values())
        if not updates:
            return  # everybody dropped out: the model stays as it is
        with me.phase("Agg"):
            self.step(me, mean([u["gradient"] for u in updates]), mean([u["buffers"] for u in updates]))

    def step(self, me: Party, gradient: Parameters, buffers: Parameters) -> None:
        """Server: m <- mu m + g + wd w; w <- w - lr m (as torch.optim.SGD does); buffers are replaced."""
        training = me.public.training
        model: Parameters = me.state["model"]
        velocity: Parameters = me.state.setdefault(
            "velocity", {name: torch.zeros_like(g) for name, g in gradient.items()}
        )
        for name, value in gradient.items():
            velocity[name] = training.momentum * velocity[name] + value + training.weight_decay * model[name]
            model[name] = model[name] - training.learning_rate * velocity[name]
        model.update(buffers)

    def check(self, public: Public) -> None:
        """Refuse settings that the scheme cannot work with, by a `UserError`; called before anything runs."""

    # --- what others may ask of a defense ---------------------------------------------------

    def global_model(self, server_state: Payload) -> Parameters:
        """The trained model, from the server's state (for the accuracy; no view holds it by this)."""
        model: Parameters = copy_value(server_state["model"])
        return model

    def interpret(self, view: View) -> tuple[Reading, ...]:
        """The honest reading: the models and gradients that the protocol itself lets these parties compute."""
        return tuple(self.read(observation, view.public) for observation in view.observations)

    def read(self, observation: Observation, public: Public) -> Reading:
        """The honest reading of one observation, from its messages."""
        models = [m.payload["model"] for m in observation.messages if m.kind == "model"]
        size = observation.context.batch_size
        gradients = {
            m.sender: Gradient(m.payload["gradient"], 1, size) for m in observation.messages if m.kind == "update"
        }
        return Reading(observation.context, models[0] if models else None, gradients)

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

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """What the scheme does to a client's gradient without drawing anything (pruning, rounding).

        As far as `observed` shows, which may be a mean over several clients. Adaptive attacks do the same to the
        gradients of their candidates, client by client, before they compare. None: nothing.
        """
        return None

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """What the scheme does to each record's own gradient before a client takes the mean (clipping); None: nothing.

        Needs a network without batch norm, where a record has a gradient of its own.
        """
        return None

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """The law of the noise on the gradients that `read` finds, by owner, given all that the observation holds.

        Nothing for gradients without noise.
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

    def deviate(self) -> Self | None:
        """The scheme with a server that deviates to its own advantage where clients check nothing (`server:active`).

        Its messages keep the form that clients expect; their law may differ. None: no such strategy is known.
        """
        return None

    def rehearsal(self) -> Self:
        """A defense that trains the very same model at less cost, for shadow models; here the defense itself."""
        return self

    def claims(self, public: Public) -> dict[str, Any]:
        """What the scheme claims in numbers (epsilon and the like), for the record; nothing by default."""
        return {}


def even_noise(like: Parameters, deviation: float) -> Noise:
    """Noise of the same deviation on every value of a gradient of this form."""
    return Noise({name: torch.full(value.shape, deviation, dtype=torch.float64) for name, value in like.items()})


#: of tensors that are more than `STACKED` values together, only pieces are stacked at once: whole multiples of the
#: widest vector loop that torch adds up with, so that every value is added up in the same order as in the whole
STACKED, PIECE = 2**20, 2**12


def mean(items: Sequence[Parameters]) -> Parameters:
    """The mean of several dicts of tensors, name by name.

    >>> mean([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}])["w"]
    tensor([2.])
    """
    return {name: _mean([item[name] for item in items]) for name in items[0]}


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    """The mean of tensors of one shape; many are stacked piece by piece, which gives the same bits."""
    first, pieces = values[0], values[0].numel() // PIECE
    if len(values) * first.numel() > STACKED and pieces > 1:
        sizes = [PIECE] * (pieces - 1)  # the last one has the remainder as well: by itself it would be added otherwise
        sizes.append(first.numel() - sum(sizes))
        parts = zip(*(torch.split(value.flatten(), sizes) for value in values), strict=True)
        return torch.cat([_mean(list(part)) for part in parts]).view(first.shape)
    stacked = torch.stack(values)
    exact = stacked if first.is_floating_point() else stacked.double()
    return exact.mean(0).to(first.dtype)
