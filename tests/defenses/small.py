"""Federations that are small enough to encrypt everything: pictures of 4 x 4 pixels, three classes, a few weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from leakboard.core import registry
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.integer_share import IntegerShare
from leakboard.defenses.building_blocks.model_perturbation import unpack_secret
from leakboard.defenses.building_blocks.perturbed_parts import PerturbedParts
from leakboard.defenses.building_blocks.summed_codes import SummedCodes, SummedGradient
from leakboard.defenses.crypto.fixed_point import Integers
from leakboard.federation.party import Party, RoundContext
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import SERVER, ObservedRounds, client_name
from leakboard.federation.transcript import Observation
from tests.defenses.makings import Run, create, flat, public_of

SHAPE, CLASSES = (1, 4, 4), 3
#: keys that are too small for anything but tests; the group of hybridalpha has 2048 bits always
KEYS: dict[str, dict[str, Any]] = {
    "tp-smc": {"key_bits": 256, "sample_values": 30},
    "pile": {"key_bits": 256, "sample_values": 30},
    "hybridalpha": {"sample_values": 6},
}


def names_of_sums() -> list[str]:
    """Every registered defense whose server learns a sum of integers."""
    return [name for name in registry.entries("defense") if isinstance(create(name), SummedCodes)]


def sums(name: str, **parameters: Any) -> SummedCodes:
    """A defense with a sum, with small keys."""
    made = create(name, **{**KEYS.get(name, {}), **parameters})
    assert isinstance(made, SummedCodes)
    return made


def quiet(name: str, **parameters: Any) -> Defense:
    """A defense without noise and clipping, as far as both can be switched off, and with small keys."""
    off = {"noise": False, "clip": None, "ratio": 0.0, "epsilon": 1e9}
    known = set(create(name).parameters())
    chosen = {key: value for key, value in off.items() if key in known}
    return create(name, **{**KEYS.get(name, {}), **chosen, **parameters})


def small_run(
    defense: Defense,
    *,
    hidden: tuple[int, ...] = (3,),
    shape: tuple[int, int, int] = SHAPE,
    shard: int = 8,
    seed: int = 0,
    observe: ObservedRounds | None = None,
    record_all: bool = True,
    **training: Any,
) -> Run:
    """Deal random pictures to 3 clients and train: 1 round in float64 with batches of 4, unless told otherwise."""
    settings = {"rounds": 1, "precision": "float64", "learning_rate": 0.1, "momentum": 0.0, **training}
    public = public_of(
        "mlp", {"hidden": list(hidden)}, shape=shape, classes=CLASSES, defense=defense, shard=shard, **settings
    )
    generator = torch.Generator().manual_seed(seed + 1)
    shards = {
        client_name(i): LabelledImages(
            torch.rand(shard, *shape, generator=generator), torch.randint(0, CLASSES, (shard,), generator=generator)
        )
        for i in range(public.training.clients)
    }
    defense.check(public)
    return Run(
        defense, Federation(defense, public, shards, observe, seed, record_all=record_all).run(), shards, observe
    )


def velocity(at: Observation) -> Tensor:
    """The mean gradient that the server stepped with (momentum is 0), as one vector."""
    return flat(at.states[SERVER]["velocity"])


def sent_codes(run: Run, at: Observation) -> dict[str, Integers]:
    """Every client's codes, computed again from its own secret, its records and the model message that it got."""
    assert isinstance(run.defense, SummedCodes)
    records = batches(run, at.context)
    found: dict[str, Integers] = {}
    for message in at.messages:
        if message.kind == "model":
            party = Party(message.receiver, run.public, run.outcome.secrets[message.receiver])
            party.context, party.batch = at.context, records[party.name]
            party._inbox.append(message)
            found[party.name] = run.defense.codes(party)
    return found


def batches(run: Run, context: RoundContext) -> Mapping[str, LabelledImages]:
    """The records that every client used in this context."""
    again = Federation(run.defense, run.public, run.shards, run.observe, 0)
    found = {}
    for name in context.participants:
        if context.kind == "train":
            again._taken[name] = context.round
            again._positions[name] = again._next_positions(name)
        batch = again._batch(name, context)
        assert batch is not None
        found[name] = batch
    return found


def mean_bound(run: Run, at: Observation) -> Tensor | float:
    """The largest error of the server's mean gradient by fixed point, coordinate by coordinate.

    Half a step of the code; where gradient, Psi and Phi are summed, R (step_g + |r|_1 step_psi + v step_phi) / 2 with
    gamma instead of |r|_1 in V2, where clients contract Psi themselves. Random rounding of rotated values has errors of
    variance at most gamma^2 / 4 per client, and 8 of their standard deviations are allowed (false alarm below 1e-13).
    """
    defense, size = run.defense, at.context.batch_size
    if isinstance(defense, IntegerShare):
        return 8 / (2 * defense.scale(run.public, size) * math.sqrt(at.states[SERVER]["aggregate"]["clients"]))
    if isinstance(defense, SummedGradient):
        return defense.codec(run.public, size).step / 2
    assert isinstance(defense, PerturbedParts)
    secret, wiring = unpack_secret(at.states[SERVER]["secret"]), defense.expanded(run.public).wiring
    steps = {part: codec.step / 2 for part, codec in defense.codecs(run.public, size).items()}
    weight = secret.gamma if defense.variant == "V2" else secret.additive
    inside = steps["gradient"] + float(weight.abs().sum()) * steps["psi"]
    inside += float(secret.additive.square().sum()) * steps["phi"]
    shapes = defense.template(run.public)["gradient"]
    named = {f"{w.name}.weight": w for w in wiring.weights}
    return inside * flat({n: secret.matrix(named[n], v).expand(v.shape) for n, v in shapes.items()})


def chi_square_fits(statistic: float, degrees: int, false_alarm: float) -> bool:
    """Whether a chi-square statistic lies where it does but for this share of all keys (two-sided)."""
    tail = false_alarm / 2
    return float(stats.chi2.ppf(tail, degrees)) < statistic < float(stats.chi2.isf(tail, degrees))


def is_gaussian(values: Tensor, sigma: float, false_alarm: float) -> bool:
    """Independent N(0, sigma^2): the sum of squares is chi-square, and the shape fits (Kolmogorov-Smirnov)."""
    spread = chi_square_fits(float(values.square().sum()) / sigma**2, len(values), false_alarm / 2)
    return spread and bool(stats.kstest(values.numpy(), "norm", args=(0, sigma)).pvalue > false_alarm / 2)
