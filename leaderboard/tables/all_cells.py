"""The list of all cells: every score of every record, and every cell that failed, with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from leakboard.leaderboard.records.record import Record
from leakboard.leaderboard.records.scope import all_targets
from leakboard.leaderboard.tables.table import Cell, Column, Row, Table

HEAD = (
    Column("dataset", "data"),
    Column("defense", "defense"),
    Column("attack", "attack"),
    Column("adaptive", "adaptive", help="whether it uses more of the defense than its honest reading"),
    Column("threat", "threat"),
    Column("moment", "round"),
    Column("seed", "seed", digits=0),
    Column("status", "status"),
)
SCORES = {
    "reconstruction": (
        Column("batch", "batch size", digits=0, help="records of the victim behind one gradient"),
        Column("psnr", "PSNR", unit="dB", digits=2),
        Column("ssim", "SSIM", digits=3),
        Column("lpips", "LPIPS", digits=3),
        Column("identified", "identified", digits=3),
        Column("identified_lpips", "identified (LPIPS)", digits=3),
        Column("mse", "MSE", digits=4),
        Column("test_mse", "Test-MSE", digits=3),
        Column("feat_mse", "Feat-MSE", digits=4, significant=3),
    ),
    "membership": (
        Column("about", "member of", help="the whole training, or the victim's batch in the observed round"),
        Column("share", "pool", digits=2, help="share of the victim's batch that was among the candidates"),
        Column("auc", "AUC", digits=3),
        Column("asr", "ASR", digits=3),
        Column("tpr@1%fpr", "TPR at 1 % FPR", digits=3),
        Column("tpr@0.1%fpr", "TPR at 0.1 % FPR", digits=3),
        Column(
            "asr_best_threshold", "best-threshold accuracy", digits=3, help="chosen on the evaluated set: biased up"
        ),
    ),
    "extraction": (
        Column("fidelity", "fidelity", digits=3, help="share of test images on which it agrees with the true model"),
        Column("stolen_accuracy", "accuracy of the stolen model", digits=3),
        Column("canonical_distance", "distance of weights", digits=4, help="relative, up to the symmetry of ReLUs"),
    ),
    "audit": (
        Column("epsilon_lower", "ε audited", digits=3, help="the true ε is at least this, at 95 % confidence"),
        Column("mu", "μ̂", digits=3, help="estimate of Gaussian DP, from all trials"),
        Column("low", "μ̂ from", digits=3, help="the ends of its 95 % interval"),
        Column("high", "μ̂ to", digits=3, help="none: the worlds were perfectly separated"),
        Column("epsilon", "ε of μ̂", digits=3, help="what μ̂ means at the claimed δ, if the noise were Gaussian"),
        Column(
            "audit_power", "provable of the claim", digits=3, help="ε audited if exactly the claim is spent (median)"
        ),
        Column("claimed", "ε claimed", digits=3),
        Column("round", "ε of a round", digits=3, help="by the accountant, if the noise were Gaussian"),
        Column("composed", "ε composed", digits=3),
        Column("ceiling", "provable at most", digits=3),
        Column("trials", "trials", digits=0),
    ),
}
#: columns of an audit that stand in the details of its scores
DETAILS = {
    "epsilon_lower": ("claimed", "round", "composed", "ceiling", "trials"),
    "mu": ("low", "high", "epsilon"),
}
OVER = (Column("over", "over", help="the targets that the scores are over"),)
COST = (Column("seconds", "attack time", unit="s", digits=1),)
NOTE = (
    "Scores of a cell are over all its targets. Rankings report the half on which the attack was not chosen: the same "
    "cell has another score there."
)


def cell_tables(records: Sequence[Record]) -> list[Table]:
    """One list a goal, all cells in the order of the plan."""
    tables = []
    for goal, columns in SCORES.items():
        found = [record for record in records if record.cell.goal == goal]
        if found:
            rows = tuple(_row(record, columns) for record in found)
            notes = () if goal == "audit" else (NOTE,)
            tables.append(Table(f"All cells: {goal}", (*HEAD, *columns, *OVER, *COST), rows, notes))
    return tables


def _row(record: Record, columns: Sequence[Column]) -> Row:
    cell = record.cell
    cells = {
        "dataset": Cell(cell.training.dataset.label),
        "defense": Cell(cell.training.defense.label),
        "attack": Cell(cell.attack.label, link=record.key, note="; ".join(record.flags)),
        "adaptive": Cell("yes" if cell.adaptive else "no"),
        "threat": Cell(cell.threat),
        "moment": Cell(cell.moment or "all"),
        "seed": Cell(cell.training.seed),
        "status": Cell(record.status, note=record.reason),
        "over": Cell(all_targets(record) or None),
        "seconds": Cell(record.cost.wall_seconds if record.cost else None),
    }
    for column in columns:
        score = record.scores.get(column.key)
        cells[column.key] = Cell(None) if score is None else Cell(score.value, note=score.reason)
    if cell.goal == "reconstruction":
        cells["batch"] = Cell(cell.batch_size)
    if cell.goal == "membership":
        cells |= {"about": Cell(cell.about), "share": Cell(cell.pool_share if cell.about == "batch" else None)}
    for metric, names in DETAILS.items() if cell.goal == "audit" else ():
        if metric in record.scores:
            details = record.scores[metric].details
            cells |= {name: Cell(details.get(name)) for name in names}
    return Row(cells, muted=record.status != "ok")
