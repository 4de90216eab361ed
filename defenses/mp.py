"""Model perturbation only."""

from __future__ import annotations

from typing import ClassVar

from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation


class Mp(ModelPerturbation):
    """Model perturbation: clients train on a perturbed model, and the server recovers every exact gradient.

    This is the original scheme, without transitional layers: R_ij = r_i / r_j with r ~ U(0, 1] (the official code),
    r^a ~ U(0, 1], and gamma ~ U(0, 1], scaled so that float32 clients stay exact. Each round has fresh noise, which all
    of its clients share. It protects the model from clients, and nothing from the server.
    """

    name: ClassVar[str] = "mp"
    citation: ClassVar[str] = "Yang et al., An Accuracy-Lossless Perturbation Method (...), WWW 2022, arXiv 2002.09843"
    claim: ClassVar[str] = "A client learns nothing about the true global model."
    transitional: ClassVar[bool] = False
