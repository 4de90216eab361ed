"""The paper's tables with the same rows and columns: our numbers from a run, then the paper's (`paper.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from leakboard.core import registry
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.records.record import Record, TrainingSpec, TrainingSummary
from leakboard.leaderboard.tables.phase_times import EXTRAPOLATED, PHASES, seconds_per_round
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

#: the target accuracy (%) in the paper's table of efficiency, by data set
TARGETS = {"cifar10": 65.0, "cifar100": 40.0}
#: our attacks for the columns of the paper's attacks (GIFD; Baluta et al. on outputs): the first that was run is shown
RECONSTRUCTION = ("gifd", "inverting-gradients", "idlg", "dlg", "analytic")
MEMBERSHIP = ("known-members", "shadow", "loss-threshold")
METHOD = Column("method", "method")
ACCURACY = Column("accuracy", "accuracy", "%", "higher")
EPOCH = Column("epoch", "one epoch", "s", "lower", 3)
PSNR, ASR = Column("psnr", "PSNR", "dB", "lower"), Column("asr", "ASR", "%", "lower")


@cache
def paper_figures() -> Mapping[str, list[dict[str, Any]]]:
    """The paper's own numbers, by table."""
    found: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text())
    return found


@dataclass(frozen=True)
class _Setting:
    """One data set, model and number of clients of a run, with its records by defense."""

    dataset: str
    model: str
    clients: int
    records: Mapping[str, Sequence[Record]]

    @property
    def paper_dataset(self) -> str:
        """The paper's data set that ours is, or is a part of, by the beginning of its label; empty if there is none."""
        names = ("cifar100", "cifar10", "breakhis")
        return next((name for name in names if self.dataset.replace("-", "").startswith(name)), "")

    def trainings(self, defense: str) -> list[TrainingSummary]:
        """Each training of a defense once."""
        return list({r.training.key: r.training for r in self.records[defense] if r.training is not None}.values())

    def accuracy(self, defense: str) -> float | None:
        """Mean accuracy over seeds, in percent."""
        found = [100 * summary.accuracy for summary in self.trainings(defense) if summary.accuracy is not None]
        return fmean(found) if found else None

    def seconds(self, defense: str) -> tuple[float, float]:
        """CPU seconds per round of the server with the keys, and of one client, including extrapolated seconds."""
        found = seconds_per_round(self.trainings(defense))
        parts = {key: value for key, value in found.items() if not key.startswith("total")}
        client = sum(value for key, value in parts.items() if key.startswith("client/"))
        return sum(parts.values()) - client, client

    def rounds_per_epoch(self, defense: str) -> float:
        """Rounds per epoch; 1 if the suite counts rounds."""
        epochs = self.records[defense][0].cell.training.training.get("epochs")
        return self.trainings(defense)[0].rounds / epochs if isinstance(epochs, int) and epochs > 0 else 1.0

    @property
    def counts_rounds(self) -> bool:
        """Whether the suite counts rounds instead of epochs."""
        return any(found[0].cell.training.training.get("epochs") is None for found in self.records.values())

    def table(
        self,
        kind: str,
        title: str,
        columns: Sequence[Column],
        ours: Mapping[str, Mapping[str, Cell]],
        notes: Sequence[str] = (),
    ) -> Table:
        """Our rows, then the paper's for the same data set and number of clients."""
        rows = [Row({METHOD.key: Cell(name), **cells}, self._scale()) for name, cells in ours.items()]
        keys = [column.key for column in columns]
        rows += [
            Row({key: Cell(printed[key]) for key in (METHOD.key, *keys) if key in printed}, "the paper's own figures")
            for printed in paper_figures()[kind]
            if (printed["dataset"], printed["clients"]) == (self.paper_dataset, self.clients)
        ]
        shown = [column for column in columns if any(row.cell(column).value is not None for row in rows)]
        gaps = any(row.cell(column).note for row in rows for column in columns if column not in shown)
        shown = list(columns) if gaps else shown  # a column of dashes stays if it has footnotes
        kept = tuple(Row({c.key: row.cell(c) for c in (METHOD, *shown)}, row.section) for row in rows)
        more = ("This suite counts rounds: an epoch here is one round.",) if self.counts_rounds else ()
        where = f"{title}, {self.dataset}, K = {self.clients}, {self._batches(kind)}"
        return Table(where, (METHOD, *shown), kept, (*notes, *more)).mark_best(within_sections=True)

    def _batches(self, kind: str) -> str:
        """Which batches a table is about, for its caption."""
        if kind == "reconstruction":
            return f"gradients of batches of {self.attacked_batch}"
        return f"trained on batches of {self._spec.training.get('batch_size', '?')}"

    @property
    def attacked_batch(self) -> int:
        """The batch size of the setting's reconstructions."""
        every = (record.cell for records in self.records.values() for record in records)
        return next(cell.batch_size for cell in every if cell.goal == "reconstruction")

    @property
    def _spec(self) -> TrainingSpec:
        """One of the trainings."""
        return next(iter(self.records.values()))[0].cell.training

    def _scale(self) -> str:
        """The scale of our numbers."""
        summary = next(iter(self.records.values()))[0].training
        seeds = sorted({r.cell.training.seed for records in self.records.values() for r in records})
        rounds = "" if summary is None else f", {summary.rounds} rounds"
        numbers = ", ".join(map(str, seeds))
        return f"ours: {self.model}{rounds}, batch {self._spec.training.get('batch_size', '?')}, seeds {numbers}"


def paper_tables(records: Sequence[Record], target: float | None = None) -> list[Table]:
    """Every table of the paper for which the run has records. `target` is the accuracy (%) for the time to accuracy."""
    tables = []
    for setting in _settings(records):
        tables += [_efficiency(setting, target), _phases(setting)]
        tables += [_attacked(setting, goal) for goal in ("reconstruction", "membership") if _choose(setting, goal)]
        if setting.paper_dataset == "breakhis":
            tables.append(_medical(setting))
    return tables


def _settings(records: Sequence[Record]) -> list[_Setting]:
    groups: dict[tuple[str, str, int], dict[str, list[Record]]] = {}
    sizes = [record.cell.batch_size for record in records if record.cell.goal == "reconstruction"]
    for record in records:
        if record.training is None or record.cell.training.active or record.cell.about == "batch":
            continue  # the paper has neither an active server nor batch membership
        if record.cell.goal == "reconstruction" and record.cell.batch_size > min(sizes):
            continue  # one number per defense: the notes name the smallest batch size
        spec = record.cell.training
        clients = record.training.client_rounds // max(1, record.training.rounds)
        found = groups.setdefault((spec.dataset.label, spec.model.label, clients), {})
        # records from before a plugin was renamed are in the row of its new name
        found.setdefault(registry.canonical_name("defense", spec.defense.label), []).append(record)
    return [
        _Setting(*key, {name: found[name] for name in natural_order(found)}) for key, found in sorted(groups.items())
    ]


# --- time ---------------------------------------------------------------------------------------

CLOCKS = (
    "Our numbers are CPU seconds of one thread (with extrapolated seconds, if cryptography was sampled). The paper's "
    "are wall seconds with 20 cores and a GPU. Compare rows within a block."
)


def _efficiency(setting: _Setting, target: float | None) -> Table:
    """Time of the server, of a client, of one epoch, and to the target accuracy."""
    target = target if target is not None else TARGETS.get(setting.paper_dataset)
    columns = [Column(key, key, "s", "lower", 3) for key in ("server", "client")]
    columns += [EPOCH, Column("to_target", "to target accuracy", "s", "lower", 3)]
    ours = {}
    for defense in setting.records:
        (server, client), times = setting.seconds(defense), setting.rounds_per_epoch(defense)
        ours[defense] = {
            "server": Cell(server * times),
            "client": Cell(client * times),
            "epoch": Cell((server + client) * times),
            "to_target": _to_target(setting, defense, target),
        }
    aim = f"The target is {target:g} % test accuracy, checked at the end of epochs." if target is not None else ""
    curves = dict.fromkeys(one.curve_note() for defense in setting.records for one in setting.trainings(defense))
    notes = (CLOCKS, *filter(None, [aim, *(f"{note.capitalize()}." for note in curves if note)]))
    return setting.table("efficiency", "Computational efficiency", columns, ours, notes)


def _to_target(setting: _Setting, defense: str, target: float | None) -> Cell:
    """CPU seconds until the test accuracy first reached the target: the mean over seeds, if all reached it."""
    if target is None:
        return Cell(None, note="no target accuracy: --target gives one")
    rounds = []
    for summary in setting.trainings(defense):
        reached = [r for r, share in sorted(summary.accuracy_by_round.items()) if 100 * share >= target]
        if not reached:
            best = max(summary.accuracy_by_round.values(), default=None)
            seen = "its accuracy was never measured" if best is None else f"at most {100 * best:.1f} %"
            return Cell(None, note=f"{target:g} % was not reached: {seen}")
        rounds.append(reached[0])
    return Cell(fmean(rounds) * sum(setting.seconds(defense)))


def _phases(setting: _Setting) -> Table:
    """Seconds per epoch by phase."""
    columns = [Column(key, name, "s", None, 3) for key, name in (*PHASES, ("total", "total"))]
    ours = {}
    for defense in setting.records:
        found, times = seconds_per_round(setting.trainings(defense)), setting.rounds_per_epoch(defense)
        cells = {}
        for key, _ in PHASES:
            parts = [found[name] for name in (key, f"{key}{EXTRAPOLATED}") if name in found]
            cells[key] = Cell(times * sum(parts)) if parts else Cell(None)
        ours[defense] = {**cells, "total": Cell(times * sum(setting.seconds(defense)))}
    return setting.table("phases", "Seconds per epoch by phase", columns, ours, (CLOCKS,))


# --- attacks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """The plain attack of ours for the column of the paper's attack, and the observed round."""

    attack: str
    moment: str | None


def _choose(setting: _Setting, goal: str) -> _Choice | None:
    """The first plain attack of the list that was run, in the round in which it harms FedSGD most."""
    preferred, metric = (RECONSTRUCTION, "psnr") if goal == "reconstruction" else (MEMBERSHIP, "asr")
    rows = setting.records.get("fedsgd") or next(iter(setting.records.values()))
    for name in preferred:
        options: dict[_Choice, list[float]] = {}
        for record in rows:
            score = record.scores.get(metric)
            plain = record.cell.goal == goal and not record.cell.adaptive and record.cell.attack.name == name
            if plain and score is not None and score.value is not None:
                options.setdefault(_Choice(record.cell.attack.label, record.cell.moment), []).append(score.value)
        if options:
            return max(options, key=lambda choice: fmean(options[choice]))
    return None


def _mean(records: Sequence[Record], metric: str) -> float | None:
    """The mean of a metric over seeds, shares in percent; None if there is no value."""
    values = [r.scores[metric].value for r in records if r.status == "ok" and metric in r.scores]
    found = [value for value in values if value is not None]
    return (100 if metric == "asr" else 1) * fmean(found) if found else None


def _plain(setting: _Setting, defense: str, choice: _Choice | None) -> list[Record]:
    """The records of the chosen attack on a defense: with the keys if the run has that threat, else without."""
    if choice is None:
        return []
    fitting = [r for r in setting.records[defense] if _Choice(r.cell.attack.label, r.cell.moment) == choice]
    opened = [r for r in fitting if r.cell.threat == "server+keys" and r.status == "ok"]
    return opened or [r for r in fitting if r.cell.threat in ("server", "client")]


def _strongest(setting: _Setting, defense: str, goal: str, metric: str) -> tuple[float, str] | None:
    """The largest mean of a metric over all attacks and semi-honest threats, and the attack that reached it."""
    groups: dict[str, list[Record]] = {}
    for record in setting.records[defense]:
        if record.cell.goal == goal:
            where = f"{record.cell.attack.label}, {record.cell.threat}"
            groups.setdefault(f"{where}, {record.cell.moment}" if record.cell.moment else where, []).append(record)
    found = {where: value for where, group in groups.items() if (value := _mean(group, metric)) is not None}
    return max(((value, where) for where, value in found.items()), default=None)


def _attacked(setting: _Setting, goal: str) -> Table:
    """Accuracy and the result of the paper's attack, then our strongest attack, which the paper does not have."""
    images, choice = goal == "reconstruction", _choose(setting, goal)
    assert choice is not None
    mses = [Column("test_mse", "Test-MSE", "", "higher"), Column("feat_mse", "Feat-MSE", "", "higher", significant=2)]
    shown = [PSNR, *mses] if images else [ASR]
    score = "psnr" if images else "auc"
    most = Column("most", f"strongest attack's {score.upper()}", "dB" if images else "", "lower")
    ours = {}
    for defense in setting.records:
        records, worst = _plain(setting, defense, choice), _strongest(setting, defense, goal, score)
        ours[defense] = {
            "accuracy": Cell(setting.accuracy(defense)),
            **{column.key: Cell(_mean(records, column.key)) for column in shown},
            **({} if worst is None else {"most": Cell(worst[0]), "attack": Cell(worst[1])}),
        }
    where = f", {choice.moment} round" if choice.moment else ""
    if images:
        where += f", batch size {setting.attacked_batch}"
    opened = [d for d in setting.records if any(r.cell.threat == "server+keys" for r in _plain(setting, d, choice))]
    keys = (
        f"ciphertexts are decrypted (server+keys) for {', '.join(opened)}" if opened else "no ciphertext is decrypted"
    )
    notes = (
        f"The paper's columns show our plain attack {choice.attack}{where}, over all targets"
        + (f"; {keys}." if images else "."),
        "The strongest attack has the largest mean over all targets, among all attacks, threats and rounds of this "
        "run, guesses included. (The ranking tables choose it on other targets than those on which they report it.)",
    )
    columns = (ACCURACY, *shown, most, Column("attack", "strongest attack"))
    return setting.table(goal, f"{goal.capitalize()} as in the paper", columns, ours, notes)


def _medical(setting: _Setting) -> Table:
    """Accuracy, time per epoch, PSNR, ASR."""
    ours = {
        defense: {
            "accuracy": Cell(setting.accuracy(defense)),
            "epoch": Cell(sum(setting.seconds(defense)) * setting.rounds_per_epoch(defense)),
            "psnr": Cell(_mean(_plain(setting, defense, _choose(setting, "reconstruction")), "psnr")),
            "asr": Cell(_mean(_plain(setting, defense, _choose(setting, "membership")), "asr")),
        }
        for defense in setting.records
    }
    notes = (CLOCKS, "Our PSNR and ASR are over all targets.")
    return setting.table("medical", "The medical case", (ACCURACY, EPOCH, PSNR, ASR), ours, notes)
