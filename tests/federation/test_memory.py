"""What a run holds: nothing that grows with the rounds, one message per client, and the transcripts that views need."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
import torch

from leakboard.contract.small import small
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.defenses import fedsgd
from leakboard.defenses.base import Defense
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Message, Party, Step
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import SERVER, VICTIM, ObservedRounds, Public
from leakboard.federation.transcript import Transcript
from leakboard.federation.view import make_view, parse_threat, seeable
from tests.federation.holdings import Held, held_by, tensor_bytes
from tests.federation.makings import Keyed, observe_of, public_of, run, shards_of


def tensors() -> list[torch.Tensor]:
    """All tensors that the garbage collector reaches."""
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]


class Counting(FedSGD):
    """Notes how many bytes of tensors are alive when the server has what it received in its hands."""

    def aggregate(self, me: Party) -> None:
        updates = me.received("update")
        NOTED.append(tensor_bytes([tensor for tensor in tensors() if id(tensor) not in BEFORE]))
        assert len(updates) == len(me.participants)
        super().aggregate(me)


NOTED: list[int] = []
#: tensors of other tests, which this run neither makes nor lets go, whatever a cache does with them meanwhile
BEFORE: dict[int, torch.Tensor] = {}
MESSAGE = 4 * (64 * 8 + 8 + 8 * 3 + 3)  # bytes of the small mlp's gradient


def noted(public: Public, observe: ObservedRounds | None = None) -> list[int]:
    NOTED.clear()
    BEFORE.update({id(tensor): tensor for tensor in tensors()})
    try:
        run(public, Counting(), observe=observe)
    finally:
        BEFORE.clear()
    return list(NOTED)


def held_after(scheme: Defense, first: int, last: int) -> tuple[Held, Held]:
    """What a federation and our modules hold after so many rounds, and after so many more."""
    public = public_of((12, 12), rounds=last)
    found = {first: Held(0, 0), last: Held(0, 0)}  # both places from the start: `note` is held by the federation

    def note(done: int, total: int) -> None:
        if done in found:
            found[done] = held_by(federation)

    federation = Federation(scheme, public, shards_of(public.shard_sizes), None, 0, progress=note)
    federation.run()
    return found[first], found[last]


def test_memory_is_flat_in_the_rounds() -> None:
    """Counted, not measured: not one entry and not one byte of a tensor more after 40 rounds than after 10."""
    before, after = held_after(FedSGD(), 10, 40)
    assert before.entries > 1000
    assert before.tensor_bytes > MESSAGE
    assert after == before


@pytest.mark.parametrize("name", list(registry.entries("defense")))
def test_no_defense_holds_more_with_every_round(name: str) -> None:
    scheme = small(registry.load("defense", name))
    assert isinstance(scheme, Defense)
    before, after = held_after(scheme, 3, 6)
    assert after == before


class Leaky(FedSGD):
    """Keeps something of every round; `place` says where."""

    place: str

    def aggregate(self, me: Party) -> None:
        super().aggregate(me)
        if self.place == "state":
            me.state["times"] = [*me.state.get("times", []), 0.5]
        elif self.place == "module":
            SHELF.append(0.5)
        elif self.place == "tensor":
            me.state["sum"] = torch.cat([me.state.get("sum", torch.zeros(0)), torch.zeros(3)])
        elif self.place == "text":
            me.state["note"] = me.state.get("note", "") + "."
        elif self.place == "clock":
            with me.sample("Agg", 1):
                pass


SHELF: list[float] = []


@pytest.mark.parametrize("place", ["state", "module", "tensor", "text", "clock"])
def test_one_number_or_letter_a_round_is_noticed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedsgd, "SHELF", SHELF, raising=False)  # as if the defense's own module kept it
    before, after = held_after(Leaky(place=place), 10, 40)
    grown = after.tensor_bytes - before.tensor_bytes if place == "tensor" else after.entries - before.entries
    assert grown == 30 * (12 if place == "tensor" else 1)


def test_messages_that_are_never_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = Party.empty_inbox
    seen: list[Message] = []

    def keep(self: Party) -> None:
        seen.extend(self._inbox)
        forget(self)

    monkeypatch.setattr(Party, "empty_inbox", keep)
    before, after = held_after(FedSGD(), 10, 40)
    assert after.tensor_bytes - before.tensor_bytes >= 30 * 2 * MESSAGE
    assert after.entries > before.entries + 30 * 2


def test_tensors_are_flat_in_the_rounds() -> None:
    held = noted(public_of((12, 12), rounds=12))
    assert held[2] == held[-1]


def test_an_unobserved_round_holds_one_message_a_client() -> None:
    few, many = (noted(public_of((12,) * clients, rounds=2))[-1] for clients in (4, 24))
    per_client = (many - few) / 20
    data = 12 * (8 * 8 * 4 + 8)  # its shard, which is there in any case
    assert 0.9 * MESSAGE < per_client - data < 1.5 * MESSAGE


def test_an_observed_round_holds_what_the_log_needs_besides() -> None:
    """The test above can fail: where messages are logged, what the server receives are copies."""
    public = public_of((12,) * 6, rounds=2)
    assert noted(public, observe_of("last"))[-1] - noted(public)[-1] > 6 * MESSAGE


def test_what_is_handed_over_is_nobody_elses() -> None:
    """A receiver that changes what it got changes nothing for others, logged or not."""

    class Careless(FedSGD):
        def aggregate(self, me: Party) -> None:
            super().aggregate(me)
            for body in me.received("update").values():
                for value in body["gradient"].values():
                    value.zero_()

    public = public_of((12, 12, 12))
    plain, careless = (run(public, scheme, observe=observe_of("last")) for scheme in (FedSGD(), Careless()))
    assert all(torch.equal(plain.model[name], careless.model[name]) for name in plain.model)
    last = careless.transcript.observations[-1]
    updates = [m for o in careless.transcript.observations for m in o.messages if m.kind == "update"]
    assert last.context.kind == "final"
    assert updates
    assert all(bool(m.payload["gradient"]["1.weight"].any()) for m in updates)


def test_what_a_broadcast_brings_is_a_copy_for_each() -> None:
    class Greedy(FedSGD):
        def update(self, me: Party) -> None:
            super().update(me)
            for value in me.expect("model")["model"].values():
                value.zero_()

    public = public_of((12, 12, 12))
    plain, greedy = run(public), run(public, Greedy())
    assert all(torch.equal(plain.model[name], greedy.model[name]) for name in plain.model)


# --- what transcripts keep ----------------------------------------------------------------------


class Chatty(Keyed):
    """Clients also greet each other."""

    def protocol(self) -> Sequence[Step]:
        return (Step("greet", "client", self.greet), *super().protocol())

    def greet(self, me: Party) -> None:
        me.broadcast(tuple(name for name in me.participants if name != me.name), "hello", {"from": me.name})


def witnessed(count: int | None) -> Outcome:
    observe = observe_of("first", "last").model_copy(update={"witnesses": count})
    return run(public_of((12,) * 6, participants=4), Chatty(), observe=observe)


def test_witnesses_bound_what_is_kept_and_change_no_number() -> None:
    full, cut = witnessed(None), witnessed(2)
    assert all(torch.equal(full.model[name], cut.model[name]) for name in full.model)
    for whole, part in zip(full.transcript.observations, cut.transcript.observations, strict=True):
        inside = {VICTIM, "client:1"}
        kept = [m for m in whole.messages if {m.sender, m.receiver} & inside or "client" not in m.sender + m.receiver]
        assert [(m.sender, m.receiver, m.kind) for m in part.messages] == [(m.sender, m.receiver, m.kind) for m in kept]
        assert set(part.states) == {n for n in whole.states if n in inside or not n.startswith("client")}
        assert set(part.keys) == set(whole.keys)


def test_the_victims_message_is_the_same_with_few_witnesses() -> None:
    def updates(outcome: Outcome) -> list[torch.Tensor]:
        messages = [m for o in outcome.transcript.observations for m in o.messages]
        return [m.payload["gradient"]["1.weight"] for m in messages if (m.sender, m.kind) == (VICTIM, "update")]

    full, cut = updates(witnessed(None)), updates(witnessed(2))
    assert len(full) == len(cut) > 0
    assert all(torch.equal(one, other) for one, other in zip(full, cut, strict=True))


def test_collusion_needs_all_messages() -> None:
    observe = ObservedRounds(witnesses=3)
    observe.check_threat("server")
    observe.check_threat("server+keys")
    observe.check_threat("client")
    with pytest.raises(UserError, match=r"server\+clients:2"):
        observe.check_threat("server+clients:2")
    ObservedRounds().check_threat("server+clients:2")


def test_settings_without_witnesses_are_written_as_before() -> None:
    assert "witnesses" not in ObservedRounds().model_dump(mode="json")
    assert ObservedRounds(witnesses=4).model_dump(mode="json")["witnesses"] == 4
    assert ObservedRounds.model_validate(ObservedRounds(witnesses=4).model_dump(mode="json")).witnesses == 4


@pytest.mark.parametrize("threat", ["server", "server+keys", "server+clients:2", "client"])
def test_what_is_stored_is_all_that_a_view_needs(threat: str) -> None:
    outcome = run(public_of((12,) * 3), Chatty(), observe=observe_of("last"))
    stored = Transcript(tuple(seeable(o) for o in outcome.transcript.observations))
    chosen = parse_threat(threat, 3)
    views = [
        make_view(t, chosen, outcome.public, outcome.secrets, {}).observations for t in (outcome.transcript, stored)
    ]
    for whole, part in zip(*views, strict=True):
        assert whole.messages == part.messages or [id(m.payload) for m in whole.messages] == [
            id(m.payload) for m in part.messages
        ]
        assert whole.states.keys() == part.states.keys()
        assert whole.keys.keys() == part.keys.keys()


def test_what_nobody_can_attack_with_is_not_stored() -> None:
    outcome = run(public_of((12,) * 3), Chatty(), observe=observe_of("last"))
    whole = outcome.transcript.observations
    stored = [seeable(o) for o in whole]
    assert any(VICTIM in o.states and "authority" in o.states for o in whole)
    assert not any({VICTIM, "authority"} & set(o.states) for o in stored)
    shares = [m for o in whole for m in o.messages if m.kind == "share"]
    assert {m.receiver for m in shares} == {VICTIM, "client:1", "client:2"}
    assert {m.receiver for o in stored for m in o.messages if m.kind == "share"} == {"client:1", "client:2"}
    assert any(SERVER in o.states for o in stored)
