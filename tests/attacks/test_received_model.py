"""The control of extraction: exactly what the protocol handed out, and a flag where that is an older model."""

from __future__ import annotations

import pytest
import torch

from leakboard.attacks.base import ExtractionTask, Knowledge
from leakboard.attacks.extraction.received_model import ReceivedModel
from leakboard.core.errors import Unsupported
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.outcome import Outcome
from leakboard.federation.settings import Public
from leakboard.federation.view import make_view, parse_threat
from tests.federation.makings import images, observe_of, public_of, run, shards_of


def knowledge(public: Public, outcome: Outcome) -> Knowledge:
    shards = shards_of(public.shard_sizes)
    threat = parse_threat("client", public.training.clients)
    view = make_view(outcome.transcript, threat, public, outcome.secrets, shards)
    return Knowledge(view, FedSGD(), images(4), 0)


@pytest.mark.parametrize(("moment", "index"), [("first", 0), ("middle", 2), ("last", 3)])
def test_without_a_defense_it_is_the_model_itself(moment: str, index: int) -> None:
    public = public_of()
    outcome = run(public, observe=observe_of())
    answer = ReceivedModel().extract(knowledge(public, outcome), ExtractionTask(moment, index))  # type: ignore[arg-type]
    true = outcome.models[index]
    assert answer.flags == ()
    assert all(torch.equal(answer.model[name], value) for name, value in true.items())


def test_a_client_that_sat_out_gives_an_older_model_and_says_so() -> None:
    public = public_of((12,) * 4, participants=2, rounds=8)
    outcome = run(public, observe=observe_of(), seed=1)
    took_part = {o.context.round: "client:1" in o.context.participants for o in outcome.transcript.observations}
    known = knowledge(public, outcome)
    rounds = {0: "first", 4: "middle", 7: "last"}
    before: list[int] = []
    told = set()
    for index, moment in rounds.items():
        task = ExtractionTask(moment, index)  # type: ignore[arg-type]
        if took_part[index]:
            before.append(index)
        if not before:
            with pytest.raises(Unsupported, match=f"holds no model up to round {index}"):
                ReceivedModel().extract(known, task)
            told.add("nothing")
            continue
        answer = ReceivedModel().extract(known, task)
        true = outcome.models[before[-1]]
        assert all(torch.equal(answer.model[name], value) for name, value in true.items())
        assert bool(answer.flags) != took_part[index]
        told.add("fresh" if took_part[index] else "stale")
    assert told >= {"fresh"}
    assert len(told) > 1, "a seed in which client 1 sits out is needed"


def test_a_model_without_numbers_is_not_handed_in() -> None:
    public = public_of(learning_rate=1e30)
    outcome = run(public, observe=observe_of())
    with pytest.raises(Unsupported, match="diverged"):
        ReceivedModel().extract(knowledge(public, outcome), ExtractionTask("last", 3))
