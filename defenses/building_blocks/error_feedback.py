"""Compressed updates whose errors are sent later (error feedback): what sign and top-k share."""

from __future__ import annotations

from abc import abstractmethod

from pydantic import Field
from torch import Tensor

from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.finite import or_zero
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import SERVER
from leakboard.federation.task import task_of


class ErrorFeedback(Defense):
    """A client sends C(g + e) and keeps the error e <- g + e - C(g + e) for its next round.

    So over the rounds nothing of its gradients is lost, only delayed. `feedback: false` forgets the error.

    An attacker does not know e, so it imitates C(g) instead of C(g + e). Probes run after the training step of their
    round: e is never empty in them, not even in the first round. `feedback: false` removes this protection.
    """

    feedback: bool = Field(True, description="keep what compression left out, and add it to the next gradient")

    @abstractmethod
    def compressed(self, value: Tensor) -> Tensor:
        """C of one layer's tensor."""

    @abstractmethod
    def wire_bytes(self, sent: Parameters) -> int:
        """The bytes that a compressed gradient takes on the wire."""

    def update(self, me: Party) -> None:
        """Client: compress its gradient and what was left of former ones, and send it."""
        assert me.batch is not None
        model = me.expect("model")["model"]
        with me.phase("Train"):
            gradient, buffers = task_of(me.public).gradient(model, me.batch.images, me.batch.labels)
        with me.phase("Compress"):
            sent = self.protect(me, gradient)
        size = self.wire_bytes(sent) + sum(value.nbytes for value in buffers.values())
        me.send(SERVER, "update", {"gradient": sent, "buffers": buffers}, size=size)

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: C(g + e); a gradient that is not finite counts as zero, so that it cannot stay in e for ever."""
        before: Parameters = me.state.get("error", {})
        whole = {name: value + before[name] if before else value for name, value in or_zero(gradient).items()}
        sent = {name: self.compressed(value) for name, value in whole.items()}
        if self.feedback:
            me.state["error"] = {name: value - sent[name] for name, value in whole.items()}
        return sent
