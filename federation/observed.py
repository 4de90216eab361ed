"""The observed rounds of a finished training, run again without training: the same transcript in seconds.

`save_replay` writes what that takes. `replay_observed` runs the set-up, the observed rounds with their probes, and the
closing steps. The records come from the caller: the files hold the states and keys of parties, and no image unless a
defense keeps one in a state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from leakboard.core.errors import UserError
from leakboard.core.seeds import digest_of
from leakboard.datasets.base import LabelledImages
from leakboard.federation.outcome import Outcome
from leakboard.federation.rounds import Federation, Scheme
from leakboard.federation.settings import ObservedRounds, Public
from leakboard.federation.snapshot import REPLAY, ReplaySnapshot, check_about, checked, machine, replay_value
from leakboard.federation.transcript import Transcript
from leakboard.federation.value_files import Damaged, load_value, read_about, save_value

#: the folder of the snapshot, inside the folder of a training
REPLAY_FOLDER = "replay"
#: bytes of a snapshot, which may come from anybody
MOST_REPLAY = 2**30
#: on another machine the norm of each tensor of a replayed model may differ by this share; one step rounds far less
TOLERANCE = 1e-3


def save_replay(folder: Path, outcome: Outcome, transcript: Transcript, training_key: str, seed: int) -> None:
    """Write what a replay needs into a new folder, with the digest of the transcript that it must give."""
    if outcome.replay is None:
        raise ValueError("the run kept nothing to replay")
    replay = replace(outcome.replay, norms=_norms(outcome))
    folder.mkdir()
    about = {"training": training_key, "transcript": transcript.digest(), **machine()}
    save_value(folder, replay_value(replay), {**_kind(seed), **about})


def replay_observed(
    folder: Path,
    defense: Scheme,
    public: Public,
    shards: Mapping[str, LabelledImages],
    observe: ObservedRounds,
    private_seed: int,
) -> Outcome:
    """All that was observed in a training, by running only that again; `Damaged` says why a folder cannot be used.

    With the torch build, processor and number of threads of the training, every bit is the same (`bits_agree`).
    Whoever uses the outcome compares it with what was recorded (`check_replayed`).
    """
    check_about(folder, _kind(private_seed))
    replay, federation = _load(folder), Federation(defense, public, shards, observe, private_seed)
    try:
        return federation.replay(replay)
    except UserError:
        raise
    except Exception as error:  # the defense's own code on states that it did not make
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Damaged(f"The rounds cannot be replayed from these states: {said}.") from error


def check_replayed(folder: Path, outcome: Outcome, transcript: Transcript) -> None:
    """Refuse a replay that does not give what was recorded: every bit, or on another machine the norms of the models.

    `transcript` is what of the outcome is stored (`view.seeable`).
    """
    if bits_agree(folder):
        if transcript.digest() != recorded_digest(folder):
            raise Damaged(
                "The replayed rounds differ from the recorded ones: the snapshot or the defense's code was changed."
            )
        return
    found, recorded = _norms(outcome), _load(folder).norms
    for when in sorted({*found, *recorded}):
        mine, theirs = found.get(when, {}), recorded.get(when, {})
        if mine.keys() != theirs.keys() or not all(_close(mine[name], theirs[name]) for name in mine):
            raise Damaged(
                f"The replayed model ({when}) differs from the recorded one by more than rounding (tolerance "
                f"{TOLERANCE:g}): the snapshot or the defense's code was changed."
            )


def _load(folder: Path) -> ReplaySnapshot:
    found: ReplaySnapshot = checked(REPLAY, load_value(folder, MOST_REPLAY))
    return found


def _norms(outcome: Outcome) -> dict[str, dict[str, float]]:
    """The Euclidean norm of each tensor of the models at the observed rounds and at the end."""
    models = {**{f"round {index}": model for index, model in outcome.models.items()}, "final": outcome.model}
    return {when: {name: float(v.double().norm()) for name, v in model.items()} for when, model in models.items()}


def _close(one: float, two: float) -> bool:
    both_broken = not math.isfinite(one) and not math.isfinite(two)
    return both_broken or abs(one - two) <= TOLERANCE * max(1.0, abs(one), abs(two))


def bits_agree(folder: Path) -> bool:
    """Whether a replay here gives every bit that was recorded; elsewhere values differ by rounding."""
    about = read_about(folder)
    return all(about.get(name) == value for name, value in machine().items())


def recorded_digest(folder: Path) -> str:
    """The digest of the training's transcript, without what no threat sees (`view.seeable`)."""
    return str(read_about(folder).get("transcript", ""))


def _kind(seed: int) -> dict[str, str | int]:
    # the seed itself is not stored: whoever has the data can compute it
    return {"kind": "replay", "seed": digest_of("replay", seed)}
