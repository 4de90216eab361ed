"""Opening what a party saw in a training of a run."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from leakboard.core import registry
from leakboard.core.errors import UserError, unknown_name
from leakboard.datasets.loading import load_pool
from leakboard.federation.recording import is_recording, load_recording
from leakboard.federation.settings import ObservedRounds, client_name
from leakboard.federation.transcript import TRANSCRIPT_FILES
from leakboard.federation.view import ACTIVE, View, parse_threat
from leakboard.leaderboard.cells.replayed import replay_training
from leakboard.leaderboard.cells.train import load_public, open_view
from leakboard.leaderboard.planning.public_settings import splits_of
from leakboard.leaderboard.planning.run_folder import RunFolder

#: whatever a file that was cut or changed leads to, in JSON, safetensors or our own reading of them
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError)


def load_view(folder: str | Path, threat: str = "server") -> View:
    """What a party saw: from a recording (`leakboard.flower`), or from the folder of one training of a run.

    A recording holds the view of the party that made it. Of a training, the view of a threat is opened without any
    party's own records (`Run.view` has them too).
    """
    path = Path(folder)
    try:
        if is_recording(path):
            return load_recording(path)
        if (path / "public.json").is_file():
            if not (path / TRANSCRIPT_FILES[0]).exists():
                raise UserError(
                    f"The transcript in {path} was removed, because it can be replayed: `Run.view` does that, and "
                    "`run --keep-transcripts` keeps it."
                )
            public = load_public(path)
            return open_view(path, parse_threat(threat, public.training.clients), {})
    except DAMAGE as error:
        raise UserError(f"The transcript in {path} is damaged ({type(error).__name__}).") from None
    raise UserError(f"{path} holds no transcript: give a folder that leakboard.flower wrote, or one of a training.")


def open_view_of(
    opened: RunFolder, threat: str, *, defense: str = "", dataset: str = "", seed: int | None = None
) -> View:
    """The view of a threat on a kept training of a run: the first that fits (see `Run.view`)."""
    jobs = opened.jobs
    if not isinstance(threat, str):
        raise UserError(f"A threat must be text, such as 'server' or 'client'; given: {threat!r:.80}.")
    for given, name, titles in (
        (defense, "defense", [job.training.defense.label for job in jobs]),
        (dataset, "dataset", [job.training.dataset.label for job in jobs]),
    ):
        if given and given not in titles:
            raise unknown_name(f"{name} in this run", given, sorted(set(titles)))
    fits = [
        job
        for job in jobs
        if defense in ("", job.training.defense.label)
        and dataset in ("", job.training.dataset.label)
        and seed in (None, job.training.seed)
        and job.training.active == (threat == ACTIVE)
        and job.training_folder.is_dir()
    ]
    if not fits:
        wanted = f"threat '{threat}', defense '{defense}', dataset '{dataset}', seed {seed}"
        raise UserError(f"No finished training in {opened.folder} fits {wanted}.")
    ObservedRounds.of_record(fits[0].training.observe).check_threat(threat)
    pool = load_pool(fits[0].make_dataset())
    shards = {client_name(i): pool.take(s) for i, s in enumerate(splits_of(fits[0], pool).shards)}
    asked = parse_threat(threat, len(shards))
    folder = fits[0].training_folder
    if fits[0].must_be_replayed:
        for file in fits[0].plugin_files:  # the defense may be one of them
            registry.load_file(file)
        replay_training(fits[0])
    try:
        return open_view(folder, asked, shards)
    except DAMAGE as error:
        raise UserError(f"The training in {folder} is damaged ({type(error).__name__}): run the suite again.") from None
