"""The public settings of a federation, from what a benchmark chose."""

from __future__ import annotations

from collections.abc import Sequence

from leakboard.core import registry
from leakboard.core.plugins import Plugin
from leakboard.datasets.base import Dataset, ImagePool
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.settings import Public, Training


def public_settings(
    dataset: Dataset,
    pool: ImagePool,
    training: Training,
    sizes: Sequence[int],
    model: Plugin | str,
    *,
    defense: Plugin | None = None,
) -> Public:
    """What everybody knows; a model's name stands for its default parameters, no defense for FedSGD."""
    made, defense = registry.create("model", model) if isinstance(model, str) else model, defense or FedSGD()
    mean, std = dataset.normalisation(pool.shape[0])
    return Public(
        defense=defense.name,
        parameters=defense.parameters(),
        model=made.name,
        model_parameters=made.parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=mean,
        std=std,
        training=training,
        total_rounds=training.total_rounds(max(sizes)),
        shard_sizes=tuple(sizes),
    )
