"""The model as it was received, which a curious client has without any effort."""

from __future__ import annotations

from typing import ClassVar

from leakboard.attacks.base import ExtractionAnswer, ExtractionAttack, ExtractionTask, Knowledge
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Reading
from leakboard.federation.payload import copy_value


class ReceivedModel(ExtractionAttack):
    """The model that the honest reading of the view holds; the control of extraction.

    A client that took no part in the round returns the newest model that it received before, and a flag says so.
    """

    name: ClassVar[str] = "received-model"
    citation: ClassVar[str] = "Definition: the protocol's own messages; no attack at all"

    def extract(self, knowledge: Knowledge, task: ExtractionTask) -> ExtractionAnswer:
        """The model of the round's first probe, or else the newest one before it (readings are in order)."""
        held = [r for r in knowledge.readings() if r.model is not None and _until(r, task)]
        if not held:
            raise Unsupported(f"this view ({knowledge.view.threat}) holds no model up to round {task.round_index}")
        newest = held[-1]
        assert newest.model is not None
        if not all(bool(value.isfinite().all()) for value in newest.model.values()):
            raise Unsupported("the received model holds values that are not finite: the training diverged")
        fresh = newest.context.kind == "probe" and newest.context.round == task.round_index
        flags = () if fresh else (f"no model of round {task.round_index} in the view: {_place(newest)} is given",)
        return ExtractionAnswer(copy_value(newest.model), flags)


def _until(reading: Reading, task: ExtractionTask) -> bool:
    """Whether a reading is of the first probe of the task's round or earlier; later probes are not used."""
    o = reading.context
    return o.kind != "final" and o.round <= task.round_index and not o.probe


def _place(reading: Reading) -> str:
    o = reading.context
    return f"that before the step of round {o.round}" if o.kind == "train" else f"that after round {o.round}"
