from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation import replay
from leakboard.federation.outcome import Outcome
from leakboard.federation.replay import covert_channels
from tests.federation import cheating_defense as cheats
from tests.federation.makings import observe_of, public_of, run, shards_of

WATCH = observe_of("first")
PUBLIC = public_of((6, 6), rounds=3, batch_size=2, momentum=0.5)


pytestmark = pytest.mark.usefixtures("fork_server")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    cheats.forget()


def recorded(make: Callable[[], FedSGD]) -> Outcome:
    return run(PUBLIC, make(), observe=WATCH, seed=5, record_all=True)


def channels(make: Callable[[], FedSGD], outcome: Outcome, *parties: str) -> dict[str, list[str]]:
    """The covert channels, looked for at these parties alone (each costs a process)."""
    suspects = {name: outcome.secrets[name] for name in parties}
    return covert_channels(make, replace(outcome, secrets=suspects), shards_of(PUBLIC.shard_sizes), WATCH, 5)


def test_fedavg_has_no_covert_channel() -> None:
    outcome = recorded(cheats.make_fedavg)
    assert list(outcome.secrets) == ["server", "client:0", "client:1"]
    assert covert_channels(cheats.make_fedavg, outcome, shards_of(PUBLIC.shard_sizes), WATCH, 5) == {}


def test_a_leak_by_a_module_global_is_caught_at_the_party_that_reads_it() -> None:
    outcome = recorded(cheats.make_by_module)
    # the leak worked: the server holds the victim's batch though nobody sent it
    final = outcome.transcript.observations[-1]
    assert final.states["server"]["stolen"].shape == (2, 1, 8, 8)
    found = channels(cheats.make_by_module, outcome, "server")
    assert found["server"] == [f"/{number}/state/stolen" for number in range(1, len(outcome.transcript.observations))]


def test_a_constant_leak_by_a_class_attribute_into_the_keys_is_caught() -> None:
    outcome = recorded(cheats.make_by_class)
    assert outcome.transcript.observations[-1].keys["server"]["label"] in (0, 1, 2)
    found = channels(cheats.make_by_class, outcome, "server")
    assert found["server"]
    assert all("/keys" in path for path in found["server"])


def test_nothing_that_a_party_sends_from_its_process_is_unpickled(tmp_path: Path) -> None:
    """On the code before issue 17 the planted object ran here, where the whole federation is known."""
    marker = tmp_path / "executed"
    outcome = recorded(cheats.make_fedavg)
    found = channels(partial(cheats.make_planting, str(marker)), outcome, "client:1")
    assert not marker.exists()
    assert found == {"client:1": ["client:1 sent no list of differences when run on its own"]}


# --- in this process: the same comparison without the price of another -----------------------------


class Pipe:
    """Takes what the child would send."""

    def send_bytes(self, content: bytes) -> None:
        self.sent = json.loads(content)


def here(make: Callable[[], FedSGD], outcome: Outcome, party: str, seed: int = 5) -> list[str]:
    cheats.forget()
    pipe = Pipe()
    shard = shards_of(PUBLIC.shard_sizes).get(party)
    parts = (outcome.public, outcome.transcript, outcome.secrets[party], shard, WATCH, seed, torch.get_num_threads())
    replay._replayed(pickle.dumps((make, *parts)), party, cast(Any, pipe))
    found: list[str] = pipe.sent
    return found


def test_a_client_whose_message_depends_on_another_is_caught() -> None:
    outcome = recorded(cheats.make_by_message)
    assert here(cheats.make_by_message, outcome, "client:1")
    assert any("/sent/" in path for path in here(cheats.make_by_message, outcome, "client:1"))


def test_a_party_that_cannot_run_alone_is_a_finding() -> None:
    outcome = recorded(cheats.make_fedavg)
    assert here(cheats.make_nothing, outcome, "server") == [
        "server cannot run on its own: RuntimeError: no defense today"
    ]


def test_a_changed_message_in_the_log_is_noticed() -> None:
    outcome = recorded(cheats.make_fedavg)
    assert here(cheats.make_fedavg, outcome, "client:1") == []
    update = next(
        m for o in outcome.transcript.observations for m in o.messages if (m.sender, m.kind) == ("client:1", "update")
    )
    update.payload["gradient"]["1.weight"][0, 0] += 1e-3
    assert here(cheats.make_fedavg, outcome, "client:1") == ["/1/sent/0/2/gradient/1.weight"]


def test_another_seed_is_noticed() -> None:
    outcome = recorded(cheats.make_fedavg)
    assert here(cheats.make_fedavg, outcome, "client:1", seed=6)
