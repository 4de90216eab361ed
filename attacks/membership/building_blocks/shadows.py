"""A pool of shadow models, trained once and cached: the outputs of each on every record, and the records it learned.

Models 2i and 2i+1 learn complementary halves of one universe, so with an even number of models every record of it is
in exactly half of them. Each model is a whole federation under the target's defense (`federation.shadow`), and it is
read as the target is read. The universe is the auxiliary images (offline), or these together with the candidates and
the attacker's own records (online: the attacker knows which records are candidates, but not the answer).

The cache is `shadows/<key>/` in the user's cache folder, with one file per model. The key is the digest of everything
that determines a model and its outputs: settings, defense, threat, records, our source files, torch's version. So all
attacks on one target share a pool, an interrupted pool continues where it stopped, a larger pool reuses the models of a
smaller one, and a pool of another configuration is never used. Processes that need the same pool at the same time share
the work: the process that holds a model's lock trains it. Nothing is removed automatically; use `make clean-cache`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from leakboard.attacks.base import STOPPED, Knowledge, MembershipAnswer, MembershipAttack, MembershipTask
from leakboard.attacks.membership.building_blocks.signals import joined, outputs_and_features, own_records
from leakboard.core import registry
from leakboard.core.caches import cache_folder
from leakboard.core.errors import Unsupported
from leakboard.core.files import keep_tensors, kept_tensors, locked
from leakboard.core.memory import keep_freed_memory
from leakboard.core.seeds import derive_seed, digest_of
from leakboard.core.sources import source_digests
from leakboard.core.threads import one_thread
from leakboard.datasets.base import LabelledImages
from leakboard.federation.payload import Parameters, raw_bytes
from leakboard.federation.settings import Moment, ObservedRounds
from leakboard.federation.shadow import train_shadow
from leakboard.federation.task import Task

FOLDER = cache_folder() / "shadows"
FINAL = "final"
#: begins the line of a cell's log that names the pool
POOL_LINE = "shadow pool "
#: the moments at which a model is evaluated
MOMENTS = (*get_args(Moment), FINAL)
#: seconds between two checks for models that other processes are training
PAUSE = 0.2
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Signals:
    """The outputs of one model, or of N models, on A records.

    By moment (`final`, and the observed rounds `first`, `middle`, `last` if the view has a model): `logits`
    (..., A, classes) and `norms` (..., A), the Euclidean norm of the last layer's input (empty if the network does not
    end in a linear layer).
    """

    logits: dict[str, Tensor]
    norms: dict[str, Tensor]

    @property
    def final(self) -> Tensor:
        """The logits of the final model."""
        return self.logits[FINAL]

    def of(self, models: int | Tensor) -> Signals:
        """The signals of one of the N models, or of some of them."""
        logits = {moment: value[models] for moment, value in self.logits.items()}
        return Signals(logits, {moment: value[models] for moment, value in self.norms.items()})

    def on(self, records: slice | Tensor) -> Signals:
        """The same models on some of the records."""
        logits = {moment: value[..., records, :] for moment, value in self.logits.items()}
        return Signals(logits, {moment: value[..., records] for moment, value in self.norms.items()})


@dataclass(frozen=True)
class ShadowPool:
    """N shadow models on A records: candidates first, then the attacker's own records, then the auxiliary ones.

    `member` (N, A) says which records each model learned. In an offline pool the columns of the candidates and of the
    attacker's own records are False.
    """

    records: LabelledImages
    candidates: slice
    own: slice
    auxiliary: slice
    online: bool
    member: Tensor
    signals: Signals
    flags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.member)

    @property
    def universe(self) -> slice:
        """The records of which every model learned one half."""
        return slice(0, len(self.records)) if self.online else self.auxiliary

    def without_pair(self, index: int) -> Tensor:
        """Indices of the models outside that model's pair: its twin learned the other half and would reveal all."""
        return torch.tensor([i for i in range(len(self)) if i // 2 != index // 2], dtype=torch.int64)


def moments_of(knowledge: Knowledge, observed: tuple[Moment, ...] | None = None) -> dict[str, Parameters]:
    """The models of a view's honest reading: at its observed rounds, and `final`, the last one that it holds.

    In a short run one round may be both middle and last; `observed` says which names to use.
    """
    observe = ObservedRounds(rounds=_observed(knowledge) if observed is None else observed)
    names = {index: str(moment) for index, moment in observe.indices(knowledge.public.total_rounds).items()}
    found: dict[str, Parameters] = {}
    last: Parameters | None = None
    for reading in knowledge.readings():
        if reading.model is None:
            continue
        last = reading.model
        if reading.context.kind == "train" and reading.context.round in names:
            found[names[reading.context.round]] = reading.model
    if last is None:
        raise Unsupported(f"this view ({knowledge.view.threat}) holds no model")
    return {**found, FINAL: last}


def read_signals(knowledge: Knowledge, records: LabelledImages, observed: tuple[Moment, ...] | None = None) -> Signals:
    """The outputs of a view's models on these records, in float32 (cached and new ones are the same numbers)."""
    logits: dict[str, Tensor] = {}
    norms: dict[str, Tensor] = {}
    for moment, model in moments_of(knowledge, observed).items():
        try:
            outputs, features = outputs_and_features(knowledge.task, model, records.images)
            norms[moment] = features.norm(dim=1).float()
        except Unsupported:
            outputs = knowledge.task.predict(model, records.images)
        logits[moment] = outputs.float()
    return Signals(logits, norms)


class ShadowAttack(MembershipAttack):
    """Base of attacks that compare the target with shadow models: get the pool, then score."""

    precision: Precision = Field(
        "float32", description="precision of shadow training; bfloat16 pays off if the processor supports it"
    )

    @property
    @abstractmethod
    def needed(self) -> int:
        """How many shadow models the attack needs."""

    @property
    def online(self) -> bool:
        """Whether each shadow also learns half of the candidates."""
        return False

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Train or load the shadows, read the target on the same records, score the candidates."""
        pool = shadow_pool(knowledge, task.candidates, self.needed, online=self.online, precision=self.precision)
        return self.judge(knowledge.task, pool, read_signals(knowledge, pool.records), knowledge.seed)

    @abstractmethod
    def judge(self, task: Task, pool: ShadowPool, target: Signals, seed: int) -> MembershipAnswer:
        """Score and decide the pool's candidates from the target's signals on the pool's records."""


def shadow_pool(
    knowledge: Knowledge,
    candidates: LabelledImages,
    count: int,
    *,
    online: bool,
    precision: Precision = "float32",
    folder: Path | None = None,
) -> ShadowPool:
    """The first `count` shadow models against this target; those that `folder` already holds are loaded.

    Models that another process is training are left to it and loaded when they are done. If the attack's time would run
    out, the pool ends early with whole pairs, and its flags say so.
    """
    own = own_records(knowledge)
    sizes = len(candidates), 0 if own is None else len(own), len(knowledge.auxiliary)
    records = joined(candidates, *([] if own is None else [own]), knowledge.auxiliary)
    parts = slice(0, sizes[0]), slice(sizes[0], sizes[0] + sizes[1]), slice(sizes[0] + sizes[1], sum(sizes))
    pool = ShadowPool(records, *parts, online, torch.empty(0, 0), Signals({}, {}))
    asked_for = _asked_for(knowledge, pool, precision)
    home = (folder or FOLDER) / _key(knowledge, asked_for)
    print(f"{POOL_LINE}{home.name}", flush=True)
    made: dict[int, tuple[Tensor, Signals]] = {}
    waiting, busy, slowest = deque(range(count)), 0, 0.0
    while waiting:
        paired = [index for index in made if index ^ 1 in made]
        # finish a pair that is half done, but do not wait for it
        needed = 2 * slowest if len(paired) == len(made) else 0.0
        if paired and knowledge.time_left() < needed:
            made = {index: made[index] for index in paired}
            break
        started = time.monotonic()
        index = waiting.popleft()
        found = _model(knowledge, pool, index, asked_for, precision, home)
        if found is None:
            waiting.append(index)
            busy += 1
            if busy >= len(waiting):
                time.sleep(PAUSE)
            continue
        made[index], busy = found, 0
        slowest = max(slowest, time.monotonic() - started)
        knowledge.progress(f"shadow {len(made)} of {count}")
    flags = ("the shadow models were trained on halves of candidates and auxiliary images",) if online else ()
    if len(made) < count:
        flags = (*flags, f"{STOPPED}: only {len(made)} of {count} shadow models")
    members, signals = zip(*(made[index] for index in sorted(made)), strict=True)
    return replace(pool, member=torch.stack(members), signals=_stacked(signals), flags=flags)


def train_shadows(
    knowledge: Knowledge,
    candidates: LabelledImages,
    count: int,
    *,
    online: bool,
    workers: int,
    precision: Precision = "float32",
    folder: Path | None = None,
) -> ShadowPool:
    """`shadow_pool`, filled by `workers` processes with one thread each.

    This is for filling the pool beforehand, not for a cell: the attack of a cell has one process and one thread, and is
    charged only for its own time.
    """
    asked = partial(
        shadow_pool, knowledge, candidates, count, online=online, precision=precision, folder=folder or FOLDER
    )
    # no executor: it would unpickle what its processes send, and these processes run the defense under attack
    processes = [multiprocessing.get_context("spawn").Process(target=_fill, args=(asked,)) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError("a process that trained shadow models failed: see its own traceback")
    return asked()


def _fill(asked: Callable[[], ShadowPool]) -> None:
    """Run in its own process; the result is what it writes to the cache."""
    torch.set_num_threads(1)
    keep_freed_memory()
    asked()


def halves(pool: ShadowPool, asked_for: str, index: int) -> Tensor:
    """Which records (A,) model `index` learns: one half of the universe. Model 2i+1 learns the complement of 2i."""
    universe = torch.arange(len(pool.records))[pool.universe]
    generator = torch.Generator().manual_seed(derive_seed(asked_for, "halves", index // 2))
    order = universe[torch.randperm(len(universe), generator=generator)]
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    member = torch.zeros(len(pool.records), dtype=torch.bool)
    member[first if index % 2 == 0 else second] = True
    return member


def _model(
    knowledge: Knowledge, pool: ShadowPool, index: int, asked_for: str, precision: Precision, folder: Path
) -> tuple[Tensor, Signals] | None:
    """Membership and signals of one model: cached, or trained and cached; None while another process trains it."""
    member = halves(pool, asked_for, index)
    file = folder / f"{index}.safetensors"
    classes = knowledge.public.classes
    kept = _load(file, member, classes)
    if kept is not None:
        return member, kept
    with locked(file.with_suffix(".lock")) as free:
        if not free:
            return None
        signals = _load(file, member, classes)  # another process may have finished it in the meantime
        if signals is None:
            signals = _trained(knowledge, pool, member, derive_seed(asked_for, "shadow", index), precision)
            _keep(file, member, signals)
    return member, signals


def _trained(knowledge: Knowledge, pool: ShadowPool, member: Tensor, seed: int, precision: Precision) -> Signals:
    """The signals of a model that learned these records, on all records of the pool.

    On one thread, whatever the process has: processes with other numbers of threads share the cache.
    """
    observed = _observed(knowledge)
    data = pool.records.select(member.nonzero().squeeze(1))
    observe = ObservedRounds(rounds=observed, targets=1)
    defense, public, threat, mixed = knowledge.defense, knowledge.public, knowledge.view.threat, precision == "bfloat16"
    with one_thread():
        view = train_shadow(defense, public, data, threat, seed, observe, mixed=mixed)
        return read_signals(replace(knowledge, view=view), pool.records, observed)


def _observed(knowledge: Knowledge) -> tuple[Moment, ...]:
    """The observed rounds of which the target's view holds something; a shadow is observed in the same rounds."""
    names = ObservedRounds().indices(knowledge.public.total_rounds)
    rounds = {o.context.round for o in knowledge.view.of_kind("train")}
    return tuple(moment for index, moment in names.items() if index in rounds)


def _asked_for(knowledge: Knowledge, pool: ShadowPool, precision: Precision) -> str:
    """The digest of what the models shall be. All draws come from it: better code must not give other random halves.

    The attack's seed is no part of it: pools are shared.
    """
    defense = knowledge.defense
    pixels, labels = raw_bytes(pool.records.images), raw_bytes(pool.records.labels)
    return digest_of(
        knowledge.public.model_dump(mode="json"),
        [defense.name, defense.parameters()],
        knowledge.view.threat,
        [list(pool.records.images.shape), hashlib.sha256(pixels).hexdigest(), hashlib.sha256(labels).hexdigest()],
        [[part.start, part.stop] for part in (pool.candidates, pool.own, pool.auxiliary)],
        pool.online,
        precision,
        list(_observed(knowledge)),
        knowledge.reading_key(),
    )


def _key(knowledge: Knowledge, asked_for: str) -> str:
    """The digest of everything that determines the models: what is asked for, and the code that makes it."""
    defense_file = sys.modules[type(knowledge.defense).__module__].__file__
    assert defense_file is not None
    model_file = str(registry.find("model", knowledge.public.model)["file"])
    sources = source_digests([__name__, type(knowledge).__module__, defense_file, model_file])
    return digest_of(asked_for, sources, torch.__version__)


def _load(file: Path, member: Tensor, classes: int) -> Signals | None:
    """The cached signals of a model; None if the file is missing, incomplete, of other halves or of another form."""
    records = len(member)
    tensors = kept_tensors(file, records * (1 + len(MOMENTS) * (classes + 1) * torch.float32.itemsize))
    if tensors is None:
        return None
    expected: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"member": ((records,), torch.uint8)}
    expected |= {f"logits/{moment}": ((records, classes), torch.float32) for moment in MOMENTS}
    expected |= {f"norms/{moment}": ((records,), torch.float32) for moment in MOMENTS}
    if any(expected.get(name) != (tuple(value.shape), value.dtype) for name, value in tensors.items()):
        return None
    kept = tensors.pop("member", torch.empty(0))
    signals = Signals(_under("logits/", tensors), _under("norms/", tensors))
    if not torch.equal(kept.bool(), member) or FINAL not in signals.logits:
        return None
    return signals


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _keep(file: Path, member: Tensor, signals: Signals) -> None:
    """Cache a model's signals together with the records that it learned."""
    tensors = {"member": member.to(torch.uint8)}
    tensors |= {f"logits/{moment}": value for moment, value in signals.logits.items()}
    tensors |= {f"norms/{moment}": value for moment, value in signals.norms.items()}
    keep_tensors(file, tensors)


def _stacked(signals: Sequence[Signals]) -> Signals:
    """One object for N models, with the moments that all of them have (a client may miss an observed round)."""
    common = [moment for moment in signals[0].logits if all(moment in s.logits for s in signals)]
    return Signals(
        {moment: torch.stack([s.logits[moment] for s in signals]) for moment in common},
        {moment: torch.stack([s.norms[moment] for s in signals]) for moment in common if moment in signals[0].norms},
    )
