"""Audit: how large epsilon must be at least, by a game that tells two neighbouring batches apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from leakboard.attacks.base import AuditAnswer
from leakboard.defenses.noise.calibration import DELTA
from leakboard.leaderboard.goals.base import Goal
from leakboard.leaderboard.goals.question import AttackFailed, CellFacts
from leakboard.leaderboard.goals.questions.audit import AuditQuestion
from leakboard.leaderboard.goals.questions.audit_game import bits_of, open_game
from leakboard.leaderboard.records.known import Listed
from leakboard.metrics.base import AuditTruth


class Audit(AuditQuestion, Goal):
    """Prove that epsilon is at least so much."""

    name: ClassVar[str] = "audit"
    citation: ClassVar[str] = "Jagielski et al., Auditing Differentially Private Machine Learning, NeurIPS 2020"
    items: ClassVar[str] = "trials"
    position: ClassVar[int] = 3
    is_game: ClassVar[bool] = True
    headlines: ClassVar[tuple[str, ...]] = ("epsilon_lower",)
    listed: ClassVar[tuple[str | Listed, ...]] = (
        "epsilon_lower",
        "mu",
        Listed("low", "μ̂ from", score="mu", hint="the ends of its 95 % interval"),
        Listed("high", "μ̂ to", score="mu", hint="none: the worlds were perfectly separated"),
        Listed("epsilon", "ε of μ̂", score="mu", hint="what μ̂ means at the claimed δ, if the noise were Gaussian"),
        "audit_power",
        Listed("claimed", "ε claimed", score="epsilon_lower"),
        Listed("round", "ε of a round", score="epsilon_lower", hint="by the accountant, if the noise were Gaussian"),
        Listed("composed", "ε composed", score="epsilon_lower"),
        Listed("ceiling", "provable at most", score="epsilon_lower"),
        Listed("trials", "trials", score="epsilon_lower", digits=0),
    )

    def truth(self, facts: CellFacts, answer: AuditAnswer) -> AuditTruth:
        """The scores beside the worlds, and what the defense claims of a round."""
        bits, said = bits_of(facts), self.details(facts)
        if answer.scores.shape != bits.shape:
            raise AttackFailed(f"the attack must score {len(bits)} trials; given: {len(answer.scores)}")
        return AuditTruth(answer.scores, bits, said.get("delta", DELTA), said.get("claimed"))

    def details(self, facts: CellFacts) -> dict[str, float]:
        """What the defense claims against this threat, for a round and for the whole training."""
        return promised(facts.load_summary().claims, facts.cell.threat)

    def items_of(self, facts: CellFacts, answer: AuditAnswer) -> dict[str, Any]:
        """The records of the two worlds, and world and score of every trial."""
        return {
            "target_indices": open_game(facts).indices.tolist(),
            "members": bits_of(facts).tolist(),
            "member_scores": answer.scores.double().tolist(),
        }


def promised(claims: Mapping[str, Any], threat: str) -> dict[str, float]:
    """What the defense claims against this threat, as details of a score: epsilon of a round and composed, delta.

    `claimed` is what it says of a round, `round` what its noise gives this threat (if it were Gaussian), `composed` the
    same over the whole training. Where epsilon is meant for the whole training, `claimed` is its share of
    a round.
    """
    if threat not in claims.get("epsilon_against", [threat]):
        return {}
    by_threat = {name: claims.get(f"epsilon_{name}_by_threat") or {} for name in ("round", "total")}
    one = by_threat["round"].get(threat, claims.get("epsilon_round_exact"))
    found = {
        "claimed": claims.get("epsilon_round_claimed", claims.get("epsilon_claimed")),
        "round": one,
        "composed": by_threat["total"].get(threat, claims.get("epsilon_run_exact")),
        "delta": claims.get("delta"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}
