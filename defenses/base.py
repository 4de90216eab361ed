"""The contract of a defense: steps that run as parties, an honest reading of a view, claims in numbers.

The base class is the whole of FedSGD: the server sends its model, each client sends one gradient, the
server averages and takes a step. A defense overrides the part that it changes; most need only `protect`.
What attacks may imitate of a scheme is optional and stands apart, in `defenses/imitation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from pydantic import PrivateAttr

from leakboard.core.errors import UserError
from leakboard.core.plugins import Plugin
from leakboard.defenses.building_blocks.imprint import can_be_imprinted, imprinted
from leakboard.defenses.imitation import Imitation, JointNoise, Noise, Transform, even_noise
from leakboard.defenses.reading import AGGREGATE, Gradient, Reading
from leakboard.federation.local_training import client_update
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
    #: whether the server sends weights by which it reads records out of gradients (`deviate`)
    _imprints: bool = PrivateAttr(False)
    #: whether clients of this class may take local steps; a class with an `update` of its own must say so itself
    takes_local_steps: ClassVar[bool] = True

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
        me.broadcast(me.participants, "model", {"model": self._imprint(me) or me.state["model"]})

    def _imprint(self, me: Party) -> Parameters | None:
        """What a deviating server sends instead of its model; None for an honest one, or if it cannot."""
        return imprinted(task_of(me.public), me.state["model"]) if self._imprints else None

    def deviate(self) -> Self | None:
        """A server that sends imprinted weights (`building_blocks.imprint`), where models are sent in plain.

        It learns nothing from such gradients, so it keeps its first model.
        """
        if type(self).distribute is not Defense.distribute:
            return None
        deviating = self.model_copy()
        deviating._imprints = True
        return deviating

    def deviates_on(self, public: Public) -> bool:
        """An imprint needs a fully connected first layer with a bias."""
        return not self._imprints or can_be_imprinted(task_of(public))

    def update(self, me: Party) -> None:
        """Client: compute the gradient of its batch on the model it got (or the update of its local steps), protect it,
        send it.
        """
        assert me.batch is not None
        model = me.expect("model")["model"]
        with me.phase("Train"):
            gradient, buffers = client_update(task_of(me.public), model, me.batch.images, me.batch.labels)
        me.send(SERVER, "update", {"gradient": self.protect(me, gradient), "buffers": buffers})

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: what it sends instead of its gradient (or update). Here: the gradient itself."""
        return gradient

    def aggregate(self, me: Party) -> None:
        """Server: average what arrived and take one step of SGD."""
        received = me.received("update")
        updates = list(received.values())
        if not updates:
            return  # everybody dropped out: the model stays as it is
        for sender, update in received.items():
            self._check_gradient(sender, update["gradient"], task_of(me.public).parameter_names, me.state["model"])
        with me.phase("Agg"):
            self.step(me, mean([u["gradient"] for u in updates]), mean([u["buffers"] for u in updates]))

    def _check_gradient(self, sender: str, given: object, names: Sequence[str], model: Parameters) -> None:
        """One sentence for an author whose `protect` returns something that cannot be averaged and applied."""
        where = f"The defense '{self.name}': `protect` of {sender}"
        if not isinstance(given, Mapping):
            raise UserError(f"{where} must return a dict of tensors; given: {type(given).__name__}.")
        for name in names:
            wanted, value = tuple(model[name].shape), given.get(name)
            if not isinstance(value, torch.Tensor):
                told = "nothing" if value is None else type(value).__name__
                raise UserError(f"{where} must return a tensor '{name}' of shape {wanted}; given: {told}.")
            if tuple(value.shape) != wanted:
                raise UserError(f"{where} must return '{name}' in shape {wanted}; given: {tuple(value.shape)}.")

    def step(self, me: Party, gradient: Parameters, buffers: Parameters) -> None:
        """Server: m <- mu m + g + wd w; w <- w - lr m (as torch.optim.SGD does); buffers are replaced."""
        if self._imprint(me) is not None:
            return
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
        updates = {m.sender: m.payload for m in observation.messages if m.kind == "update"}
        gradients = {sender: Gradient(sent["gradient"], 1, size) for sender, sent in updates.items()}
        statistics = {sender: sent["buffers"] for sender, sent in updates.items() if sent.get("buffers")}
        return Reading(observation.context, models[0] if models else None, gradients, statistics)

    def claims(self, public: Public) -> dict[str, Any]:
        """What the scheme claims in numbers (epsilon and the like), for the record; nothing by default."""
        return {}


def accepts_local_steps(defense: Defense) -> bool:
    """Whether clients may take local steps: `takes_local_steps` of the class that has the `update`, or of a later one.

    A class with an `update` of its own that says nothing takes none.
    """
    owner = next(c for c in type(defense).__mro__ if {"update", "takes_local_steps"} & vars(c).keys())
    return bool(vars(owner).get("takes_local_steps", False))


def check_local_steps(defense: Defense, public: Public) -> None:
    """Refuse local steps for a defense whose clients compute one gradient by code of their own."""
    if public.training.is_local and not accepts_local_steps(defense):
        raise UserError(
            f"The defense '{defense.name}' sends one gradient per round: local_steps must be 1 and local_learning_rate "
            f"must not be given (a class with its own `update` sets `takes_local_steps`); "
            f"given: {public.training.local_steps} local steps."
        )


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
