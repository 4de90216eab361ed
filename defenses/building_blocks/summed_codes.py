"""Base of all defenses whose server learns a sum of integers and no single update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

from pydantic import Field
from torch import Tensor

from leakboard.core.errors import UserError
from leakboard.defenses.base import AGGREGATE, Defense, Gradient, Reading, Transform
from leakboard.defenses.building_blocks.statistics import buffers_after, statistics_names
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

    @abstractmethod
    def counted(self, observation: Observation) -> set[str]:
        """The clients whose updates are in the sum that the server opened, by what it holds; late ones are not."""

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

        Noise that relies on `certain_shares` honest shares besides K - t colluders allows only so many to be missing.
        """
        spare = self.least_honest(public) - self.certain_shares(public)
        least = public.training.per_round - spare if getattr(self, "noise", False) else self.needed(public)
        return clients >= max(self.least_honest(public), least)

    def certain_shares(self, public: Public) -> int:
        """How many honest clients' noises are in every sum that is opened: t - 1, so that one client may be missing."""
        return self.least_honest(public) - 1

    def missing_before_update(self, public: Public) -> dict[int, set[int]]:
        """The clients that are known to drop out before they send their update, by round."""
        steps = [step.name for step in self.protocol()]
        before, found = steps[: steps.index("update") + 1], dict[int, set[int]]()
        for drop in public.training.dropouts:
            if drop.step in before:
                found.setdefault(drop.round, set()).add(drop.client)
        return found

    def fewest_senders(self, public: Public) -> int:
        """The least number of updates in a sum that may be opened, and so of noises: K without those that drop out.

        Some of them may not be among the participants of their round, so fewer than all may be missing. Where clients
        are missing at a rate, any number may be.
        """
        clients = public.training.per_round
        most = max(map(len, self.missing_before_update(public).values()), default=0)
        most = clients if public.training.misses_at_random else most
        opened = (clients - missing for missing in range(1, most + 1) if self.enough(public, clients - missing))
        return min(opened, default=clients)

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
        updates: dict[str, tuple[Payload, int]] = {}
        if "aggregate" in server:
            updates[AGGREGATE] = server["aggregate"]["update"], int(server["aggregate"]["clients"])
        for client, codes in {**self.own_codes(observation, public), **self.opened(observation, public)}.items():
            updates[client] = self.decoded(public, context, codes, 1), 1
        batch = context.batch_size
        gradients = {
            owner: Gradient(self.gradient_of(update, server, public), count, count * batch)
            for owner, (update, count) in updates.items()
        }
        senders = self.counted(observation) if AGGREGATE in updates else set()
        moved = {
            owner: Gradient(update["statistics"], count, count * batch)
            for owner, (update, count) in updates.items()
            if update.get("statistics")
        }
        model, task = plain.model, task_of(public)
        # what is known of single clients is subtracted from the mean statistics as from the mean gradient
        left = {} if model is None else remainder(moved, senders, batch)
        statistics = {owner: buffers_after(task, one.values, model) for owner, one in left.items() if model is not None}
        return Reading(context, model, remainder(gradients, senders, batch), statistics)

    def open_updates(self, observation: Observation, public: Public) -> Mapping[str, tuple[Payload, int]]:
        """The mean update and those that keys or colluders decrypt, which are subtracted from the mean part by part."""
        server, context = observation.states.get(SERVER, {}), observation.context
        if "aggregate" not in server:
            return {}
        mean, count = server["aggregate"]["update"], int(server["aggregate"]["clients"])
        codes = {**self.own_codes(observation, public), **self.opened(observation, public)}
        known = {client: self.decoded(public, context, own, 1) for client, own in codes.items()}
        senders = self.counted(observation)
        found: dict[str, tuple[Payload, int]] = {}
        for part in mean:
            single = {client: Gradient(body[part], 1, context.batch_size) for client, body in known.items()}
            whole = Gradient(mean[part], count, count * context.batch_size)
            for owner, left in remainder({AGGREGATE: whole, **single}, senders, context.batch_size).items():
                found.setdefault(owner, ({}, left.clients))[0][part] = left.values
        return found


class SharedNoise(SummedCodes):
    """Sums with noise of which each client adds a share: t - `spare` of the shares have to suffice."""

    spare: int = Field(
        1, ge=1, le=100_000, description="how many clients may be missing from a noisy sum; more need larger shares"
    )

    def certain_shares(self, public: Public) -> int:
        """t - spare: what is left of K noises if K - t clients collude and `spare` others are missing."""
        return self.least_honest(public) - self.spare

    def check(self, public: Public) -> None:
        """At least one share must be left."""
        super().check(public)
        if self.certain_shares(public) < 1:
            honest = self.least_honest(public)
            raise UserError(
                f"The defense '{self.name}' needs spare to be less than its {honest} honest clients; "
                f"given: {self.spare}."
            )


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
    """One code per parameter, and per batch-norm statistic: the update is the gradient itself."""

    @abstractmethod
    def codec(self, public: Public, batch: int) -> FixedPoint:
        """Fixed point for one client's update on a batch of this size."""

    def code_count(self, public: Public) -> int:
        """One code per parameter and statistic."""
        return sum(value.numel() for value in _sent(public).values())

    def decoded(self, public: Public, context: RoundContext, totals: Integers, clients: int) -> Payload:
        """The mean gradient, in the model's precision, and how the statistics moved where there are any."""
        values, task = self.codec(public, context.batch_size).decode(totals, clients) / clients, task_of(public)
        found = {n: v.to(task.dtype) for n, v in shaped(values, _sent(public)).items()}
        gradient = {name: found.pop(name) for name in task.parameter_names}
        return {"gradient": gradient, "statistics": found} if found else {"gradient": gradient}

    def mimic(self, observed: Gradient, public: Public) -> Transform | None:
        """Each client's gradient is rounded to its codes; with noise before rounding there is nothing to imitate."""
        if getattr(self, "noise", False):
            return None
        codec = self.codec(public, observed.records // observed.clients)
        return lambda gradients: {name: rounding(codec, value) for name, value in gradients.items()}

    def apply(self, me: Party, average: Payload, clients: int) -> None:
        """Server: one step of SGD."""
        moved = average.get("statistics")
        buffers = buffers_after(task_of(me.public), moved, me.state["model"]) if moved else {}
        self.step(me, average["gradient"], buffers)


def _sent(public: Public) -> Parameters:
    """Tensors with the names, order and shapes of all that a client sends: parameters, then statistics."""
    task = task_of(public)
    buffers = dict(task.skeleton().named_buffers())
    return {**dict(task.skeleton().named_parameters()), **{name: buffers[name] for name in statistics_names(task)}}


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
