"""What any outsider can do: run the same federation, under the same defense, on its own data."""

from __future__ import annotations

import torch

from leakboard.core.errors import Unsupported
from leakboard.datasets.base import LabelledImages
from leakboard.federation.rounds import Federation, Scheme
from leakboard.federation.settings import ObservedRounds, Public, client_name
from leakboard.federation.task import mixed_precision
from leakboard.federation.view import View, make_view, parse_threat


def train_shadow(
    scheme: Scheme,
    public: Public,
    data: LabelledImages,
    threat: str,
    seed: int,
    observe: ObservedRounds | None = None,
    *,
    mixed: bool = False,
) -> View:
    """Train through the same loop on `data` and return what that threat sees of it.

    The data is divided among as many clients as the real federation has. `observe` says which rounds are observed in
    addition to the end; by default none. `mixed`: layers in bfloat16, if the defense takes its gradients from
    `Task.gradient`.
    """
    own = shadow_settings(public, len(data))
    clients = own.training.clients
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    shards = {client_name(i): data.select(order[i::clients]) for i in range(clients)}
    with mixed_precision(mixed):
        outcome = Federation(scheme.rehearsal(), own, shards, observe, seed).run()
    return make_view(outcome.transcript, parse_threat(threat, clients), own, outcome.secrets, shards)


def shadow_settings(public: Public, records: int) -> Public:
    """The settings of a shadow that learns this many records.

    A record is seen as often as in the real federation: with less data there are fewer rounds, so that the shadow
    overfits as much as its target.
    """
    training = public.training
    if records < training.clients:
        raise Unsupported(f"a shadow of {training.clients} clients needs at least as many records; given: {records}")
    sizes = tuple(len(range(client, records, training.clients)) for client in range(training.clients))
    batch = min(training.batch_size, min(sizes))
    passes = public.total_rounds * training.batch_size / (sum(public.shard_sizes) / len(public.shard_sizes))
    rounds = max(1, round(passes * (sum(sizes) / len(sizes)) / batch))
    given = {"batch_size": batch, "rounds": rounds, "epochs": None, "dropouts": (), "dropout": 0.0, "late": 0.0}
    settings = {**training.model_dump(), **given}
    update = {"training": type(training).model_validate(settings), "total_rounds": rounds, "shard_sizes": sizes}
    return public.model_copy(update=update)
