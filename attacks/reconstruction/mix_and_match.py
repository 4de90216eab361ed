"""Mix-and-match: one functional key of HybridAlpha, as specified, decrypts every single update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionAttack, ReconstructionTask
from leakboard.attacks.building_blocks.runs_another import RunsAnother
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.building_blocks.vectors import shaped
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.defenses.crypto.stand_in import to_words
from leakboard.defenses.hybridalpha import ELEMENT, HybridAlpha
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import VICTIM, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation


def differences(defense: HybridAlpha, observation: Observation, public: Public, client: str) -> Integers:
    """x[j] - x[0] for all codes x (d,) of one client, from the server's own messages.

    A client's slot key is the same for all coordinates. So the key for the plain sum decrypts any ciphertext of a
    client together with any ciphertexts of the others. The client's j-th ciphertext with the others' first ones gives
    x[j] + c, c = sum over the others of x_k[0], and c cancels in the difference. The stand-in cipher (`crypto:
    sampled`) reveals exactly the same: the client's single pad cancels.
    """
    updates: dict[str, Payload] = {m.sender: m.payload for m in observation.messages if m.kind == "update"}
    keys = [m.payload for m in observation.messages if m.kind == "functional_key"]
    if client not in updates or not keys:
        raise Unsupported(f"{client} sent no update in this round, or the authority issued no key for its sum")
    missing = len(observation.context.participants) - len(updates)
    if missing and defense.crypto != "sampled":
        raise Unsupported(f"the key needs the ciphertexts of all clients; the view lacks those of {missing} clients")
    if defense.crypto == "sampled":
        words = to_words(updates[client]["sealed"])
        found: Integers = (words - words[0]).astype(np.int64)
    else:
        count = defense.code_count(public)
        mixture = {name: body["ciphertexts"][: 2 * ELEMENT] * count for name, body in updates.items()}
        totals = defense.decrypted(public, keys[0], {**mixture, client: updates[client]["ciphertexts"]})
        found = totals - totals[0]
    return found


def isolated(defense: HybridAlpha, observation: Observation, public: Public, client: str) -> Parameters:
    """One client's gradient with its noise, up to a constant. The constant is guessed so that the median becomes 0.

    A ReLU network has units that are off, so many values of a gradient are 0, and noise is symmetric.
    """
    task = task_of(public)
    step = defense.codec(public, observation.context.batch_size).step
    values = differences(defense, observation, public, client) * step
    like: Parameters = dict(task.skeleton().named_parameters())
    return {name: value.to(task.dtype) for name, value in shaped(values - np.median(values), like).items()}


@dataclass(frozen=True)
class _Isolated(ReconstructionTask):
    """A task with the given problems instead of those of the honest reading."""

    found: tuple[Inversion, ...] = ()

    def problems(self, knowledge: Knowledge) -> tuple[Inversion, ...]:
        """One problem per probe and client."""
        return self.found


class MixAndMatch(RunsAnother, ReconstructionAttack):
    """Extract every client's update from the sum that one key may decrypt, and invert each with another attack.

    HybridAlpha reuses a client's slot key for all coordinates (`keys: shared`), so the key of the plain sum decrypts
    mixtures of ciphertexts. These give x_k[j] - x_k[0] for every client k: its update up to one constant. The
    authority's inference prevention sees only one proper request. The updates carry the clients' own noise, so the
    result equals that of `server+keys`. The answer holds the records of all clients.
    """

    name: ClassVar[str] = "mix-and-match"
    citation: ClassVar[str] = "Abdalla et al., CRYPTO 2018 (what unlabelled keys tell); against Xu et al., AISec 2019"
    threats: ClassVar[tuple[str, ...]] = ("server", "server+clients")
    can_adapt: ClassVar[bool] = True

    attack: str = Field("inverting-gradients", min_length=1, description="the attack that inverts single updates")

    @property
    def adaptive(self) -> bool:
        """Always true: the attack uses the keys of the scheme."""
        return True

    def refuses(self, defense: Defense) -> str:
        """Only keys that decrypt more than one sum can be mixed."""
        if not isinstance(defense, HybridAlpha):
            return f"'{defense.name}' has no functional keys: there is nothing to mix"
        return "" if defense.keys == "shared" else "each coordinate and round has its own pad: a key decrypts one sum"

    def reconstruct(self, knowledge: Knowledge, task: ReconstructionTask) -> ReconstructionAnswer:
        """Isolate, invert, and join the clients' records of each probe, the victim's first."""
        defense = knowledge.defense
        if reason := self.refuses(defense):
            raise Unsupported(reason)
        assert isinstance(defense, HybridAlpha)
        found: list[Inversion] = []
        shares: list[int] = []
        for observation in knowledge.view.of_kind("probe", task.round_index):
            place = task.place(observation.context)
            if place is None:
                continue
            problems = self._problems(knowledge, task, observation, place)
            shares.append(len(problems))
            found += problems
        size = task.probe_batch
        sizes = (size,) * len(found)
        asked = _Isolated(
            task.moment, task.round_index, len(found), size, None, sizes, first=task.first, found=tuple(found)
        )
        inner = self.inner()
        assert isinstance(inner, ReconstructionAttack)
        answer = inner.reconstruct(knowledge, asked)
        images = iter(answer.images)
        joined = tuple(torch.cat([next(images) for _ in range(share)]) for share in shares)
        flags = (*answer.flags, f"ran {self.attack} on every client's update, known up to one constant")
        return replace(answer, images=joined, flags=flags, labels=None)  # labels of several clients are not scored

    def _problems(
        self, knowledge: Knowledge, task: ReconstructionTask, observation: Observation, place: int
    ) -> list[Inversion]:
        """One problem per client of a probe, the victim's first."""
        assert isinstance(knowledge.defense, HybridAlpha)
        model = knowledge.defense.read(observation, knowledge.public).model
        assert model is not None
        senders = sorted(
            {m.sender for m in observation.messages if m.kind == "update"}, key=lambda name: (name != VICTIM, name)
        )
        found = []
        for client in senders:
            values = isolated(knowledge.defense, observation, knowledge.public, client)
            told = task.known_labels[place] if task.known_labels is not None and client == VICTIM else None
            found.append(Inversion.of(knowledge.public, model, Gradient(values, 1, task.probe_batch), told))
        return found
