"""Recorded messages instead of parties: with them one party, or one round, runs again alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakboard.federation.party import Message, RoundContext
from leakboard.federation.transcript import Transcript


@dataclass(frozen=True)
class Script:
    """Recorded messages that replace the parties that do not run (see `federation.replay`)."""

    live: frozenset[str]
    transcript: Transcript

    def sent(self, context: RoundContext, step: str, sender: str) -> list[Message]:
        """The messages that `sender` sent in that step of that context."""
        found = [o for o in self.transcript.observations if o.context == context]
        return [m for o in found for m in o.messages if m.step == step and m.sender == sender]

    def answers(self, context: RoundContext, party: str) -> list[torch.Tensor]:
        """The oracle's answers to that party in that context."""
        found = [o for o in self.transcript.observations if o.context == context]
        return [answer for o in found for answer in o.oracle.get(party, [])]
