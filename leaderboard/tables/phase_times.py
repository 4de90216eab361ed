"""The paper's table of phase times: what a round costs the server and a client, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leakboard.core.seeds import natural_order
from leakboard.leaderboard.records.record import Record, TrainingSummary
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

#: the paper's columns: who, which phase; keys are made by the server, a dealer or authority, and clients
SERVER_PHASES = ("MP", "Recover", "Agg", "Grad_Dec", "DP")
CLIENT_PHASES = ("Train", "Grad_Enc", "DP", "Grad_Dec")
PHASES = (
    *((f"server/{phase}", f"server {phase}") for phase in SERVER_PHASES),
    ("keys/Key_Gen", "Key_Gen"),
    *((f"client/{phase}", f"client {phase}") for phase in CLIENT_PHASES),
)
MEASURED, EXTRAPOLATED = "", " (extrapolated)"
NOTES = (
    "CPU seconds of one thread a round: the server's for all clients, a client's as the mean over the clients that "
    "took part (so client Grad_Dec is spread over all, though only some decrypt).",
    "Key_Gen is set-up and all key material of the run over its rounds: server, dealer or authority, and one client "
    "(tables of powers are built once a process and counted for one client).",
    "The total is the server, the keys and one client: clients work side by side.",
)


@dataclass(frozen=True, order=True)
class Setting:
    """What phase times are compared within."""

    dataset: str
    model: str
    clients: int

    @property
    def words(self) -> str:
        """For titles."""
        return f"{self.dataset}, {self.model}, K = {self.clients}"


def timed_trainings(records: Sequence[Record]) -> dict[Setting, dict[str, list[TrainingSummary]]]:
    """The trainings by setting and defense, each once; those in which the server deviates are left out."""
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
    """One table a data set, model and number of clients; each training counts once, seeds are averaged."""
    return [
        _table(f"CPU seconds a round by phase, {setting.words}", found)
        for setting, found in timed_trainings(records).items()
    ]


def _table(title: str, found: Mapping[str, Sequence[TrainingSummary]]) -> Table:
    rows = {name: seconds_per_round(trainings) for name, trainings in found.items()}
    used = {key for row in rows.values() for key in row}
    columns = [Column("defense", "defense")]
    for kind in (MEASURED, EXTRAPOLATED):
        some = [Column(f"{key}{kind}", f"{name}{kind}", digits=3) for key, name in PHASES if f"{key}{kind}" in used]
        if some:
            columns += [*some, Column(f"total{kind}", "total" if not kind else "total with extrapolated", digits=3)]
    body = tuple(
        Row({"defense": Cell(name), **{c.key: Cell(row.get(c.key)) for c in columns[1:]}}) for name, row in rows.items()
    )
    return Table(title, tuple(columns), body, NOTES)


def seconds_per_round(trainings: Sequence[TrainingSummary]) -> dict[str, float]:
    """Seconds a round by phase, measured and extrapolated apart; the totals of both."""
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
        del found[f"total{MEASURED}"]  # nothing was encrypted at all
        return found
    extrapolated = sum(value for key, value in found.items() if key.endswith(EXTRAPOLATED))
    if extrapolated:
        del found[f"total{MEASURED}"]  # a total without its encryption would mislead
        found[f"total{EXTRAPOLATED}"] = extrapolated + sum(v for k, v in found.items() if not k.endswith(EXTRAPOLATED))
    return found
