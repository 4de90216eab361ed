from __future__ import annotations

import gzip
import pickle
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch

from leakboard.core.errors import UserError
from leakboard.core.vision import torchvision_datasets
from leakboard.datasets.building_blocks.torchvision import TorchvisionDataset, data_root
from leakboard.datasets.cifar10 import Cifar10
from leakboard.datasets.cifar100 import Cifar100
from leakboard.datasets.fashion_mnist import FashionMnist

ALL = [Cifar10, Cifar100, FashionMnist]


def save_cifar10(root: Path, per_batch: int = 3) -> None:
    """Files in CIFAR-10's own format, with other images: image i is filled with i."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for batch, name in enumerate(names):
        numbers = np.arange(batch * per_batch, (batch + 1) * per_batch)
        pixels = np.zeros((per_batch, 3, 32, 32), dtype=np.uint8) + numbers[:, None, None, None].astype(np.uint8)
        pixels[:, 1] += 100  # the second channel and row 5 of the third differ, so that mixed-up axes show
        pixels[:, 2, 5] = 255
        content = {"data": pixels.reshape(per_batch, -1), "labels": (numbers % 10).tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))


def save_fashion(folder: Path, compress: bool = False) -> None:
    """Small idx files: image i of training is filled with i + 1, of test with 200 + i."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count, base in (("train", 4, 1), ("t10k", 2, 200)):
        pixels = (
            np.zeros((count, 28, 28), dtype=np.uint8) + np.arange(base, base + count, dtype=np.uint8)[:, None, None]
        )
        images = struct.pack(">HBBIII", 0, 8, 3, count, 28, 28) + pixels.tobytes()
        labels = struct.pack(">HBBI", 0, 8, 1, count) + bytes(range(count))
        for name, content in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            (folder / name).write_bytes(content)
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchvision accept our own CIFAR files, whose checksums cannot be the published ones."""
    monkeypatch.setattr(torchvision_datasets().cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())


@pytest.mark.usefixtures("trusting")
def test_cifar_is_train_then_test(tmp_path: Path) -> None:
    save_cifar10(tmp_path)
    pool = Cifar10(root=str(tmp_path)).read()
    assert pool.pixels.shape == (18, 3, 32, 32)
    assert pool.pixels[:, 0, 5, 7].tolist() == list(range(18))
    assert pool.pixels[:, 1, 5, 7].tolist() == list(range(100, 118))
    assert (pool.pixels[:, 2, 5] == 255).all()
    assert pool.labels.tolist() == [i % 10 for i in range(18)]
    assert pool.is_test.tolist() == [False] * 15 + [True] * 3
    assert pool.class_names == tuple("abcdefghij")


def test_fashion_is_padded(tmp_path: Path) -> None:
    save_fashion(tmp_path / "FashionMNIST" / "raw")
    pool = FashionMnist(root=str(tmp_path)).read()
    assert pool.pixels.shape == (6, 1, 32, 32)
    assert pool.pixels[:, 0, 2, 2].tolist() == [1, 2, 3, 4, 200, 201]
    assert int(pool.pixels[:, :, :2].max()) == int(pool.pixels[:, :, -2:].max()) == 0
    assert int(pool.pixels[..., :2].max()) == int(pool.pixels[..., -2:].max()) == 0
    assert pool.labels.tolist() == [0, 1, 2, 3, 0, 1]
    assert pool.is_test.tolist() == [False] * 4 + [True] * 2
    assert pool.class_names[0] == "T-shirt/top"


@pytest.mark.parametrize("dataset", ALL)
def test_missing_says_what_to_put_where(dataset: type[TorchvisionDataset], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        dataset(root=str(tmp_path)).read()
    message = str(caught.value)
    assert f"{dataset.title} is not in {tmp_path}: put " in message
    assert str(tmp_path / dataset.folder) in message
    assert "`download: true`" in message
    assert "--download" in message
    assert everything(tmp_path) == []


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_unverified_pickles_are_never_loaded(tmp_path: Path) -> None:
    save_cifar10(tmp_path)
    marker = tmp_path / "was unpickled"
    for path in (tmp_path / "cifar-10-batches-py").iterdir():
        path.write_bytes(pickle.dumps(Evil(marker)))
    with pytest.raises(UserError, match="CIFAR-10 is damaged or incomplete in"):
        Cifar10(root=str(tmp_path)).read()
    assert not marker.exists()


def test_legacy_cache_of_fashion_is_not_opened(tmp_path: Path) -> None:
    save_fashion(tmp_path / "FashionMNIST" / "raw")
    legacy = tmp_path / "FashionMNIST" / "processed"
    legacy.mkdir()
    for name in ("training.pt", "test.pt"):
        torch.save((torch.zeros((1, 28, 28), dtype=torch.uint8), torch.zeros(1)), legacy / name)
    assert len(FashionMnist(root=str(tmp_path)).read().labels) == 6


@pytest.mark.parametrize("kept", [0, 3, 10, 500])
def test_cut_idx_file(tmp_path: Path, kept: int) -> None:
    save_fashion(tmp_path / "FashionMNIST" / "raw")
    file = tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match="Fashion-MNIST is damaged or incomplete in"):
        FashionMnist(root=str(tmp_path)).read()


@pytest.mark.parametrize("dataset", ALL)
@pytest.mark.parametrize("there", [True, False])
def test_no_network(
    dataset: type[TorchvisionDataset], there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(url: str, root: Any, *_: Any, **__: Any) -> None:
        Path(root).mkdir(parents=True, exist_ok=True)
        (Path(root) / "half.tar.gz").write_bytes(b"half")
        raise URLError("no route\nto host")

    monkeypatch.setattr(torchvision_datasets().utils, "download_url", half)
    root = tmp_path if there else tmp_path / "new" / "folder"
    with pytest.raises(UserError, match=f"^{dataset.title} could not be downloaded .*no route to host.* by hand\\.$"):
        dataset(root=str(root), download=True).read()
    assert everything(tmp_path) == []
    assert socket.getdefaulttimeout() is None


def test_interrupted_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(url: str, root: Any, *_: Any, **__: Any) -> None:
        (Path(root) / "half.tar.gz").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torchvision_datasets().utils, "download_url", stop)
    with pytest.raises(KeyboardInterrupt):
        Cifar10(root=str(tmp_path / "new"), download=True).read()
    assert everything(tmp_path) == []


def test_download_brings_the_files_and_mends_damaged_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def fetch(url: str, download_root: str, **_: Any) -> None:
        calls.append(url)
        save_fashion(Path(download_root), compress=True)

    monkeypatch.setattr(torchvision_datasets().mnist, "download_and_extract_archive", fetch)
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"damaged")
    (tmp_path / "mine.txt").write_text("another file of the user")
    first = FashionMnist(root=str(tmp_path), download=True).read()
    fetched = len(calls)
    assert fetched > 0
    assert len(first.labels) == 6
    assert len(everything(raw)) == 4  # the four files, not the archives that they came in
    assert sorted(path.name for path in tmp_path.iterdir()) == ["FashionMNIST", "mine.txt"]
    # what is there is not fetched again
    assert FashionMnist(root=str(tmp_path), download=True).read().digest() == first.digest()
    assert len(calls) == fetched


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("LEAKBOARD_DATA", raising=False)
    assert data_root("") == Path("/home/somebody/.cache/leakboard")
    monkeypatch.setenv("LEAKBOARD_DATA", "~/data")
    assert data_root("") == Path("/home/somebody/data")
    assert data_root("/given") == Path("/given")


@pytest.mark.parametrize("dataset", ALL)
def test_normalisation_fits_the_channels(dataset: type[TorchvisionDataset]) -> None:
    channels = 1 if dataset is FashionMnist else 3
    assert dataset.normalisation(channels) == (dataset.mean, dataset.std)
    with pytest.raises(ValueError, match="channels"):
        dataset.normalisation(4 - channels)


def save_npz(path: Path, labels: list[int], test_labels: list[int]) -> Path:
    """Image i is filled with i."""
    arrays: dict[str, Any] = {"class_names": np.array(["a", "b"])}
    for part, given in (("train", labels), ("test", test_labels)):
        numbers = np.arange(len(given), dtype=np.uint8)[:, None, None, None]
        arrays[f"{part}_images"] = np.zeros((len(given), 32, 32, 3), dtype=np.uint8) + numbers
        arrays[f"{part}_labels"] = np.array(given)
    np.savez(path, **arrays)
    return path


def test_a_part_is_the_first_images_of_each_class_in_order(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "part.npz", [0, 0, 1, 0, 1, 1, 0], [1, 0, 0, 1])
    pool = Cifar10(root=str(file), train_per_class=2, test_per_class=1).read()
    assert pool.labels.tolist() == [0, 0, 1, 1, 1, 0]
    assert pool.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 4, 0, 1]
    assert pool.is_test.tolist() == [False] * 4 + [True] * 2


def test_a_part_of_the_official_files_equals_the_same_part_from_elsewhere(tmp_path: Path, trusting: None) -> None:
    save_cifar10(tmp_path, per_batch=20)
    whole = Cifar10(root=str(tmp_path)).read()
    official = Cifar10(root=str(tmp_path), train_per_class=3, test_per_class=1).read()
    file = tmp_path / "copy.npz"
    parts = {"train": ~whole.is_test, "test": whole.is_test}
    arrays: dict[str, Any] = {"class_names": np.array(whole.class_names)}
    for name, part in parts.items():
        arrays |= {f"{name}_images": whole.pixels[part].numpy(), f"{name}_labels": whole.labels[part].numpy()}
    np.savez(file, **arrays)
    copied = Cifar10(root=str(file), train_per_class=3, test_per_class=1).read()
    assert len(official.labels) == 40
    assert (official.digest(), official.structure()) == (copied.digest(), copied.structure())


def test_too_few_images_of_a_class_are_one_sentence(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "part.npz", [0, 0, 1], [0, 1])
    with pytest.raises(UserError, match=r"CIFAR-10: 2 images per class were requested; class 1 has 1\."):
        Cifar10(root=str(file), train_per_class=2).read()
