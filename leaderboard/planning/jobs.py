"""A job: everything that a worker process needs to compute one training or one cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from pydantic import Field

from leakboard.attacks.base import Attack
from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.plugins import Plugin, Settings
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import Dataset
from leakboard.defenses.base import Defense
from leakboard.federation.models.base import Model
from leakboard.federation.observed import REPLAY_FOLDER
from leakboard.federation.settings import ObservedRounds
from leakboard.federation.transcript import TRANSCRIPT_FILES
from leakboard.leaderboard.records.known import known_goal
from leakboard.leaderboard.records.record import CellSpec, PluginSpec, TrainingSpec

#: seconds between two snapshots of a training; part of no key
CHECKPOINT_SECONDS = 120.0


class Locations(Settings):
    """Locations on this machine: parameters that are not part of records and keys."""

    dataset: dict[str, Any] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    lpips_weights: str = ""
    download: bool = False


class Job(Settings):
    """One training, or one cell of it if `cell` is given."""

    run: str
    training: TrainingSpec
    training_key: str
    data_digest: str
    locations: Locations
    cell: CellSpec | None = None
    key: str = ""
    answer_key: str = ""
    ingredients: dict[str, Any] = Field(default_factory=dict)
    plugin_files: tuple[str, ...] = ()
    device: str = "cpu"
    time_limit: float = 3600
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    published: str = Field("", description="the board whose training this is: it is replayed, and never run here")

    @property
    def title(self) -> str:
        """The name of this job on the terminal."""
        t = self.training
        if self.cell is None:
            server = " (deviating server)" if t.active else ""
            return f"training {t.dataset.label} / {t.defense.label}{server} / seed {t.seed}"
        size = f", batch {self.cell.batch_size}" if self.cell.batch_size > 1 else ""
        moment = f" ({self.cell.moment} round{size})" if self.cell.moment else ""
        where = f"{t.dataset.label} / {t.defense.label} / {self.cell.threat}{moment}"
        return f"{self.cell.attack.label} on {where} / seed {t.seed}"

    @property
    def private_seed(self) -> int:
        """The seed of everything that must not be guessed; it includes the data, which an attack does not have."""
        return derive_seed(self.training.seed, "private", self.data_digest)

    @property
    def training_folder(self) -> Path:
        """The folder of the training."""
        return Path(self.run) / "trainings" / self.training_key

    @property
    def must_be_replayed(self) -> bool:
        """Whether the training is there without its transcript, which its observed rounds give again."""
        folder = self.training_folder
        return not (folder / TRANSCRIPT_FILES[0]).exists() and (folder / REPLAY_FOLDER).is_dir()

    @property
    def is_trained(self) -> bool:
        """Whether the training is there with its transcript."""
        return self.training_folder.is_dir() and not self.must_be_replayed

    @property
    def record_file(self) -> Path:
        """The file of the record."""
        assert self.cell is not None
        return Path(self.run) / "records" / f"{self.cell.slug}--{self.key[:12]}.json"

    @property
    def answer_file(self) -> Path:
        """The file of the attack's answer; a changed metric scores it again without running the attack."""
        assert self.cell is not None
        return Path(self.run) / "records" / f"{self.cell.slug}--{self.answer_key[:12]}.safetensors"

    def make_dataset(self) -> Dataset:
        """The dataset, with its location on this machine."""
        return cast(Dataset, _create("dataset", self.training.dataset, self.locations.dataset))

    def make_model(self) -> Model:
        """The model, with its location on this machine."""
        return cast(Model, _create("model", self.training.model, self.locations.model))

    def make_defense(self) -> Defense:
        """The defense; with a deviating server if the training has one."""
        defense = cast(Defense, _create("defense", self.training.defense, {}))
        if not self.training.active:
            return defense
        deviating = defense.deviate()
        if deviating is None:
            raise UserError(f"The defense '{defense.name}' has no strategy of an active server.")
        return deviating

    def make_attack(self) -> Attack:
        """The attack."""
        assert self.cell is not None
        return cast(Attack, _create("attack", self.cell.attack, {}))


def _create(kind: str, spec: PluginSpec, location: dict[str, Any]) -> Plugin:
    return registry.create(kind, spec.name, {**spec.parameters, **location})


def probe_size(job: Job) -> int:
    """The batch size of the probes in a cell's view: its own, otherwise the smallest."""
    assert job.cell is not None
    if known_goal(job.cell.goal).per_batch_size:
        return job.cell.batch_size
    return ObservedRounds.of_record(job.training.observe).sizes[0]
