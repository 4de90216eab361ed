from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.core.randomness import derive_key, run_secret
from leakboard.defenses.base import mean
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Message, Party, Step
from leakboard.federation.payload import Parameters, size_in_bytes
from leakboard.federation.replay import differences
from leakboard.federation.rounds import Federation, own_copy
from leakboard.federation.settings import SERVER, Public, client_name
from leakboard.federation.task import task_of
from tests.federation.makings import (
    Keyed,
    Stateful,
    flat,
    observe_of,
    of_kind,
    public_of,
    rows,
    run,
    same,
    sent,
    shards_of,
)


class Telling(FedSGD):
    """Clients also tell the server which records they took."""

    def update(self, me: Party) -> None:
        super().update(me)
        assert me.batch is not None
        me.send(SERVER, "batch", {"images": me.batch.images, "labels": me.batch.labels})


def initial(outcome: Outcome) -> Parameters:
    model: Parameters = outcome.transcript.observations[0].states[SERVER]["model"]
    return model


def contents(outcome: Outcome) -> list[Any]:
    """The whole transcript as plain values."""
    return [
        {
            "context": [str(o.context)],
            "messages": [[m.step, m.sender, m.receiver, m.kind, m.payload, m.size] for m in o.messages],
            "states": o.states,
            "keys": o.keys,
        }
        for o in outcome.transcript.observations
    ]


# --- learning -----------------------------------------------------------------------------------


def test_the_servers_step_is_torchs_sgd() -> None:
    # prepare
    public = public_of(rounds=8, learning_rate=0.05, momentum=0.9, weight_decay=0.01)
    outcome = run(public, record_all=True)
    weights = {name: value.clone().requires_grad_() for name, value in initial(outcome).items()}
    optimiser = torch.optim.SGD(weights.values(), lr=0.05, momentum=0.9, weight_decay=0.01)
    # execute: the recorded gradients through torch's own optimiser
    for observation in of_kind(outcome, "train"):
        for name, gradient in mean([u["gradient"] for u in sent(observation, "update").values()]).items():
            weights[name].grad = gradient
        optimiser.step()
    # assert
    assert not same(initial(outcome), outcome.model)
    for name, value in weights.items():
        torch.testing.assert_close(outcome.model[name], value.detach(), atol=1e-6, rtol=0)


def test_the_mean_of_the_clients_gradients_is_the_gradient_of_all_their_records() -> None:
    public = public_of((12, 12, 12))
    outcome = run(public, Telling(), record_all=True)
    first = of_kind(outcome, "train")[0]
    batches = sent(first, "batch").values()
    average = mean([u["gradient"] for u in sent(first, "update").values()])
    union, _ = task_of(public).gradient(
        initial(outcome), torch.cat([b["images"] for b in batches]), torch.cat([b["labels"] for b in batches])
    )
    assert len(batches) == 3
    assert flat(union).norm() > 0.01
    torch.testing.assert_close(flat(average), flat(union), atol=1e-6, rtol=0)


def test_training_learns() -> None:
    public = public_of(rounds=40, batch_size=12, learning_rate=0.05)
    outcome = run(public)
    task, shards = task_of(public), shards_of(public.shard_sizes)
    start = run(public, record_all=True).transcript.observations[0].states[SERVER]["model"]
    losses = [
        sum(task.loss(task.predict(model, s.images), s.labels).item() for s in shards.values())
        for model in (start, outcome.model)
    ]
    assert losses[1] < 0.5 * losses[0]


def test_batch_norm_statistics_are_averaged() -> None:
    public = public_of(rounds=2, model="resnet8", model_parameters={"width": 2, "norm": "batch"})
    outcome = run(public, record_all=True)
    last = of_kind(outcome, "train")[-1]
    expected = mean([u["buffers"] for u in sent(last, "update").values()])
    assert expected
    assert all(torch.equal(outcome.model[name], value) for name, value in expected.items())
    assert not torch.equal(outcome.model["0.1.running_mean"], initial(outcome)["0.1.running_mean"])


# --- who takes part with what -------------------------------------------------------------------


def test_batches_are_epoch_by_epoch_without_replacement() -> None:
    # prepare: 10 // 3 = 3 batches per epoch for client 0, 14 // 3 = 4 for client 1
    public = public_of((10, 14), rounds=12, batch_size=3)
    shards = shards_of(public.shard_sizes)
    rounds = of_kind(run(public, Telling(), record_all=True), "train")
    for name, length in (("client:0", 3), ("client:1", 4)):
        taken = [[image.numpy().tobytes() for image in sent(o, "batch")[name]["images"]] for o in rounds]
        epochs = [[record for batch in taken[i : i + length] for record in batch] for i in range(0, 12, length)]
        # every record at most once per epoch, all of them the client's own, in another order each time
        assert all(len(set(epoch)) == len(epoch) == 3 * length for epoch in epochs)
        assert {record for epoch in epochs for record in epoch} <= rows(shards[name])
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_k_of_n_take_part_by_the_seed() -> None:
    public = public_of((8,) * 5, rounds=30, participants=2, batch_size=2)
    chosen = [o.context.participants for o in of_kind(run(public, record_all=True), "train")]
    again = [o.context.participants for o in of_kind(run(public, Keyed(), record_all=True), "train")]
    other = [o.context.participants for o in of_kind(run(public, record_all=True, seed=1), "train")]
    assert all(len(set(names)) == 2 and list(names) == sorted(names) for names in chosen)
    assert {name for names in chosen for name in names} == set(public.clients)
    assert chosen == again  # the same for all defenses
    assert chosen != other


def test_only_participants_send() -> None:
    public = public_of((8,) * 5, rounds=6, participants=2, batch_size=2)
    for observation in of_kind(run(public, record_all=True), "train"):
        assert tuple(sent(observation, "update")) == observation.context.participants
        receivers = {m.receiver for m in observation.messages if m.kind == "model"}
        assert receivers == set(observation.context.participants)


@pytest.mark.parametrize("seed", range(5))
def test_the_victim_takes_part_in_observed_rounds(seed: int) -> None:
    public = public_of((8,) * 5, rounds=9, participants=1, batch_size=2)
    outcome = run(public, observe=observe_of(), seed=seed, record_all=True)
    by_round = {o.context.round: o.context.participants for o in of_kind(outcome, "train")}
    assert all(by_round[index] == ("client:0",) for index in (0, 4, 8))
    assert {names for index, names in by_round.items() if index not in (0, 4, 8)} - {("client:0",)}


def test_all_defenses_draw_the_same_records() -> None:
    class TellingState(Telling, Stateful):
        """Another defense that tells."""

    public = public_of(rounds=4)
    first, second = (run(public, scheme, observe=observe_of("last")) for scheme in (Telling(), TellingState()))
    pairs = list(zip(first.transcript.observations, second.transcript.observations, strict=True))
    told = [(sent(a, "batch"), sent(b, "batch")) for a, b in pairs if sent(a, "batch")]
    assert len(told) == 3  # one training round and two probes
    assert all(list(differences(a, b)) == [] for a, b in told)


def test_the_victim_s_batches_of_observed_rounds_are_noted() -> None:
    public = public_of((12, 10, 11), rounds=7)
    outcome = run(public, Telling(), observe=observe_of())
    shard = shards_of(public.shard_sizes)["client:0"]
    observed = of_kind(outcome, "train")
    assert list(outcome.batches) == [0, 3, 6] == [o.context.round for o in observed]
    for observation in observed:
        told = sent(observation, "batch")["client:0"]["images"]
        assert torch.equal(shard.images[outcome.batches[observation.context.round]], told)


# --- probes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("probe_batch", [1, 2])
def test_a_probe_changes_nothing(probe_batch: int) -> None:
    public = public_of(rounds=5, momentum=0.9)
    with_probes = run(public, Stateful(), observe=observe_of(targets=4, probe_batch=probe_batch), record_all=True)
    without = run(public, Stateful(), observe=None, record_all=True)
    # assert: the model, and everything that anybody sent and held, but for the probes themselves
    assert same(with_probes.model, without.model)
    plain = [o for o in contents(with_probes) if "'probe'" not in o["context"][0]]
    assert len(contents(with_probes)) - len(plain) == 3 * 4
    assert list(differences(plain, contents(without))) == []
    assert with_probes.bytes_by_kind == without.bytes_by_kind


def test_each_probe_starts_from_the_state_after_the_training_step() -> None:
    outcome = run(public_of(rounds=5), Stateful(), observe=observe_of(targets=3))
    for index, name in outcome.observed.items():
        assert name in ("first", "middle", "last")
        probes = [o for o in of_kind(outcome, "probe") if o.context.round == index]
        (training,) = [o for o in of_kind(outcome, "train") if o.context.round == index]
        assert [o.context.probe for o in probes] == [0, 1, 2]
        for probe in probes:
            model = next(m.payload["model"] for m in probe.messages if m.kind == "model")
            assert same(model, outcome.models[index])
            assert same(model, training.states[SERVER]["model"])
            assert probe.states["client:0"]["rounds"] == training.states["client:0"]["rounds"] + 1
            assert probe.states["client:0"]["residual"].item() == training.states["client:0"]["residual"].item() + 1


def test_probes_run_on_the_targets_in_order() -> None:
    public = public_of((12, 3), rounds=1, batch_size=2)
    outcome = run(public, Telling(), observe=observe_of("first", targets=3, probe_batch=2))
    told = [sent(o, "batch") for o in of_kind(outcome, "probe")]
    shards = shards_of(public.shard_sizes)
    victim = torch.cat([batch["client:0"]["images"] for batch in told])
    assert torch.equal(victim, shards["client:0"].images[:6])
    # a client with fewer records begins again
    small = torch.cat([batch["client:1"]["images"] for batch in told])
    assert torch.equal(small, shards["client:1"].images[[0, 1, 2, 0, 1, 2]])


def test_probes_draw_their_own_noise() -> None:
    outcome = run(public_of(rounds=1), Stateful(), observe=observe_of("first", targets=1))
    (training,), (probe,) = of_kind(outcome, "train"), of_kind(outcome, "probe")
    party = [Party("client:0", outcome.public, outcome.secrets["client:0"]) for _ in range(2)]
    draws = []
    for me, observation in zip(party, (training, probe), strict=True):
        me.context = observation.context
        draws.append(me.stream("noise").bytes(32))
    assert draws[0] != draws[1]


def test_more_targets_than_the_victim_has_are_refused() -> None:
    with pytest.raises(UserError, match=r"targets \(13\) must be at most the victim's records; given: 12\."):
        run(public_of(), observe=observe_of(targets=13))


# --- dropouts -----------------------------------------------------------------------------------


def dropping(*drops: tuple[int, int, str], **training: Any) -> Public:
    dropouts = [{"client": client, "round": index, "step": step} for client, index, step in drops]
    return public_of((12, 12, 12), dropouts=dropouts, **training)


def test_a_client_that_drops_out_sends_nothing_and_the_others_are_averaged() -> None:
    public = dropping((1, 1, "update"), rounds=2, momentum=0.0, learning_rate=0.1)
    training = of_kind(run(public, record_all=True), "train")
    assert set(sent(training[0], "update")) == {"client:0", "client:1", "client:2"}
    assert set(sent(training[1], "update")) == {"client:0", "client:2"}
    average = mean([u["gradient"] for u in sent(training[1], "update").values()])
    before, after = (o.states[SERVER]["model"] for o in training)
    for name, value in average.items():
        torch.testing.assert_close(after[name], before[name] - 0.1 * value)


def test_the_others_do_as_if_nothing_had_happened() -> None:
    with_drop = of_kind(run(dropping((1, 0, "update"), rounds=1), record_all=True), "train")[0]
    without = of_kind(run(dropping(rounds=1), record_all=True), "train")[0]
    for name in ("client:0", "client:2"):
        assert list(differences(sent(with_drop, "update")[name], sent(without, "update")[name])) == []


def test_when_all_drop_out_the_model_stays() -> None:
    public = dropping(*((client, 1, "update") for client in range(3)), rounds=2)
    training = of_kind(run(public, record_all=True), "train")
    assert sent(training[1], "update") == {}
    assert same(training[0].states[SERVER]["model"], training[1].states[SERVER]["model"])


def test_who_drops_out_late_has_sent_before() -> None:
    public = dropping((0, 0, "aggregate"), rounds=1)
    assert "client:0" in sent(of_kind(run(public, record_all=True), "train")[0], "update")


def test_a_dropout_ends_with_the_round_and_spares_the_probes() -> None:
    outcome = run(dropping((0, 0, "update"), rounds=2), observe=observe_of("first"), record_all=True)
    assert "client:0" not in sent(of_kind(outcome, "train")[0], "update")
    assert all("client:0" in sent(o, "update") for o in of_kind(outcome, "probe"))
    assert "client:0" in sent(of_kind(outcome, "train")[1], "update")


def test_a_victim_that_drops_out_has_no_batch_in_that_round() -> None:
    drops = ((0, 0, "update"), (1, 1, "update"))
    assert list(run(dropping(*drops, rounds=3), observe=observe_of()).batches) == [1, 2]


def test_a_step_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"no step of this defense 'updat': did you mean 'update'\? Known: distribute"):
        run(dropping((0, 0, "updat")))


# --- seeds and secrets --------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_transcript_and_another_another() -> None:
    public = public_of()
    runs = [contents(run(public, Stateful(), observe=observe_of(), seed=seed)) for seed in (3, 3, 4)]
    assert list(differences(runs[0], runs[1])) == []
    assert list(differences(runs[0], runs[2])) != []


def test_every_party_has_a_secret_of_its_own() -> None:
    outcome = run(public_of(), Keyed(), seed=3)
    assert set(outcome.secrets) == {SERVER, "client:0", "client:1", "authority"}
    assert len(set(outcome.secrets.values())) == 4
    assert outcome.secrets["client:1"] == derive_key(run_secret(3), "party", "client:1")


def test_fresh_keys_do_not_come_from_the_seed() -> None:
    seeded, fresh, again = (run(public_of(), seed=3, fresh_keys=f) for f in (False, True, True))
    assert len({o.secrets[SERVER] for o in (seeded, fresh, again)}) == 3


def test_streams_go_on_within_an_occasion_and_are_new_in_the_next() -> None:
    class Drawing(FedSGD):
        """Clients tell what they draw."""

        def update(self, me: Party) -> None:
            drawn = [me.stream("a").bytes(8), me.stream("b").bytes(8), me.stream("a").bytes(8)]
            me.send(SERVER, "drawn", {"drawn": drawn})
            super().update(me)

    outcome = run(public_of(rounds=2), Drawing(), observe=observe_of("first"), record_all=True)
    drawn = [d for o in outcome.transcript.observations for p in sent(o, "drawn").values() for d in p["drawn"]]
    assert len(drawn) == 2 * 4 * 3  # clients, contexts, draws
    assert len(set(drawn)) == len(drawn)


# --- accounts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("participants", [1, 3])
def test_bytes_are_k_models_a_round_each_way(participants: int) -> None:
    public = public_of((12, 12, 12), rounds=5, participants=participants)
    outcome = run(public, Keyed(), observe=observe_of())
    model = size_in_bytes(outcome.model)
    assert model == 4 * (64 * 8 + 8 * 3)
    assert outcome.bytes_by_kind == {"model": 5 * participants * model, "update": 5 * participants * model}
    assert outcome.client_rounds == 5 * participants


def test_seconds_are_counted_by_role_and_phase() -> None:
    outcome = run(public_of())
    assert set(outcome.seconds) == set(outcome.cpu_seconds) == {"client/Train", "server/Agg"}
    assert all(value > 0 for value in outcome.seconds.values())


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    public = public_of(rounds=3)
    Federation(
        FedSGD(),
        public,
        shards_of(public.shard_sizes),
        None,
        0,
        progress=lambda done, total: told.append((done, total)),
    ).run()
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_model_can_be_asked_for_after_every_round() -> None:
    asked: dict[int, Parameters] = {}
    public = public_of(rounds=3)
    outcome = Federation(
        FedSGD(),
        public,
        shards_of(public.shard_sizes),
        None,
        0,
        after_round=lambda done, model: asked.update({done: model()}),
    ).run()
    assert list(asked) == [1, 2, 3]
    assert all(torch.equal(value, asked[3][name]) for name, value in outcome.model.items())
    assert any(not torch.equal(value, asked[2][name]) for name, value in outcome.model.items())


def test_only_observed_rounds_are_kept() -> None:
    outcome = run(public_of(rounds=9), observe=observe_of(targets=2))
    kinds = [(o.context.kind, o.context.round) for o in outcome.transcript.observations]
    observed = [entry for index in (0, 4, 8) for entry in (("train", index), ("probe", index), ("probe", index))]
    assert kinds == [("setup", 0), *observed, ("final", 9)]
    assert outcome.observed == {0: "first", 4: "middle", 8: "last"}
    assert set(outcome.models) == {0, 4, 8}


def test_memory_does_not_grow_with_the_rounds() -> None:
    def messages_alive(rounds: int) -> int:
        public = public_of(rounds=rounds)
        federation = Federation(FedSGD(), public, shards_of(public.shard_sizes), observe_of("last"), 0)
        outcome = federation.run()
        gc.collect()
        alive = sum(1 for thing in gc.get_objects() if type(thing) is Message)
        assert outcome.transcript.observations
        return alive

    assert messages_alive(30) == messages_alive(3) > 0


def test_steps_are_run_in_the_order_of_the_protocol() -> None:
    class Longer(FedSGD):
        """Two more steps: clients greet each other, then report what they heard."""

        def protocol(self) -> Sequence[Step]:
            first, *rest = super().protocol()
            return (first, Step("greet", "client", self.greet), *rest)

        def greet(self, me: Party) -> None:
            model = me.expect("model")
            me.state["model"] = model["model"]
            for other in me.participants:
                if other != me.name:
                    me.send(other, "greeting", {"from": me.index})

        def update(self, me: Party) -> None:
            me.state["heard"] = sorted(p["from"] for p in me.received("greeting").values())
            me.state["old"] = sorted(me.received("model"))  # read in the step before: the inbox was emptied

    (observation,) = of_kind(run(public_of((12, 12, 12), rounds=1), Longer(), record_all=True), "train")
    assert [m.step for m in observation.messages] == ["distribute"] * 3 + ["greet"] * 6
    assert [observation.states[client_name(i)]["heard"] for i in range(3)] == [[1, 2], [0, 2], [0, 1]]
    assert all(observation.states[client_name(i)]["old"] == [] for i in range(3))


def test_batches_messages_and_streams_are_gone_after_the_round() -> None:
    public = public_of()
    federation = Federation(Stateful(), public, shards_of(public.shard_sizes), None, 0)
    federation.run()
    assert all(party.batch is None and not party._inbox and not party._streams for party in federation.parties.values())


def test_parties_share_nothing_that_can_be_changed_and_the_sizes_of_shards_are_not_copied() -> None:
    public = public_of(model_parameters={"hidden": [2]})
    first, second = own_copy(public), own_copy(public)
    assert first == second == public
    assert first.model_parameters["hidden"] is not second.model_parameters["hidden"]
    assert first.training is not second.training
    assert first.shard_sizes is second.shard_sizes  # a tuple of K numbers: K copies of it would be K * K
