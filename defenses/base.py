"""The contract of a defense: steps that run as parties, an honest reading of a view, claims in numbers.

The base class is the whole of FedSGD: the server sends its model, each client sends one gradient, the
server averages and takes a step. A defense overrides the part that it changes; most need only `protect`.
What attacks may imitate of a scheme is optional and stands apart, in `defenses/imitation.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from leakboard.core.plugins import Plugin
from leakboard.defenses.imitation import Imitation, JointNoise, Noise, Transform, even_noise
from leakboard.defenses.reading import AGGREGATE, Gradient, Reading
from leakboard.federation.party import Party, Step
from leakboard.federation.payload import Parameters, Payload, copy_value
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View

__all__ = [
    "AGGREGATE",
    "Defense",
    "Gradient",
    "JointNoise",
    "Noise",
    "Reading",
    "Transform",
    "even_noise",
    "mean",
]


class Defense(Imitation, Plugin):
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
        """Client: what it sends instead of its gradient. Here: the gradient itself."""
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

    def claims(self, public: Public) -> dict[str, Any]:
        """What the scheme claims in numbers (epsilon and the like), for the record; nothing by default."""
        return {}


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
