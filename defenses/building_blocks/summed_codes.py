"""Base of all defenses whose server learns a sum of integers and no single update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.defenses.base import AGGREGATE, Defense, Gradient, Reading, Transform
from leakboard.defenses.building_blocks.vectors import shaped
from leakboard.defenses.crypto.fixed_point import FixedPoint, Floats, Integers
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation


class SummedCodes(Defense):
    """Clients turn their updates into integers (codes); the server learns the sum of the codes, and nothing else.

    t (`honest`) is the minimum number of honest clients. t_bar = K - t + 1 clients are more than can collude, so what
    they hold together is safe from colluders. With K = 2 that is one client: there are no others to hide among.
    """

    honest: int | None = Field(
        None, ge=2, description="t, the minimum number of honest clients per round; default: more than half"
    )

    # --- what a defense fills in ---------------------------------------------------------------

    @abstractmethod
    def codes(self, me: Party) -> Integers:
        """Client: the codes of its update, in a fixed order."""

    @abstractmethod
    def code_count(self, public: Public) -> int:
        """How many codes an update has."""

    @abstractmethod
    def decoded(self, public: Public, context: RoundContext, totals: Integers, clients: int) -> Payload:
        """The mean update of `clients` clients from the sums of their codes, as a plain message would hold it."""

    @abstractmethod
    def apply(self, me: Party, average: Payload, clients: int) -> None:
        """Server: take the step with the mean update of `clients` clients."""

    def opened(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The codes of single clients that the keys in this observation decrypt, by client; none here."""
        return {}

    def own_codes(self, observation: Observation, public: Public) -> dict[str, Integers]:
        """The codes that the clients in this observation sent themselves, from their states and keys; none here."""
        return {}

    def gradient_of(self, update: Payload, server: Payload, public: Public) -> Parameters:
        """The gradient that the server gets from a decoded update; here it is the gradient itself."""
        found: Parameters = update["gradient"]
        return found

    # --- what follows --------------------------------------------------------------------------

    def least_honest(self, public: Public) -> int:
        """The parameter `honest`, or floor(K / 2) + 1, at least 2."""
        return self.honest or max(2, public.training.per_round // 2 + 1)

    def needed(self, public: Public) -> int:
        """t_bar = K - t + 1: how many clients must help."""
        return public.training.per_round - self.least_honest(public) + 1

    def enough(self, public: Public, clients: int) -> bool:
        """Whether a sum over this many clients may be decrypted: over fewer than t it would reveal too much about each.

        If the noise relies on t - 1 honest shares besides K - t colluders, at most one client may be missing.
        """
        least = public.training.per_round - 1 if getattr(self, "noise", False) else self.needed(public)
        return clients >= max(self.least_honest(public), least)

    def check(self, public: Public) -> None:
        """There must be at least as many clients as are assumed to be honest."""
        least, clients = self.least_honest(public), public.training.per_round
        if least > clients:
            raise UserError(f"The defense '{self.name}' needs at least {least} clients per round; given: {clients}.")
        super().check(public)

    def send_simulated(self, me: Party, codes: Integers) -> None:
        """An outsider has no key: it gets what the encrypted message for its images would contain."""
        me.send(SERVER, "update", self.decoded(me.public, me.context, codes, 1))

    def conclude(self, me: Party, totals: Integers, clients: int) -> None:
        """Server: store the mean update that it now knows, and take the step."""
        average = self.decoded(me.public, me.context, totals, clients)
        me.state["aggregate"] = {"clients": clients, "update": average}
        self.apply(me, average, clients)

    def read(self, observation: Observation, public: Public) -> Reading:
        """The server knows the aggregate; with enough keys it also knows every single update."""
        others = tuple(message for message in observation.messages if message.kind != "update")
        plain = super().read(replace(observation, messages=others), public)
        server = observation.states.get(SERVER)
        if server is None or observation.context.kind not in ("train", "probe"):
            return plain
        context = observation.context
        gradients: dict[str, Gradient] = {}
        if "aggregate" in server:
            count = int(server["aggregate"]["clients"])
            values = self.gradient_of(server["aggregate"]["update"], server, public)
            gradients[AGGREGATE] = Gradient(values, count, count * context.batch_size)
        for client, codes in {**self.own_codes(observation, public), **self.opened(observation, public)}.items():
            update = self.decoded(public, context, codes, 1)
            gradients[client] = Gradient(self.gradient_of(update, server, public), 1, context.batch_size)
        senders = {m.sender for m in observation.messages if m.kind == "update" and m.receiver == SERVER}
        return Reading(context, plain.model, remainder(gradients, senders, context.batch_size))

    def open_updates(self, observation: Observation, public: Public) -> Mapping[str, tuple[Payload, int]]:
        """The mean update and those that keys or colluders decrypt, which are subtracted from the mean part by part."""
        server, context = observation.states.get(SERVER, {}), observation.context
        if "aggregate" not in server:
            return {}
        mean, count = server["aggregate"]["update"], int(server["aggregate"]["clients"])
        codes = {**self.own_codes(observation, public), **self.opened(observation, public)}
        known = {client: self.decoded(public, context, own, 1) for client, own in codes.items()}
        senders = {m.sender for m in observation.messages if m.kind == "update" and m.receiver == SERVER}
        found: dict[str, tuple[Payload, int]] = {}
        for part in mean:
            single = {client: Gradient(body[part], 1, context.batch_size) for client, body in known.items()}
            whole = Gradient(mean[part], count, count * context.batch_size)
            for owner, left in remainder({AGGREGATE: whole, **single}, senders, context.batch_size).items():
                found.setdefault(owner, ({}, left.clients))[0][part] = left.values
        return found


def remainder(gradients: dict[str, Gradient], senders: set[str], batch: int) -> dict[str, Gradient]:
    """The same gradients, with those that are known individually subtracted from the mean over the senders.

    (K mean - sum of the known) / (K - m) is the mean over the others; if there is only one other, it is its own
    gradient.
    """
    total, others = gradients.get(AGGREGATE), senders - gradients.keys()
    known = [gradients[name] for name in senders & gradients.keys()]
    if total is None or not known or not others or len(senders) != total.clients:
        return gradients
    values = {
        name: (total.clients * value.double() - sum(one.values[name].double() for one in known)) / len(others)
        for name, value in total.values.items()
    }
    owner = AGGREGATE if len(others) > 1 else others.pop()
    left = total.clients - len(known)
    return {**gradients, owner: Gradient(values, left, left * batch)}


class SummedGradient(SummedCodes):
    """One code per parameter: the update is the gradient itself."""

    @abstractmethod
    def codec(self, public: Public, batch: int) -> FixedPoint:
        """Fixed point for one client's update on a batch of this size."""

    def code_count(self, public: Public) -> int:
        """One code per parameter."""
        return sum(value.numel() for value in task_of(public).skeleton().parameters())

    def decoded(self, public: Public, context: RoundContext, totals: Integers, clients: int) -> Payload:
        """The mean gradient, in the model's precision."""
        values = self.codec(public, context.batch_size).decode(totals, clients) / clients
        like: Parameters = dict(task_of(public).skeleton().named_parameters())
        return {"gradient": {n: v.to(task_of(public).dtype) for n, v in shaped(values, like).items()}}

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """Each client's gradient is rounded to its codes; with noise before rounding there is nothing to imitate."""
        if getattr(self, "noise", False):
            return None
        codec = self.codec(public, observed.records // observed.clients)
        return lambda gradients: {name: rounding(codec, value) for name, value in gradients.items()}

    def apply(self, me: Party, average: Payload, clients: int) -> None:
        """Server: one step of SGD."""
        self.step(me, average["gradient"], {})


def rounding(codec: FixedPoint, values: Tensor) -> Tensor:
    """Values after encoding and decoding; derivatives ignore the rounding (straight-through).

    >>> import torch
    >>> rounding(FixedPoint(3, 1.5), torch.tensor([0.2, 0.3, 9.0]))
    tensor([0.0000, 0.5000, 1.5000])
    """
    within = values.clamp(-codec.bound, codec.bound)
    exact = within.detach().double()  # the precision in which clients encode
    return within + ((exact / codec.step).round() * codec.step - exact).to(values)


def encoded(me: Party, codec: FixedPoint, values: Floats) -> Integers:
    """Client: the codes of values; the record stores which share of them exceeded the range."""
    if me.oracle is not None and len(values):
        me.oracle.note("saturated_share", codec.saturated(values) / len(values))
    return codec.encode(values)
