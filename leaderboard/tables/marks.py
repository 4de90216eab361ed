"""The marks of a scoreboard: what a verdict looks like as a sign, in words, in ASCII, and on a terminal.

A mark says what the attacks did. It does not say what a scheme claims: one that claims nothing gets marks too.
"""

from __future__ import annotations

from collections.abc import Mapping

#: the verdicts (docs/architecture.md, "Cards, tables and charts")
HELD, BROKEN, NOT_SHOWN, NOT_ASKED, NO_CLAIM = "held", "did not hold", "not shown", "not asked", "no claim"
#: the signs that stand before a value; what was not asked has none
SIGNS: Mapping[str, str] = {BROKEN: "✗", HELD: "✓", NOT_SHOWN: "~"}
#: what people read instead of a verdict's name; a goal may have words of its own (`GoalRanking.words`)
WORDS: Mapping[str, str] = {BROKEN: "an attack beat guessing", HELD: "no attack beat guessing"}
#: colours on a terminal; a sign says the same without them
STYLES: Mapping[str, str] = {BROKEN: "red", HELD: "green", NOT_SHOWN: "yellow"}
#: for terminals that have ASCII only
ASCII: Mapping[str, str] = {
    **{"✗": "x", "✓": "+", "–": "-", "−": "-", "→": "->", "≥": ">=", "≤": "<=", "×": "x", "…": "~", "─": "-", "┄": "."},
    **{"ε": "eps", "μ̂": "mu^", "μ": "mu", "↑": "^", "↓": "v", "±": "+-", "Φ": "Phi", "Ψ": "Psi", "δ": "delta"},
    **{sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}


def legend(marks: set[str]) -> str:
    """What the signs of these verdicts mean; empty where there are none.

    >>> legend({"held", "not shown"})
    '✓ no attack beat guessing   ~ not shown'
    """
    return "   ".join(f"{sign} {WORDS.get(verdict, verdict)}" for verdict, sign in SIGNS.items() if verdict in marks)


def in_ascii(text: str) -> str:
    """Text for a terminal without Unicode: known signs are spelled, all others become question marks.

    >>> in_ascii("✗ 3 → ≥ 3.8 é")
    'x 3 -> >= 3.8 ?'
    """
    for sign, spelled in ASCII.items():
        text = text.replace(sign, spelled)
    return text.encode("ascii", "replace").decode("ascii")
