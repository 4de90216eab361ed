"""Parties and the channel between them: what is sent, logged, kept and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import Party, ProtocolError
from leakboard.federation.replay import differences
from leakboard.federation.settings import SERVER, client_name
from tests.federation.makings import Keyed, Stateful, of_kind, public_of, run, same, sent


class Scripted(FedSGD):
    """FedSGD whose clients do one more thing in `update`."""

    def update(self, me: Party) -> None:
        super().update(me)
        self.more(me)

    def more(self, me: Party) -> None:
        raise NotImplementedError


def test_a_message_to_nobody_is_an_error() -> None:
    class Lost(Scripted):
        """Writes to a client that does not exist."""

        def more(self, me: Party) -> None:
            me.send("client:7", "hello", {})

    with pytest.raises(ProtocolError, match="client:0 sent 'hello' to client:7, which does not exist"):
        run(public_of(), Lost())


def test_a_phase_that_is_no_word_is_an_error() -> None:
    class Wrong(Scripted):
        """Names a phase that could be no part of a column's key."""

        def more(self, me: Party) -> None:
            with me.phase("lunch / dinner"):
                pass

    with pytest.raises(ProtocolError, match=r"a phase is a word of .* given: 'lunch / dinner'"):
        run(public_of(), Wrong())


def test_a_message_that_is_missing_is_an_error() -> None:
    class Waiting(Scripted):
        """Waits for what nobody sends."""

        def more(self, me: Party) -> None:
            me.expect("model", "client:1")

    with pytest.raises(ProtocolError, match=r"client:0 expected 'model' from client:1 but has \['server'\]"):
        run(public_of(), Waiting())


def test_nobody_sends_outside_a_round() -> None:
    party = Party("client:0", public_of(), bytes(32))
    with pytest.raises(ProtocolError, match="client:0 cannot send outside a round"):
        party.send(SERVER, "hello", {})
    with pytest.raises(ProtocolError, match="client:0 cannot send outside a round"):
        party.broadcast((SERVER,), "hello", {})


def test_what_is_changed_after_sending_is_not_changed_in_the_log() -> None:
    class Rewriting(Scripted):
        """Changes what it sent and what it received."""

        def more(self, me: Party) -> None:
            values = {"deep": [torch.zeros(2)]}
            me.send(SERVER, "note", values)
            values["deep"][0].add_(1)
            values["deep"].append(torch.ones(1))
            me.expect("model")["model"]["1.weight"].zero_()

        def aggregate(self, me: Party) -> None:
            for payload in me.received("note").values():
                payload["deep"][0].add_(5)
            super().aggregate(me)

    first = of_kind(run(public_of(rounds=1), Rewriting(), record_all=True), "train")[0]
    plain = of_kind(run(public_of(rounds=1), record_all=True), "train")[0]
    for payload in sent(first, "note").values():
        assert [value.tolist() for value in payload["deep"]] == [[0, 0]]
    assert list(differences(sent(first, "model"), sent(plain, "model"))) == []
    assert list(differences(first.states, plain.states)) == []


def test_a_state_in_the_log_does_not_change_later() -> None:
    outcome = run(public_of(rounds=3), Stateful(), record_all=True)
    residuals = [o.states["client:0"]["residual"].item() for o in of_kind(outcome, "train")]
    assert residuals == [1, 2, 3]


def test_the_inbox_is_emptied_after_each_step() -> None:
    class Counting(FedSGD):
        """The server looks for old updates before it distributes."""

        def distribute(self, me: Party) -> None:
            me.state["old"] = len(me.received("update"))
            super().distribute(me)

        def aggregate(self, me: Party) -> None:
            super().aggregate(me)
            me.state["new"] = len(me.received("update"))

    for observation in of_kind(run(public_of(), Counting(), record_all=True), "train"):
        assert (observation.states[SERVER]["old"], observation.states[SERVER]["new"]) == (0, 2)


def test_parties_of_one_step_cannot_reach_each_other() -> None:
    class Curious(Scripted):
        """Looks wherever a party's attributes lead for what others left or sent."""

        def more(self, me: Party) -> None:
            deliver: Any = me._deliver
            me.state["messages"] = sorted({m.sender for m in deliver.__self__})
            me.state["left"] = sorted(me.public.parameters)
            me.state["on_scheme"] = sorted(key for key in self.__dict__ if key == "mark")
            me.public.parameters[me.name] = 1
            object.__setattr__(self, "mark", 1)

    (observation,) = of_kind(run(public_of((12, 12, 12), rounds=1), Curious(), record_all=True), "train")
    for name in map(client_name, range(3)):
        found = observation.states[name]
        assert found == {"messages": [name], "left": [], "on_scheme": []}


def test_a_third_party_runs_its_steps() -> None:
    outcome = run(public_of(), Keyed())
    setup = outcome.transcript.observations[0]
    assert [(m.sender, m.receiver) for m in setup.messages if m.kind == "share"] == [
        ("authority", "client:0"),
        ("authority", "client:1"),
    ]
    assert setup.keys["client:0"] == {"share": setup.messages[0].payload["share"]}
    assert set(setup.keys) == {"authority", "client:0", "client:1"}


def test_the_final_model_reaches_every_client() -> None:
    public = public_of((8,) * 4, participants=1, batch_size=2)
    outcome = run(public)
    final = outcome.transcript.observations[-1]
    assert final.context.kind == "final"
    assert {m.receiver for m in final.messages} == set(public.clients)
    assert all(same(m.payload["model"], outcome.model) for m in final.messages)
