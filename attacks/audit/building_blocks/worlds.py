"""What each client would have sent without noise in each world, as far as the server can compute it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakboard.attacks.audit.building_blocks.evidence import Evidence, flat, is_numbers
from leakboard.attacks.base import AuditTask
from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import AGGREGATE, Defense, Gradient, JointNoise, Reading
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import VICTIM, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation

#: a client and the world that its batch belongs to; 0 for all but the victim
_Place = tuple[str, int]


class Worlds:
    """Compares the two worlds with one trial after another. Only gradients at a model are kept between trials."""

    def __init__(self, defense: Defense, task: AuditTask) -> None:
        self.defense = defense
        self.given = task
        self.public: Public = task.view.public
        self.task = task_of(self.public)
        self.trial: Observation
        self.reading: Reading
        self._model: Parameters = {}
        self._records: dict[_Place, Parameters] = {}
        self._weights: dict[_Place, Tensor | None] = {}
        self._messages: dict[_Place, Payload] = {}

    def look(self, trial: Observation) -> None:
        """Make this the current trial."""
        self.trial, self._weights, self._messages = trial, {}, {}
        (self.reading,) = self.defense.interpret(replace(self.given.view, observations=(trial,)))
        model = self.reading.model
        if model is None or not self.reading.gradients.keys() & {VICTIM, AGGREGATE}:
            threat = self.given.view.threat
            raise Unsupported(f"this view ({threat}) holds neither the victim's gradient nor a mean of it, or no model")
        if not self._model or any(not torch.equal(model[name], value) for name, value in self._model.items()):
            self._model, self._records = model, {}

    @property
    def owner(self) -> str:
        """The name under which the reading holds the victim's batch."""
        return VICTIM if VICTIM in self.reading.gradients else AGGREGATE

    # --- the gradients ----------------------------------------------------------------------

    def gradient(self, *, noise_aware: bool, given_parts: bool = False) -> Evidence:
        """The reading's gradients: the victim's, and all others whose noise is correlated with its noise.

        With `given_parts` the share of the message's other parts is subtracted, so that the rest is independent of them
        (`ModelPerturbation.corrections`).
        """
        owners, joint = [self.owner], JointNoise({}, torch.zeros(0, 0))
        if noise_aware:
            joint = self.defense.joint_noise(self.trial, self.public)
            owners = self._relatives(joint)
        rows = [self._row(owner, given_parts) for owner in owners]
        seen, zero, one = (torch.stack(part) for part in zip(*rows, strict=True))
        if self.owner not in joint.laws:
            return Evidence.alone(seen[0], zero[0], one[0])
        scale = torch.stack([flat(dict(joint.laws[owner].deviation)) for owner in owners])
        places = [list(joint.laws).index(owner) for owner in owners]
        return Evidence(seen, zero, one, scale, joint.correlation.double()[places][:, places])

    def _relatives(self, joint: JointNoise) -> list[str]:
        """The victim's owner first, then all whose noise is correlated with its noise, directly or indirectly."""
        if self.owner not in joint.laws:
            return [self.owner]
        names = [n for n in joint.laws if n == self.owner or (n in self.given.others and n in self.reading.gradients)]
        places = [list(joint.laws).index(name) for name in names]
        ties = joint.correlation[places][:, places] != 0
        found = ties[names.index(self.owner)]
        for _ in names:
            found = ties[found].any(0)
        return [self.owner, *(n for n, near in zip(names, found.tolist(), strict=True) if near and n != self.owner)]

    def _row(self, owner: str, given_parts: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The observed gradient (d,) of an owner, and what it would be without noise in each world."""
        observed = self.reading.gradients[owner]
        rows = [flat(observed.values), *(self._expected(owner, observed, world) for world in (0, 1))]
        if given_parts and isinstance(self.defense, ModelPerturbation):
            body, _ = self.defense.open_updates(self.trial, self.public)[owner]
            bodies = [body, *(self._expected_parts(owner, ["psi", "phi"], world) for world in (0, 1))]
            shares = [self.defense.corrections(self.trial, self.public, b["psi"], b["phi"]) for b in bodies]
            rows = [row - flat(share) for row, share in zip(rows, shares, strict=True)]
        return rows[0], rows[1], rows[2]

    def _expected(self, owner: str, observed: Gradient, world: int) -> Tensor:
        """The gradient (d,) of an owner without noise: the mean over its clients."""
        clients = self._behind(owner, observed.clients)
        return (
            torch.stack([flat(self._update(client, observed, world)) for client in clients]).sum(0) / observed.clients
        )

    def _behind(self, owner: str, count: int) -> list[str]:
        """The clients in an owner's mean. If the others' records are unknown, the victim only: the rest is constant."""
        if owner != AGGREGATE:
            return [owner]
        everyone = list(self.trial.context.participants)
        left = [client for client in everyone if client not in self.reading.gradients]
        found = left if len(left) == count else everyone
        known = len(found) == count and all(client in (VICTIM, *self.given.others) for client in found)
        return found if known else [VICTIM]

    def _batch(self, client: str, world: int) -> LabelledImages:
        return self.given.worlds[world] if client == VICTIM else self.given.others[client]

    def _update(self, client: str, observed: Gradient, world: int) -> Parameters:
        """U(1/B sum_b T(g_b)): a client's update by the defense's own hooks, T on records and U on the mean."""
        rows, factors = self._each(client, world), self._factors(client, world)
        if factors is not None:
            return {n: (v * factors.view(-1, *[1] * (v.ndim - 1))).mean(0) for n, v in rows.items()}
        of_record = self.defense.mimic_records(observed, self.public)
        of_update = self.defense.mimic(observed, self.public)
        means = {name: value.mean(0, keepdim=True) for name, value in (of_record(rows) if of_record else rows).items()}
        return {name: value[0] for name, value in (of_update(means) if of_update else means).items()}

    def _each(self, client: str, world: int) -> Parameters:
        """The gradient of each of a client's records (B, *shape), in float64; cached while the model is the same.

        The network must have no batch norm, so that each record has its own gradient.
        """
        place = _place(client, world)
        if place not in self._records:
            batch = self._batch(client, world)
            rows = [
                self.task.gradient(self._model, image[None], label[None])[0]
                for image, label in zip(batch.images, batch.labels, strict=True)
            ]
            self._records[place] = {name: torch.stack([row[name].double() for row in rows]) for name in rows[0]}
        return self._records[place]

    def _factors(self, client: str, world: int) -> Tensor | None:
        """The factors c_b (B,) of records that are clipped by what the server sent; None if the hooks define them."""
        place = _place(client, world)
        if isinstance(self.defense, ModelPerturbation) and place not in self._weights:
            found = self.defense.record_factors(self.trial, self.public, self._batch(client, world))
            self._weights[place] = None if found is None else found.double()
        return self._weights.get(place)

    # --- the other parts --------------------------------------------------------------------

    def others(self) -> list[Evidence]:
        """All other parts of the update that contains the victim's batch, if they are plain numbers."""
        body, _ = self.defense.open_updates(self.trial, self.public).get(self.owner, ({}, 1))
        names = [name for name, part in body.items() if name != "gradient" and is_numbers(part)]
        if not names:
            return []
        zero, one = (self._expected_parts(self.owner, names, world) for world in (0, 1))
        return [Evidence.alone(flat(body[name]), flat(zero[name]), flat(one[name])) for name in names]

    def _expected_parts(self, owner: str, names: list[str], world: int) -> dict[str, Parameters]:
        """These parts of an owner's update without noise: the mean over its clients."""
        count = self.reading.gradients[owner].clients
        sent = [self._message(client, world) for client in self._behind(owner, count)]
        return {
            part: {name: sum(body[part][name].double() for body in sent) / count for name in sent[0][part]}
            for part in names
        }

    def _message(self, client: str, world: int) -> Payload:
        """What a client would send. If the simulation of an unknown defense draws noise, it always draws the same."""
        place, batch = _place(client, world), self._batch(client, world)
        if place not in self._messages:
            if isinstance(self.defense, ModelPerturbation):
                sent = self.defense.clean_message(self.trial, self.public, batch, self._record_weights(client, world))
                self._messages[place] = dict(sent)
            else:
                received = next(m.payload for m in self.trial.messages if m.kind == "model")
                self._messages[place] = self.defense.simulate(self.public, received, batch.images, batch.labels, 0)
        return self._messages[place]

    def _record_weights(self, client: str, world: int) -> Tensor:
        """The factors c_b (B,) of a client's records; from the hooks if they do not follow from the message."""
        factors = self._factors(client, world)
        if factors is not None:
            return factors
        rows, observed = self._each(client, world), self.reading.gradients[self.owner]
        of_record = self.defense.mimic_records(observed, self.public)
        norms, kept = _norms(rows), _norms(of_record(rows) if of_record else rows)
        return torch.where(norms > 0, kept / norms.clamp(min=1e-300), torch.ones_like(norms))


def _place(client: str, world: int) -> _Place:
    return client, world if client == VICTIM else 0


def _norms(rows: Parameters) -> Tensor:
    """The L2 norms (B,) of gradients (B, *shape)."""
    return torch.stack([value.flatten(1).square().sum(1) for value in rows.values()]).sum(0).sqrt()
