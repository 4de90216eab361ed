"""Batches behind Phi and Psi: the objective is exact at the truth, Psi tells labels, and noise tells nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakboard.attacks.base import Knowledge, ReconstructionTask
from leakboard.attacks.reconstruction.matching.gradients import misfits
from leakboard.attacks.reconstruction.perturbation.phi_batch import Batch, BatchMatcher, Streams, clip_factors
from leakboard.attacks.reconstruction.perturbation.phi_guess import Guesser, label_sums
from leakboard.attacks.reconstruction.phi_inversion import PhiInversion
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.datasets.digits import Digits
from leakboard.datasets.loading import load_pool
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.clean import CleanParts
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import ObservedRounds
from leakboard.metrics.identified import identified
from leakboard.metrics.matching import match
from tests.defenses.makings import Run, create, run

#: a seed that no suite uses
SEED, BATCH, PROBES = 11, 4, 2
VARIANTS = pytest.mark.parametrize("variant", ["V1", "V2"])


def finished(defense: str = "mp-dp", *, model: str = "convnet", batch: int = BATCH, **settings: Any) -> Run:
    """One round, two probes of four records."""
    network = settings.pop("network", {"width": 8})
    precision = settings.pop("precision", "float32")
    observe = ObservedRounds(rounds=("first",), targets=PROBES, probe_batch=batch)
    made = create(defense, **settings)
    return run(
        made,
        model=model,
        model_parameters=network,
        observe=observe,
        rounds=1,
        seed=SEED,
        precision=precision,
        clients=3,
    )


def dealt(first: int, last: int) -> LabelledImages:
    """Digits in the order in which `run` deals them: the clients have the first 48."""
    pool = load_pool(Digits())
    order = torch.randperm(len(pool.labels), generator=torch.Generator().manual_seed(derive_seed("run", SEED)))
    return pool.take(order[first:last])


def known(made: Run) -> Knowledge:
    return Knowledge(made.view("server"), made.defense, dealt(1000, 1200), 3)


def parts_of(made: Run) -> list[CleanParts]:
    assert isinstance(made.defense, ModelPerturbation)
    view = made.view("server")
    return [made.defense.clean_parts(o, view.public)["client:0"] for o in view.of_kind("probe")]


def truth(made: Run) -> LabelledImages:
    return made.shards["client:0"].select(torch.arange(BATCH * PROBES))


def true_batch(made: Run, streams: Streams) -> Batch:
    """The records behind the probes, with their own labels and factors."""
    records = truth(made)
    labels = records.labels.view(PROBES, BATCH)
    factors = [
        clip_factors(streams.task, parts, records.select(torch.arange(i * BATCH, (i + 1) * BATCH)))
        for i, parts in enumerate(streams.given)
    ]
    return Batch(
        records.images.view(PROBES, BATCH, *records.images.shape[1:]),
        streams.values(labels, torch.arange(PROBES)),
        torch.stack(factors).float(),
    )


def task() -> ReconstructionTask:
    return ReconstructionTask("first", 0, PROBES, BATCH, None, (BATCH,) * PROBES)


# --- the algebra ---------------------------------------------------------------------------------


@VARIANTS
@pytest.mark.parametrize(
    ("model", "network"),
    [("convnet", {"width": 4}), ("convnet", {"width": 4, "bias": True}), ("resnet8", {"width": 4})],
)
def test_the_true_records_make_what_was_seen(variant: str, model: str, network: dict[str, Any]) -> None:
    """Phi and a combination of Psi, computed in float32 from the truth: cosine and size as in the message."""
    made = finished(model=model, network=network, variant=variant)
    streams = Streams(known(made).task, parts_of(made), "cpu")
    along = torch.linspace(-1, 1.5, streams.width)
    found = streams.made(true_batch(made, streams), along, torch.arange(PROBES))
    costs = misfits(streams.seen(along, torch.arange(PROBES)), found, 1.0)
    assert costs.shape == (2 * PROBES,)
    assert float(costs.max()) < 1e-5


@VARIANTS
@pytest.mark.parametrize("bias", [False, True])
def test_psi_holds_the_weight_of_every_label(variant: str, bias: bool) -> None:
    """mean k alpha onehot . d, by Euler's formula: no image is needed, and no label given."""
    made = finished(variant=variant, network={"width": 4, "bias": bias}, precision="float64")
    knowledge = known(made)
    for index, parts in enumerate(parts_of(made)):
        records = truth(made).select(torch.arange(index * BATCH, (index + 1) * BATCH))
        alpha = knowledge.task.logits(parts.with_outputs(parts.head[None]), records.images.double())[:, 0]
        weights = clip_factors(knowledge.task, parts, records) * alpha
        onehot = torch.nn.functional.one_hot(records.labels, 10).double()
        expected = parts.directions @ (weights[:, None] * onehot).mean(0)
        assert torch.allclose(label_sums(parts), expected, rtol=1e-4, atol=1e-4 * float(weights.max()))


def test_one_problem_after_the_other_gives_the_same_slopes() -> None:
    made = finished()
    streams = Streams(known(made).task, parts_of(made), "cpu")
    assert streams.grouped
    batch = true_batch(made, streams)
    labels = truth(made).labels.view(PROBES, BATCH)
    images = (0.5 * batch.images + 0.2).contiguous()
    together = BatchMatcher(streams, labels, 1, 0.1, 0).slopes(images)
    streams.grouped = False
    alone = BatchMatcher(streams, labels, 1, 0.1, 0).slopes(images)
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def test_labels_of_a_batch_are_read_off_psi() -> None:
    """V1 names the classes; how many records of each follows from what auxiliary records weigh."""
    made = finished(variant="V1")
    knowledge = known(made)
    guesser = Guesser(knowledge, Streams(knowledge.task, parts_of(made), "cpu"))
    for index, labels in enumerate(truth(made).labels.view(PROBES, BATCH)):
        guess = guesser(index, None, torch.Generator().manual_seed(0), 2)
        assert torch.equal(guess.labels, labels.sort().values)
        assert guess.images.shape == (2, BATCH, 1, 32, 32)


# --- the attack ----------------------------------------------------------------------------------


def hits(images: tuple[Tensor, ...], made: Run) -> int:
    """Images that are nearer to their original than to 900 decoys; chance 1 in 901 each."""
    records, decoys, found = truth(made).images, dealt(48, 948).images, 0
    for index, own in enumerate(images):
        original = records[index * BATCH : (index + 1) * BATCH]
        found += int(identified(own[match(own, original)], original, decoys).sum())
    return found


@VARIANTS
def test_batches_are_identified_with_psi_and_no_label(variant: str) -> None:
    """Phi and Psi together, labels and factors found along the way. Chance has 3 of 8 with probability 1e-7."""
    made = finished(variant=variant, network={"width": 16})
    answer = PhiInversion(iterations=300, tv=0.01).reconstruct(known(made), task())
    assert answer.flags == ()
    assert hits(answer.images, made) >= 3


def test_noise_in_place_of_phi_and_psi_identifies_nobody() -> None:
    """The null control: as long as the true parts, but drawn. One hit among 8 images by chance: 0.9 %."""
    made = finished(variant="V1", network={"width": 16})
    knowledge = known(made)
    random = torch.Generator().manual_seed(0)
    observations = []
    for o in knowledge.view.observations:
        messages = tuple(
            replace(m, payload={**m.payload, **{part: _drawn(m.payload[part], random) for part in ("psi", "phi")}})
            if m.kind == "update"
            else m
            for m in o.messages
        )
        observations.append(replace(o, messages=messages))
    blind = replace(knowledge, view=replace(knowledge.view, observations=tuple(observations)))
    answer = PhiInversion(iterations=100, tv=0.01).reconstruct(blind, task())
    assert hits(answer.images, made) == 0


def test_the_hardened_scheme_is_refused_for_batches_too() -> None:
    made = finished("mp-dp+")
    with pytest.raises(Unsupported, match="does not hold the victim's own Phi without noise"):
        PhiInversion(iterations=2).reconstruct(known(made), task())


def test_known_labels_are_used() -> None:
    made = finished(variant="V2")
    told = tuple(torch.full((BATCH,), 3) for _ in range(PROBES))
    asked = replace(task(), known_labels=told)
    one, other = (PhiInversion(iterations=2).reconstruct(known(made), t).images for t in (asked, task()))
    assert not torch.equal(torch.cat(one), torch.cat(other))


def _drawn(values: Parameters, random: torch.Generator) -> Parameters:
    found = {}
    for name, value in values.items():
        noise = torch.randn(value.shape, generator=random).to(value)
        found[name] = noise * value.norm() / noise.norm()
    return found
