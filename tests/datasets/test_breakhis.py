from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leakboard.core.errors import UserError
from leakboard.datasets.breakhis import BreakHis
from leakboard.datasets.splits import make_splits

KINDS = {"A": "adenosis", "DC": "ductal_carcinoma", "LC": "lobular_carcinoma"}


def add(top: Path, malignant: str, code: str, slide: str, magnification: int, number: int, content: int) -> None:
    """Write one picture where the distribution has it; `content` is the seed of its pixels."""
    side = "benign" if malignant == "B" else "malignant"
    folder = (
        top / "BreaKHis_v1/histology_slides/breast" / side / "SOB" / KINDS[code] / f"SOB_{malignant}_{code}_{slide}"
    )
    path = folder / f"{magnification}X" / f"SOB_{malignant}_{code}-{slide}-{magnification}-{number:03}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(content).integers(0, 256, (46, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    add(tmp_path, "B", "A", "14-22549AB", 400, 1, content=1)
    add(tmp_path, "B", "A", "14-22549CD", 400, 1, content=2)
    add(tmp_path, "M", "DC", "14-2523", 400, 2, content=3)
    add(tmp_path, "M", "DC", "14-2523", 400, 1, content=4)
    add(tmp_path, "M", "LC", "15-2523", 400, 1, content=5)
    add(tmp_path, "B", "A", "14-22549AB", 40, 1, content=6)
    (tmp_path / "BreaKHis_v1" / "README.png").write_bytes(b"not a slide, never opened")
    return tmp_path


def test_benign_and_malignant_by_patient(tree: Path) -> None:
    pool = BreakHis(root=str(tree)).read()
    assert pool.shape == (3, 32, 32)
    assert pool.class_names == ("benign", "malignant")
    assert pool.labels.tolist() == [0, 0, 1, 1, 1]
    assert not pool.is_test.any()
    # slides AB and CD are of one patient; the same number in another year is another patient
    assert pool.groups is not None
    assert pool.groups.tolist() == [0, 0, 1, 1, 2]


def test_types(tree: Path) -> None:
    pool = BreakHis(root=str(tree), target="types").read()
    assert [pool.class_names[i] for i in pool.labels.tolist()] == ["adenosis"] * 2 + ["ductal carcinoma"] * 2 + [
        "lobular carcinoma"
    ]
    assert pool.classes == 8


def test_shared_patients_but_for_the_test_set(tmp_path: Path) -> None:
    for patient in range(10):
        for number in range(6):
            add(tmp_path, "M", "DC", f"14-{patient}", 400, number, content=10 * patient + number)
    apart = BreakHis(root=str(tmp_path)).read()
    shared = BreakHis(root=str(tmp_path), patients="shared").read()
    assert shared.groups is None
    assert shared.pixels.equal(apart.pixels)
    assert apart.groups is not None
    tested = set(apart.groups[shared.is_test].tolist())
    assert len(tested) == 2  # a fifth of the patients, with all their pictures
    assert int(shared.is_test.sum()) == 12
    for seed in range(3):
        splits = make_splits(shared, seed=seed, clients=2)
        assert set(apart.groups[splits.test].tolist()) == tested
        parts = [set(apart.groups[part].tolist()) for part in (splits.members, splits.non_members)]
        assert not tested & (parts[0] | parts[1])
        assert parts[0] & parts[1]


def test_magnification_and_size(tree: Path) -> None:
    pool = BreakHis(root=str(tree), magnification=40, size=16).read()
    assert pool.pixels.shape == (1, 3, 16, 16)


def test_order_is_that_of_file_names(tree: Path) -> None:
    pool = BreakHis(root=str(tree), size=64).read()
    expected = np.random.default_rng(4).integers(0, 256, (46, 70, 3), dtype=np.uint8)
    small = np.array(Image.fromarray(expected).resize((64, 64), Image.Resampling.BILINEAR))
    assert np.array_equal(pool.pixels[2].permute(1, 2, 0).numpy(), small)  # number 001 comes before 002


def test_pictures_under_two_types_are_left_out_under_both(tree: Path) -> None:
    add(tree, "M", "LC", "14-2523", 400, 1, content=4)
    pool = BreakHis(root=str(tree), target="types").read()
    assert [pool.class_names[i] for i in pool.labels.tolist()] == ["adenosis"] * 2 + [
        "ductal carcinoma",
        "lobular carcinoma",
    ]


def test_of_other_copies_one_is_kept(tree: Path) -> None:
    before = BreakHis(root=str(tree)).read().digest()
    add(tree / "a copy of all", "M", "DC", "14-2523", 400, 1, content=4)
    assert BreakHis(root=str(tree)).read().digest() == before


def test_nothing_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKBOARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="holds no pictures of BreaKHis at 200x: put the unpacked BreaKHis_v1 there"):
        BreakHis(root=str(tmp_path), magnification=200).read()
    with pytest.raises(UserError, match="must be an existing folder; given: "):
        BreakHis().read()


def test_unknown_type(tree: Path) -> None:
    Image.new("RGB", (20, 20)).save(tree / "SOB_B_XX-14-1-400-001.png")
    with pytest.raises(UserError, match="unknown type 'XX': allowed are A, F, PT"):
        BreakHis(root=str(tree)).read()


def save_resized(path: Path, tree: Path) -> Path:
    """The pictures of a tree as an npz file of resized pictures."""
    files = sorted(tree.rglob("SOB_*.png"), reverse=True)  # not in the order of their names
    small = [Image.open(file).resize((32, 32), Image.Resampling.BILINEAR) for file in files]
    arrays = {
        "images": np.stack([np.asarray(picture) for picture in small]),
        "filename": np.array([f.name for f in files]),
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def test_resized_pictures_are_the_same_data(tree: Path, tmp_path: Path) -> None:
    file = save_resized(tmp_path / "resized.npz", tree)
    assert BreakHis(root=str(file)).read().digest() == BreakHis(root=str(tree)).read().digest()


def test_default_place(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAKBOARD_DATA", str(tree))
    assert BreakHis().read().digest() == BreakHis(root=str(tree)).read().digest()


def test_resized_pictures_of_another_size(tree: Path, tmp_path: Path) -> None:
    file = save_resized(tmp_path / "resized.npz", tree)
    with pytest.raises(UserError, match=r"must be uint8 of shape \(6, 16, 16, 3\).*given: uint8 \(6, 32, 32, 3\)"):
        BreakHis(root=str(file), size=16).read()
    with pytest.raises(UserError, match="holds no pictures of BreaKHis at 100x"):
        BreakHis(root=str(file), magnification=100).read()
