"""A parcel: what is packed comes out unchanged, with its tensors as views of one aligned block."""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing import Pipe

import pytest
import torch
from torch import Tensor

from leakboard.leaderboard.cells.parcel import ALIGNMENT, open_parcel, pack_parcel, receive_parcel, send_parcel

VALUES = [
    torch.arange(6.0).view(2, 3).T,
    torch.tensor(True),
    torch.tensor([1, 2, 3], dtype=torch.int64),
    torch.randn(5, dtype=torch.bfloat16),
    torch.randn(3, dtype=torch.float64)[::2],
    torch.zeros(0, 4),
    torch.randn(2, dtype=torch.complex64),
    torch.randn(3, requires_grad=True),
    torch.nn.Parameter(torch.randn(2)),
]


@dataclass(frozen=True)
class Letter:
    text: str
    tensors: tuple[Tensor, ...]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{v.dtype} {tuple(v.shape)}")
def test_a_tensor_comes_out_as_it_was(value: Tensor) -> None:
    found = open_parcel(*pack_parcel(Letter("a", (value,)))).tensors[0]
    assert torch.equal(found, value)
    assert (found.dtype, found.requires_grad, type(found)) == (value.dtype, value.requires_grad, type(value))


def test_tensors_are_aligned_and_one_object_stays_one() -> None:
    first, second = torch.randn(3), torch.randn(7)
    skeleton, block = pack_parcel([first, second, first])
    assert len(block) == 2 * ALIGNMENT
    found = open_parcel(skeleton, block)
    assert found[0] is found[2]
    assert [tensor.data_ptr() - block.data_ptr() for tensor in found[:2]] == [0, ALIGNMENT]


def test_what_the_receiver_changes_stays_with_it() -> None:
    value = torch.zeros(3)
    open_parcel(*pack_parcel(value)).fill_(1)
    assert torch.equal(value, torch.zeros(3))


def test_parcels_come_out_of_the_pipe_one_by_one() -> None:
    reader, writer = Pipe(duplex=False)
    for number in range(3):
        send_parcel(writer, (number, torch.full((4,), float(number))))
    writer.close()
    for number in range(3):
        found, values = open_parcel(*receive_parcel(reader))
        assert (found, values.tolist()) == (number, [float(number)] * 4)
    with pytest.raises(EOFError):
        receive_parcel(reader)


def test_a_parcel_that_is_cut_off_is_an_error() -> None:
    reader, writer = Pipe(duplex=False)
    os.write(writer.fileno(), (9).to_bytes(8, "little") + (0).to_bytes(8, "little") + b"half")
    writer.close()
    with pytest.raises(OSError, match="end of file during message"):
        receive_parcel(reader)
