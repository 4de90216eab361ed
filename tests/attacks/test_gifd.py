"""GIFD: its projections, the generator and how it is kept, and the attack against the prior and its own first stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq
from torch import Tensor

from leakboard.attacks.base import Inversion, Knowledge, ReconstructionAnswer, ReconstructionTask
from leakboard.attacks.reconstruction.gifd import Gifd, project_l1
from leakboard.attacks.reconstruction.matching import generator as _generator
from leakboard.attacks.reconstruction.matching.generator import (
    Generator,
    GeneratorSettings,
    on_sphere,
    trained_generator,
)
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.attacks.reconstruction.prior import Prior
from leakboard.contract.worlds import World, make_world
from leakboard.core.errors import Unsupported
from leakboard.defenses.base import Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.metrics.psnr import psnr
from tests.attacks.clock import LONG_AGO
from tests.attacks.nulls import ShuffledTask

TINY = GeneratorSettings(latent=4, width=2, epochs=2, seed=0)
#: an attack whose generator trains in a moment
SMALL = {"latent": 16, "width": 4, "epochs": 20, "restarts": 2, "iterations": 25}
TARGETS = 3


def silent(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(
        FedSGD(), model="convnet", model_parameters={"width": 8}, rounds=1, targets=TARGETS, auxiliary=200
    )


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generators")


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setattr(_generator, "FOLDER", kept)


def asked(world: World) -> tuple[Knowledge, ReconstructionTask]:
    knowledge = Knowledge(world.view("server"), FedSGD(), world.auxiliary, 3)
    return knowledge, ReconstructionTask("first", 0, TARGETS, 1, None, (1,) * TARGETS)


def answer(world: World, attack: Gifd | Prior) -> ReconstructionAnswer:
    return attack.reconstruct(*asked(world))


rows = arrays(np.float64, (2, 7), elements=st.floats(-5, 5, width=32))


@given(rows, st.floats(0.01, 20))
def test_the_l1_projection_is_soft_thresholding_at_the_root(x: np.ndarray, radius: float) -> None:
    """Against a root finder on the threshold (no sorting): sum max(|x| - t, 0) = radius."""
    found = project_l1(torch.tensor(x), torch.tensor([radius, radius], dtype=torch.float64)).numpy()
    for row, projected in zip(x, found, strict=True):
        expected = row
        if np.abs(row).sum() > radius:
            cut = brentq(lambda t, row=row: np.maximum(np.abs(row) - t, 0).sum() - radius, 0, np.abs(row).max())
            expected = np.sign(row) * np.maximum(np.abs(row) - cut, 0)
        np.testing.assert_allclose(projected, expected, atol=1e-9)


@given(rows, arrays(np.float64, (50, 7), elements=st.floats(-1, 1, width=32)), st.floats(0.1, 5))
def test_no_point_of_the_l1_ball_is_nearer_than_the_projection(
    x: np.ndarray,
    others: np.ndarray,
    radius: float,
) -> None:
    projected = project_l1(torch.tensor(x), torch.full((2,), radius, dtype=torch.float64)).numpy()
    assert (np.abs(projected).sum(1) <= radius + 1e-9).all()
    inside = others * radius / np.maximum(np.abs(others).sum(1, keepdims=True), 1)
    for row, best in zip(x, projected, strict=True):
        assert np.linalg.norm(row - best) <= np.linalg.norm(row - inside, axis=1).min() + 1e-9


@given(arrays(np.float64, (3, 5), elements=st.floats(-5, 5, width=32)))
def test_the_sphere_projection_keeps_the_direction_and_sets_the_radius(z: np.ndarray) -> None:
    z = z + np.where(np.abs(z).sum(1, keepdims=True) < 1e-3, 1.0, 0.0)  # the centre has no nearest point
    found = on_sphere(torch.tensor(z)).numpy()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 5**0.5)
    np.testing.assert_allclose((found * z).sum(1), 5**0.5 * np.linalg.norm(z, axis=1))


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 16, 16)])
def test_every_layer_leads_to_the_same_image(shape: tuple[int, int, int]) -> None:
    generator = Generator(shape, latent=4, width=2)
    point = on_sphere(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    image = generator.image(point).detach()
    assert image.shape == (5, *shape)
    assert 0 < float(image.min()) < float(image.max()) < 1
    for layer in range(generator.layers):
        point = generator.next_feature(point, layer)
        assert torch.equal(generator.image(point, layer + 1), image)


def test_images_that_it_cannot_make_are_refused() -> None:
    with pytest.raises(Unsupported, match="multiple of 8"):
        Generator((1, 20, 20), latent=4, width=2)


def weights(generator: Generator) -> Tensor:
    return torch.cat([value.flatten() for value in generator.state_dict().values()])


def test_a_generator_is_trained_once_for_the_same_images_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    lines: list[str] = []
    first, finished = trained_generator(images, TINY, lines.append, folder=tmp_path)
    assert finished
    assert lines
    (file,) = tmp_path.iterdir()
    monkeypatch.setattr(_generator, "_train", lambda *_: pytest.fail("trained again"))
    assert torch.equal(weights(trained_generator(images, TINY, silent, folder=tmp_path)[0]), weights(first))
    monkeypatch.undo()
    trained_generator(images.flip(0), TINY, silent, folder=tmp_path)
    trained_generator(images, GeneratorSettings(latent=4, width=2, epochs=2, seed=1), silent, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert file.suffix == ".safetensors"


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_file_is_replaced_by_a_whole_one(tmp_path: Path, share: float) -> None:
    images = torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    good = weights(trained_generator(images, TINY, silent, folder=tmp_path)[0])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    lines: list[str] = []
    assert torch.equal(weights(trained_generator(images, TINY, lines.append, folder=tmp_path)[0]), good)
    assert lines, "it was not trained again"
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    images = torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    kept = weights(trained_generator(images, TINY, silent, folder=tmp_path / "kept")[0])
    assert torch.equal(weights(trained_generator(images, TINY, silent, folder=blocked)[0]), kept)


def test_training_brings_the_images_into_the_generators_range(world: World) -> None:
    images = world.auxiliary.images[:100]
    lines: list[str] = []
    trained_generator(images, GeneratorSettings(latent=16, width=4, epochs=40, seed=0), lines.append)
    error = float(lines[-1].rsplit(" ", 1)[1])
    assert error < 0.7 * float((images - images.mean(0)).square().mean()), lines


def test_it_is_clearly_above_the_prior_on_every_target(world: World) -> None:
    targets = world.shards["client:0"].images[:TARGETS]
    floor = psnr(torch.cat(answer(world, Prior()).images), targets)
    reached = psnr(torch.cat(answer(world, Gifd(**SMALL)).images), targets)
    assert bool((reached > floor + 2).all()), (reached, floor)


def test_a_gradient_without_the_image_gives_no_image(world: World) -> None:
    """The null control: no record is rebuilt better than by the mean image, and the answer says that it failed."""
    knowledge, task = asked(world)
    targets = world.shards["client:0"].images[:TARGETS]
    mean = psnr(world.auxiliary.images.mean(0).expand_as(targets), targets)
    true = Gifd(**SMALL).reconstruct(knowledge, task)
    null = Gifd(**SMALL).reconstruct(knowledge, ShuffledTask(**vars(task)))
    assert bool((psnr(torch.cat(true.images), targets) > mean + 2).all())
    assert bool((psnr(torch.cat(null.images), targets) < mean).all())
    assert any(flag.startswith("not converged") for flag in null.flags)
    assert not any(flag.startswith("not converged") for flag in true.flags)


def test_the_features_match_at_least_as_well_as_the_code_alone_and_better_on_the_whole(world: World) -> None:
    cost = {
        stages: answer(world, Gifd(**SMALL, stages=stages)).diagnostics["matching_cost"]
        for stages in ("latent", "features")
    }
    assert cost["features"] < 0.9 * cost["latent"], cost


def test_a_ball_without_radius_leaves_the_codes_image(world: World) -> None:
    code = answer(world, Gifd(**SMALL, stages="latent")).images
    features = answer(world, Gifd(**SMALL, radii=(0.0, 0.0, 0.0, 0.0))).images
    assert torch.allclose(torch.cat(code), torch.cat(features), atol=1e-3)


def test_without_auxiliary_images_nothing_of_them_is_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_generator, "_train", lambda *_: pytest.fail("trained a generator"))
    knowledge, task = asked(world)
    attack = Gifd(**{**SMALL, "iterations": 3}, generator="untrained")
    first = attack.reconstruct(knowledge, task)
    other = Knowledge(knowledge.view, FedSGD(), world.unseen, 3)
    assert torch.equal(torch.cat(first.images), torch.cat(attack.reconstruct(other, task).images))


def test_the_answer_is_the_best_of_all_that_was_tried_by_its_matching_cost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tv = 0 every candidate that was ever evaluated costs at least what the answer costs: no truth decides."""
    tried: list[Tensor] = []
    slopes = Matcher.slopes

    def spy(self: Matcher, images: Tensor) -> tuple[Tensor, Tensor]:
        costs, slope = slopes(self, images)
        tried.append(costs.view(-1, TARGETS).min(0).values)
        return costs, slope

    monkeypatch.setattr(Matcher, "slopes", spy)
    found = answer(world, Gifd(**{**SMALL, "iterations": 10}, tv=0.0))
    least = torch.stack(tried).min(0).values
    assert found.diagnostics["matching_cost"] == pytest.approx(float(least.mean()), rel=1e-5)


def test_several_records_behind_a_gradient_get_an_image_each(world: World) -> None:
    knowledge, task = asked(world)
    model = task.problems(knowledge)[0].model
    batch = world.shards["client:0"].select(torch.arange(2))
    gradient, _ = knowledge.task.gradient(model, batch.images, batch.labels)

    class Batches(ReconstructionTask):
        def problems(self, known: Knowledge) -> tuple[Inversion, ...]:
            return (Inversion(model, Gradient(gradient, clients=1, records=2), batch.labels),) * 3

    found = Gifd(**{**SMALL, "iterations": 5}).reconstruct(knowledge, Batches(**vars(task)))
    assert [image.shape for image in found.images] == [(2, 1, 32, 32)] * 3
    assert all(torch.equal(image, found.images[0]) for image in found.images), "one problem, one answer"


def test_a_time_limit_returns_the_best_so_far(world: World) -> None:
    knowledge, task = asked(world)
    late = replace(knowledge, deadline=LONG_AGO)
    found = Gifd(**SMALL, generator_seed=1).reconstruct(late, task)
    assert [image.shape for image in found.images] == [(1, 1, 32, 32)] * TARGETS
    assert any(flag.startswith("stopped at its time limit after 5 of 125") for flag in found.flags)
    assert any("not enough to train" in flag for flag in found.flags)
    full = GeneratorSettings(SMALL["latent"], SMALL["width"], SMALL["epochs"], seed=1)
    assert not (_generator.FOLDER / f"{_generator._key(world.auxiliary.images, full)}.safetensors").exists()


def test_a_zero_gradient_is_flagged(world: World) -> None:
    knowledge, task = asked(world)

    class Zeroed(ReconstructionTask):
        def problems(self, known: Knowledge) -> tuple[Inversion, ...]:
            return tuple(
                Inversion(p.model, Gradient({n: g * 0 for n, g in p.gradient.values.items()}, 1, 1), None)
                for p in super().problems(known)
            )

    found = Gifd(**{**SMALL, "iterations": 2}).reconstruct(knowledge, Zeroed(**vars(task)))
    assert "gradient all zero" in found.flags
    assert any(flag.startswith("not converged") for flag in found.flags)
    assert all(bool(image.isfinite().all()) for image in found.images)
