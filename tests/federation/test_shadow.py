from __future__ import annotations

import pytest
import torch

from leakboard.core.errors import Unsupported
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.party import Party
from leakboard.federation.replay import differences
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.shadow import train_shadow
from leakboard.federation.view import View
from tests.federation.makings import Keyed, images, public_of, rows, run


class Collecting(FedSGD):
    """The server keeps every record that clients took, so that a test can look at all of them."""

    def update(self, me: Party) -> None:
        super().update(me)
        assert me.batch is not None
        me.send(SERVER, "batch", {"images": me.batch.images})

    def aggregate(self, me: Party) -> None:
        batches = [payload["images"] for payload in me.received("batch").values()]
        me.state["seen"] = [*me.state.get("seen", []), *batches]
        super().aggregate(me)


PUBLIC = public_of((12, 12, 12), rounds=6, dropouts=[{"client": 0, "round": 0, "step": "update"}])


def shadow(threat: str = "server", count: int = 18, seed: int = 1, public: Public = PUBLIC) -> View:
    return train_shadow(Collecting(), public, images(count, seed=9), threat, seed)


@pytest.mark.parametrize(
    ("threat", "parties"),
    [("server", ("server",)), ("client", ("client:1",)), ("server+clients:2", ("server", "client:1", "client:2"))],
)
def test_the_view_is_of_the_threat_that_was_asked_for(threat: str, parties: tuple[str, ...]) -> None:
    view = shadow(threat)
    assert view.threat == threat
    assert view.parties == parties
    assert set(view.secrets) == set(parties)
    assert set(view.holdings) == set(parties) - {SERVER}
    assert view.observations[-1].context.kind == "final"
    assert all({m.sender, m.receiver} & set(parties) for o in view.observations for m in o.messages)


def test_only_the_given_data_is_touched_and_all_of_it_is_dealt() -> None:
    data = images(18, seed=9)
    before = data.images.clone()
    view = train_shadow(Collecting(), PUBLIC, data, "server", 1)
    seen = {image.numpy().tobytes() for batch in view.observations[-1].states[SERVER]["seen"] for image in batch}
    assert seen
    assert seen <= rows(data)
    assert torch.equal(data.images, before)
    # 6 records per client: whole batches of 4, in a new order each epoch, reach most of them
    assert len(seen) > 12


def test_the_holdings_are_disjoint_parts_of_the_data() -> None:
    view = shadow("server+clients:2")
    parts = [rows(part) for part in view.holdings.values()]
    assert [len(part) for part in parts] == [6, 6]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] <= rows(images(18, seed=9))


def test_a_record_is_seen_as_often_as_in_the_real_federation() -> None:
    # 6 rounds of 4 from 12 records: 2 passes; 6 records: 3 rounds of 4 are 2 passes too
    view = shadow()
    assert view.public.total_rounds == view.public.training.rounds == 3
    assert view.public.shard_sizes == (6, 6, 6)
    assert view.public.training.batch_size == 4
    assert view.public.training.dropouts == ()
    assert len(view.observations[-1].states[SERVER]["seen"]) == 3 * 3


def test_a_batch_shrinks_to_the_smallest_shard() -> None:
    view = shadow(count=8)  # 3, 3 and 2 records
    assert view.public.training.batch_size == 2
    assert view.public.shard_sizes == (3, 3, 2)


def test_epochs_become_rounds() -> None:
    public = public_of((12, 12, 12), rounds=None, epochs=2)
    assert public.total_rounds == 6
    assert shadow(public=public).public.training.epochs is None
    assert shadow(public=public).public.total_rounds == 3


def test_the_seed_decides_and_the_global_stream_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    models = [shadow(seed=seed).observations[-1].states[SERVER]["model"] for seed in (1, 1, 2)]
    assert list(differences(models[0], models[1])) == []
    assert list(differences(models[0], models[2])) != []
    assert torch.equal(torch.random.get_rng_state(), state)


def test_it_shares_no_secret_with_a_run_of_another_seed() -> None:
    real = run(PUBLIC, Keyed(), seed=0)
    view = train_shadow(Keyed(), PUBLIC, images(18), "server+clients:2", 1)
    assert not set(view.secrets.values()) & set(real.secrets.values())


def test_too_few_records_are_a_reason_to_skip() -> None:
    with pytest.raises(Unsupported, match="a shadow of 3 clients needs at least as many records; given: 2"):
        shadow(count=2)
