"""The few symbols of the schemes that tables and lists use, explained where they appear."""

from __future__ import annotations

import re

#: what a symbol looks like in a text -> what it means
TERMS = {
    r"\b(?:Psi|Phi)\b|Ψ|Φ|\bphi-": "Psi and Phi (Ψ, Φ): two further vectors that each client sends under model "
    "perturbation, so that the server can undo its perturbation of the model.",
    r"\bR\b|\badversarial-r\b": "R: the secret random factors by which the server multiplies the weights that it "
    "sends (model perturbation).",
    r"\bnoise r\b": "r: the secret noise that the server adds to the last layer of the model that it sends (model "
    "perturbation).",
    r"\bV[12]\b": "V1, V2: two readings of model perturbation: r is a secret vector (V1), or one secret factor of a "
    "public vector (V2).",
}


def explained(text: str) -> list[str]:
    """One sentence for each symbol that occurs in a text.

    >>> explained("phi-inversion"), explained("PSNR")
    (['Psi and Phi (Ψ, Φ): two further vectors that each client sends under model perturbation, so that the server can \
undo its perturbation of the model.'], [])
    """
    return [meaning for pattern, meaning in TERMS.items() if re.search(pattern, text)]
