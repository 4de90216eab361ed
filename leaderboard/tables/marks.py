"""The marks of a scoreboard: what a verdict looks like as a sign, in ASCII, and on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

#: the verdicts (docs/architecture.md, "Cards, tables and charts")
HELD, BROKEN, NOT_SHOWN, NOT_ASKED, NO_CLAIM = "held", "did not hold", "not shown", "not asked", "no claim"
#: the signs that stand before a value; what was not asked has none
SIGNS: Mapping[str, str] = {BROKEN: "✗", HELD: "✓", NOT_SHOWN: "~"}
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

    >>> legend({"held", "did not hold"})
    '✗ did not hold   ✓ held'
    """
    return "   ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items() if verdict in marks)


def in_ascii(text: str) -> str:
    """Text for a terminal without Unicode: known signs are spelled, all others become question marks.

    >>> in_ascii("✗ 3 → ≥ 3.8 é")
    'x 3 -> >= 3.8 ?'
    """
    for sign, spelled in ASCII.items():
        text = text.replace(sign, spelled)
    return text.encode("ascii", "replace").decode("ascii")
