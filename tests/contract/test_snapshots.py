"""Every defense goes on from a snapshot as if nothing had happened, and its observed rounds run again alone.

A kill is an exception in the middle of a round, after which only files are left. New objects are made from them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakboard.contract import apply
from leakboard.contract.snapshots import check_goes_on_from_a_snapshot_of_every_round
from leakboard.contract.worlds import digits, make_public, really_encrypts
from leakboard.core.errors import UserError
from leakboard.core.seeds import derive_seed
from leakboard.defenses.base import Defense
from leakboard.federation.observed import bits_agree, check_replayed, recorded_digest, replay_observed, save_replay
from leakboard.federation.outcome import Outcome
from leakboard.federation.party import Party
from leakboard.federation.payload import raw_bytes
from leakboard.federation.replay import differences
from leakboard.federation.rounds import Federation
from leakboard.federation.settings import Dropout, ObservedRounds, Public, client_name
from leakboard.federation.snapshot import ReplaySnapshot, Snapshot, machine
from leakboard.federation.transcript import Transcript
from tests.contract.cheats import RemembersInTheModule, RemembersInTheParty, RemembersOnItsOwn
from tests.contract.plugins import defenses, title

ROUNDS, CLIENTS, SHARD, SEED = 5, 3, 12, 7
EVERYTHING = ObservedRounds(rounds=("first", "middle", "last"), targets=2)
each_defense = pytest.mark.parametrize(
    "defense",
    [
        pytest.param(defense, id=title(defense), marks=[pytest.mark.slow] if "-real" in title(defense) else [])
        for defense in defenses()
    ],
)
DATA = digits()


class Killed(Exception):
    """Stands for kill -9: nothing in memory is used afterwards."""


@dataclass(frozen=True)
class Setting:
    """A federation that can be made again."""

    defense: Defense
    public: Public
    observe: ObservedRounds = EVERYTHING

    def shards(self) -> dict[str, Any]:
        order = torch.randperm(len(DATA.labels), generator=torch.Generator().manual_seed(1))
        return {client_name(i): DATA.take(order[i * SHARD : (i + 1) * SHARD]) for i in range(CLIENTS)}

    def make(self, **changes: Any) -> Federation:
        defense = type(self.defense).model_validate(self.defense.parameters())
        return Federation(defense, self.public, self.shards(), self.observe, SEED, kept=ReplaySnapshot(), **changes)


def setting_of(defense: Defense, **training: Any) -> Setting:
    """Two of three clients take part in a round, or all of them where the scheme needs that."""
    network: dict[str, object] = {"hidden": [2 if really_encrypts(defense) else 4]}
    whole = make_public(defense, DATA, model_parameters=network, rounds=ROUNDS, shard=SHARD)
    some = whole.model_copy(update={"training": whole.training.model_copy(update={"participants": 2, **training})})
    try:
        defense.check(some)
    except UserError:
        return Setting(
            defense, whole.model_copy(update={"training": whole.training.model_copy(update=training)}), EVERYTHING
        )
    return Setting(defense, some)


def kill_in(federation: Federation, moment: int) -> None:
    """Let the federation die before its step number `moment` from now, counted over all parties."""
    left = [moment]
    run = type(federation)._step

    def step(*args: Any) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        run(federation, *args)

    federation._step = step  # type: ignore[method-assign, assignment]


def killed_twice(setting: Setting, folder: Path, seed: int) -> Outcome:
    """The outcome of a run that was killed at two random moments, with a snapshot after every round."""
    lots, last = random.Random(seed), None
    for life in range(3):
        home = folder / str(life)
        home.mkdir(parents=True)

        def save(done: int, take: Callable[[], Snapshot], home: Path = home) -> None:
            (home / str(done)).mkdir()
            take().save(home / str(done), machine())

        federation = setting.make(at_boundary=save)
        if last is not None:
            federation.restore(Snapshot.load(last, machine()))
        if life < 2:
            kill_in(federation, lots.randrange(4, 16))
        try:
            return federation.run()
        except Killed:
            last = max((f for f in home.iterdir()), key=lambda found: int(found.name), default=last)
    raise AssertionError("it was killed too often")


def contents(outcome: Outcome) -> dict[str, Any]:
    """Everything but time."""
    assert outcome.replay is not None
    return {
        "model": outcome.model,
        "models": {str(index): model for index, model in outcome.models.items()},
        "batches": {str(index): batch for index, batch in outcome.batches.items()},
        "transcript": outcome.transcript.digest(),
        "bytes": dict(outcome.bytes_by_kind),
        "ledger": vars(outcome.ledger),
        "client rounds": outcome.client_rounds,
        "observed": {str(index): moment for index, moment in outcome.observed.items()},
        "phases": dict.fromkeys(sorted(outcome.seconds)),
        "sampled": dict.fromkeys(sorted(outcome.extrapolated)),
        "secrets": dict(outcome.secrets),
        "held": outcome.replay.held,
    }


@each_defense
def test_a_run_that_was_killed_twice_ends_as_if_it_had_not_been(defense: Defense, tmp_path: Path) -> None:
    setting = setting_of(defense)
    whole = setting.make().run()
    again = killed_twice(setting, tmp_path, derive_seed("kills", title(defense)))
    assert list(differences(contents(whole), contents(again))) == []


@pytest.mark.parametrize("defense", [d for d in defenses() if d.name in ("fedsgd", "secagg", "mp-dp")], ids=title)
def test_dropouts_before_and_after_a_kill_change_nothing(defense: Defense, tmp_path: Path) -> None:
    step = next(s.name for s in reversed(defense.protocol()) if s.role == "client")
    drops = tuple(Dropout(client=1, round=r, step=step) for r in (1, 3))
    setting = setting_of(defense, participants=None, dropouts=drops)
    whole, again = setting.make().run(), killed_twice(setting, tmp_path, 3)
    assert list(differences(contents(whole), contents(again))) == []
    assert whole.bytes_by_kind != setting_of(defense, participants=None).make().run().bytes_by_kind


def test_a_dropout_before_the_update_leaves_nothing_that_a_snapshot_cannot_store(tmp_path: Path) -> None:
    """The sum of all clients' integers, which ddg measures, is never complete in such a round."""
    (defense,) = (d for d in defenses() if d.name == "ddg")
    drops = tuple(Dropout(client=1, round=r, step="update") for r in (1, 3))
    setting = setting_of(defense, participants=None, dropouts=drops)
    whole, again = setting.make().run(), killed_twice(setting, tmp_path, 3)
    assert list(differences(contents(whole), contents(again))) == []
    assert "wrapped_share" in whole.ledger.worst


def replayed(setting: Setting, outcome: Outcome, folder: Path) -> Transcript:
    save_replay(folder, outcome, outcome.transcript, "k", SEED)
    defense = type(setting.defense).model_validate(setting.defense.parameters())
    again = replay_observed(folder, defense, setting.public, setting.shards(), setting.observe, SEED)
    return again.transcript


@each_defense
def test_the_observed_rounds_run_again_alone_give_the_same_transcript(defense: Defense, tmp_path: Path) -> None:
    setting = setting_of(defense)
    outcome = setting.make().run()
    again = replayed(setting, outcome, tmp_path / "replay")
    assert again.digest() == recorded_digest(tmp_path / "replay") == outcome.transcript.digest()
    assert bits_agree(tmp_path / "replay")
    # no record of anybody is in the files: neither whole nor a few rows of its pixels
    content = b"".join(path.read_bytes() for path in (tmp_path / "replay").iterdir())
    images = [image for shard in setting.shards().values() for image in shard.images]
    assert not any(raw_bytes(image[0, 14:18]) in content for image in images)


@pytest.mark.parametrize("changes", [{"witnesses": 2}, {"rounds": ("last",)}, {"rounds": ()}], ids=str)
@pytest.mark.parametrize("defense", [d for d in defenses() if d.name in ("fedsgd", "secagg", "mp-dp")], ids=title)
def test_a_replay_with_few_witnesses_or_few_rounds(defense: Defense, changes: Any, tmp_path: Path) -> None:
    setting = replace(setting_of(defense), observe=EVERYTHING.model_copy(update=changes))
    outcome = setting.make().run()
    assert replayed(setting, outcome, tmp_path / "replay").digest() == outcome.transcript.digest()


def test_a_replay_of_a_run_that_recorded_everything_gives_the_observed_part(tmp_path: Path) -> None:
    setting = setting_of(defenses()[0])
    outcome = setting.make(record_all=True).run()
    observed = [o for o in outcome.transcript.observations if o.context.kind != "train" or o.context.round in (0, 2, 4)]
    assert len(observed) < len(outcome.transcript.observations)
    again = replayed(setting, outcome, tmp_path / "replay")
    assert again.digest() == Transcript(tuple(observed)).digest()


def test_a_replay_of_a_dropout(tmp_path: Path) -> None:
    (defense,) = (d for d in defenses() if d.name == "secagg")
    step = next(s.name for s in reversed(defense.protocol()) if s.role == "client")
    setting = setting_of(defense, participants=None, dropouts=(Dropout(client=1, round=2, step=step),))
    outcome = setting.make().run()
    assert replayed(setting, outcome, tmp_path / "replay").digest() == outcome.transcript.digest()


def test_the_first_round_and_the_closing_steps_cost_no_state(tmp_path: Path) -> None:
    """The set-up is run again from the seed, and the last round ends where the closing steps start."""
    setting = setting_of(defenses()[0], participants=None)
    outcome = setting.make().run()
    assert outcome.replay is not None
    held = {index: sorted(stage.states) for index, stage in outcome.replay.stages.items()}
    assert held == {0: [], 2: ["server"], 4: ["server"], 5: []}


@pytest.mark.parametrize("cheat", [RemembersOnItsOwn, RemembersInTheParty, RemembersInTheModule])
def test_what_hides_from_the_state_breaks_the_rule(cheat: type[Defense]) -> None:
    result = apply(check_goes_on_from_a_snapshot_of_every_round, cheat())
    assert result.outcome == "broken"
    assert "it did something else in round" in result.reason


class Deviates(type(defenses()[0])):  # type: ignore[misc]
    """Another defense than the one whose files are read."""

    def third_parties(self) -> tuple[str, ...]:
        return ("stranger",)

    def protect(self, me: Party, gradient: Any) -> Any:
        return {name: 2 * value for name, value in gradient.items()}


def test_another_seed_and_another_defense_are_told(tmp_path: Path) -> None:
    setting = setting_of(defenses()[0])
    outcome = setting.make().run()
    replayed(setting, outcome, tmp_path / "replay")
    given = (setting.public, setting.shards(), setting.observe)
    with pytest.raises(UserError, match="another seed"):
        replay_observed(tmp_path / "replay", setting.defense, *given, SEED + 1)
    found = replay_observed(tmp_path / "replay", Deviates(), *given, SEED)
    assert found.transcript.digest() != recorded_digest(tmp_path / "replay")
    with pytest.raises(UserError, match="The replayed rounds differ from the recorded ones"):
        check_replayed(tmp_path / "replay", found, found.transcript)


def test_a_machine_is_its_processor_and_not_the_instruction_set_alone() -> None:
    """Two processors with AVX-512 gave other last bits: there only the norms can be compared."""
    said = str(machine()["cpu"])
    capability = torch.backends.cpu.get_cpu_capability()
    assert said.startswith(f"{capability} ")
    assert len(said) > len(capability) + 1


def test_on_another_machine_the_norms_of_the_models_are_compared(tmp_path: Path) -> None:
    setting, folder = setting_of(defenses()[0]), tmp_path / "replay"
    outcome = setting.make().run()
    replayed(setting, outcome, folder)
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "cpu": "another", "transcript": "f" * 64}))
    assert not bits_agree(folder)
    check_replayed(folder, outcome, outcome.transcript)
    for factor, fits in ((1 + 1e-5, True), (1.5, False)):
        model = {name: factor * value for name, value in outcome.model.items()}
        with nullcontext() if fits else pytest.raises(UserError, match=r"The replayed model \(final\) differs"):
            check_replayed(folder, replace(outcome, model=model), outcome.transcript)
