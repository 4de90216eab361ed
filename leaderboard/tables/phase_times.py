"""The paper's table of phase times: the cost of a round for the server and for a client, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.records.record import Record, TrainingSummary
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

#: the paper's columns: role and phase; server, dealer or authority, and clients all make keys
SERVER_PHASES = ("MP", "Recover", "Agg", "Grad_Dec", "DP")
CLIENT_PHASES = ("Train", "Grad_Enc", "DP", "Grad_Dec")
PHASES = (
    *((f"server/{phase}", f"server {phase}") for phase in SERVER_PHASES),
    ("keys/Key_Gen", "Key_Gen"),
    *((f"client/{phase}", f"client {phase}") for phase in CLIENT_PHASES),
)
MEASURED, EXTRAPOLATED = "", " (extrapolated)"
NOTES = (
    "CPU seconds of one thread per round: those of the server for all clients, those of a client as the mean over all "
    "clients of the round (client Grad_Dec too, although only some clients decrypt).",
    "Key_Gen is the set-up and all key material of the run, divided by its rounds: server, dealer or authority, and "
    "one client (tables of powers are built once per process and counted for one client).",
    "The total is the server, the keys and one client, because clients work in parallel.",
)


@dataclass(frozen=True, order=True)
class Setting:
    """Phase times are compared within a setting."""

    dataset: str
    model: str
    clients: int

    @property
    def words(self) -> str:
        """The setting in words, for titles."""
        return f"{self.dataset}, {self.model}, K = {self.clients}"


def timed_trainings(records: Sequence[Record]) -> dict[Setting, dict[str, list[TrainingSummary]]]:
    """The trainings by setting and defense, each once. Trainings with a deviating server are left out."""
    groups: dict[Setting, dict[str, dict[str, TrainingSummary]]] = {}
    for record in records:
        spec, summary = record.cell.training, record.training
        if summary is None or spec.active:
            continue
        clients = int(summary.client_rounds / max(1, summary.rounds))
        group = groups.setdefault(Setting(spec.dataset.label, spec.model.label, clients), {})
        group.setdefault(spec.defense.label, {})[summary.key] = summary
    return {
        setting: {name: list(groups[setting][name].values()) for name in natural_order(groups[setting])}
        for setting in sorted(groups)
    }


def phase_tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set, model and number of clients. Each training counts once; seeds are averaged."""
    return [
        _table(f"CPU seconds per round by phase, {setting.words}", found)
        for setting, found in timed_trainings(records).items()
    ]


def _table(title: str, found: Mapping[str, Sequence[TrainingSummary]]) -> Table:
    rows = {name: seconds_per_round(trainings) for name, trainings in found.items()}
    used = {key for row in rows.values() for key in row}
    columns = [Column("defense", "defense")]
    for kind in (MEASURED, EXTRAPOLATED):
        known = (*PHASES, *_own_phases(used))
        some = [Column(f"{key}{kind}", f"{name}{kind}", digits=3) for key, name in known if f"{key}{kind}" in used]
        if some:
            columns += [*some, Column(f"total{kind}", "total" if not kind else "total with extrapolated", digits=3)]
    body = tuple(
        Row({"defense": Cell(name), **{c.key: Cell(row.get(c.key)) for c in columns[1:]}}) for name, row in rows.items()
    )
    return Table(title, tuple(columns), body, NOTES)


def _own_phases(used: set[str]) -> list[tuple[str, str]]:
    """The phases that defenses named themselves, with their titles; the server's first, as in `PHASES`."""
    keys = {key.removesuffix(EXTRAPOLATED) for key in used if "/" in key} - {key for key, _ in PHASES}
    ordered = sorted(natural_order(keys), key=lambda key: (key.startswith("client/"), not key.startswith("server/")))
    return [(key, key.replace("/", " ", 1)) for key in ordered]


def seconds_per_round(trainings: Sequence[TrainingSummary]) -> dict[str, float]:
    """Seconds per round by phase, measured and extrapolated separately, and the totals of both."""
    found: dict[str, float] = {}
    for kind in (MEASURED, EXTRAPOLATED):
        for summary in trainings:
            seconds = summary.cpu_seconds if kind == MEASURED else summary.extrapolated_seconds
            for key, value in seconds.items():
                phase = key.partition("/")[2]
                name = "keys/Key_Gen" if phase == "Key_Gen" else key
                turns = summary.client_rounds if key.startswith("client/") else summary.rounds
                found[f"{name}{kind}"] = found.get(f"{name}{kind}", 0.0) + value / max(1, turns) / len(trainings)
    found[f"total{MEASURED}"] = sum(value for key, value in found.items() if not key.endswith(EXTRAPOLATED))
    if any(s.claims.get("crypto") == "sampled" and not s.extrapolated_seconds for s in trainings):
        del found[f"total{MEASURED}"]  # no total, because nothing was encrypted
        return found
    extrapolated = sum(value for key, value in found.items() if key.endswith(EXTRAPOLATED))
    if extrapolated:
        del found[f"total{MEASURED}"]  # a total without encryption would be misleading
        found[f"total{EXTRAPOLATED}"] = extrapolated + sum(v for k, v in found.items() if not k.endswith(EXTRAPOLATED))
    return found


def round_seconds(trainings: Sequence[TrainingSummary]) -> float | None:
    """CPU seconds of a round in all, extrapolated ones included; None where that is not known."""
    if not trainings:
        return None
    found = seconds_per_round(trainings)
    return found.get(f"total{EXTRAPOLATED}", found.get(f"total{MEASURED}"))
