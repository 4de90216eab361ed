"""Which party holds which records, and the public settings of a federation, from a job."""

from __future__ import annotations

from leakboard.datasets.base import ImagePool
from leakboard.datasets.splits import Splits, make_splits
from leakboard.federation.settings import Public, Training
from leakboard.leaderboard.planning.jobs import Job


def splits_of(job: Job, pool: ImagePool) -> Splits:
    """The four parts and the shards of this job's data, from its seed."""
    training = Training.model_validate(job.training.training)
    return make_splits(
        pool,
        seed=job.training.seed,
        clients=training.clients,
        partition=training.partition,
        alpha=training.alpha,
    )


def public_of(job: Job, pool: ImagePool, splits: Splits) -> Public:
    """The public settings of this job's federation; refuses batches that do not fit the shards."""
    training = Training.model_validate(job.training.training)
    sizes = [len(shard) for shard in splits.shards]
    training.check_shards(sizes)
    dataset = job.make_dataset()
    mean, std = dataset.normalisation(pool.shape[0])
    return Public(
        defense=job.training.defense.name,
        parameters=job.training.defense.parameters,
        model=job.training.model.name,
        model_parameters=job.make_model().parameters(),
        shape=pool.shape,
        classes=pool.classes,
        mean=mean,
        std=std,
        training=training,
        total_rounds=training.total_rounds(max(sizes)),
        shard_sizes=tuple(sizes),
    )
