"""How a question travels to the attack's process: its tensors as one block of bytes, the rest pickled.

Torch pickles each tensor by itself, through four pickles of its own: some 0.3 ms for each. A view has thousands.
Here a tensor becomes a position in the block. The receiver reads the block from the pipe straight into memory, and its
tensors are views of that memory, aligned as torch aligns its own (the last bits of a product may depend on that).

Parcels go from the worker to the attack's process only. Nothing that comes back is ever unpickled.
"""

from __future__ import annotations

import io
import os
import pickle
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

#: bytes to which every tensor of a block is aligned, and the bytes of a length in a parcel's header
ALIGNMENT, LENGTH = 64, 8
CUT_OFF = OSError("got end of file during message")


class _Collector(pickle.Pickler):
    """A pickler that collects dense tensors of the processor's memory; equal objects are collected once."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[tuple[int, Tensor]] = []
        self.size = 0

    def reducer_override(self, value: Any) -> Any:
        """Replace a tensor by the call that finds it again; everything else is pickled as usual."""
        plain = type(value) is Tensor and value.layout is torch.strided and value.device.type == "cpu"
        if not plain or value.requires_grad or value.is_complex() or value.is_quantized or value.numel() == 0:
            return NotImplemented
        start, self.size = self.size, self.size + -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
        self.tensors.append((start, value))
        return _placed, (start, value.dtype, tuple(value.shape))


class _Finder(pickle.Unpickler):
    """An unpickler whose tensors are views of a block."""

    def __init__(self, skeleton: bytes, block: Tensor) -> None:
        super().__init__(io.BytesIO(skeleton))
        self.block = block

    def find_class(self, module: str, name: str) -> Any:
        """As usual; `_placed` is told the block."""
        return self._place if (module, name) == (__name__, _placed.__name__) else super().find_class(module, name)

    def _place(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        return self.block[start : start + size].view(dtype).view(shape)


def _placed(start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The name under which a parcel asks for a tensor; only `_Finder` can answer."""
    raise pickle.UnpicklingError("a parcel can only be opened by open_parcel")


def pack_parcel(value: Any) -> tuple[bytes, Tensor]:
    """The pickle of a value without its tensors, and the block (bytes,) of these."""
    file = io.BytesIO()
    collector = _Collector(file)
    collector.dump(value)
    block = torch.empty(collector.size, dtype=torch.uint8)
    for start, tensor in collector.tensors:
        size = tensor.numel() * tensor.element_size()
        block[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
    return file.getvalue(), block


def open_parcel(skeleton: bytes, block: Tensor) -> Any:
    """The value of a parcel that our own parent process packed."""
    return _Finder(skeleton, block).load()


def send_parcel(pipe: Connection, value: Any) -> None:
    """Write a value into a pipe; `BrokenPipeError` if nobody reads."""
    skeleton, block = pack_parcel(value)
    lengths = b"".join(len(part).to_bytes(LENGTH, "little") for part in (skeleton, block))
    for rest in (memoryview(lengths + skeleton), block.numpy().data):
        while rest:
            rest = rest[os.write(pipe.fileno(), rest) :]


def receive_parcel(pipe: Connection) -> tuple[bytes, Tensor]:
    """Read a parcel from a pipe; `EOFError` if the pipe ends before it, `OSError` if it ends in the middle."""
    lengths = _read(pipe, 2 * LENGTH, EOFError()).numpy().tobytes()
    skeleton, block = (int.from_bytes(lengths[i : i + LENGTH], "little") for i in (0, LENGTH))
    return _read(pipe, skeleton).numpy().tobytes(), _read(pipe, block)


def _read(pipe: Connection, size: int, nothing: Exception = CUT_OFF) -> Tensor:
    """The next bytes of a pipe, in memory of torch's own; raises `nothing` if there are none."""
    found = torch.empty(size, dtype=torch.uint8)
    rest = found.numpy().data
    while rest:
        count = os.readv(pipe.fileno(), [rest])
        if not count:
            raise nothing if len(rest) == size else CUT_OFF
        rest = rest[count:]
    return found
