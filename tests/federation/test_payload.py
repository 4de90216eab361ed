from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn

from leakboard.federation.payload import Packer, copy_value, leaves, size_in_bytes, unpack
from leakboard.federation.replay import differences

DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 5)))
    values = torch.randint(-3, 4, shape, generator=generator).to(draw(st.sampled_from(DTYPES)))
    return values.t() if values.ndim == 2 and draw(st.booleans()) else values


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**2048), max_value=2**2048),
    st.sampled_from([2**53 - 1, 2**53, -(2**53), 0, 1]),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=9),
)
KEYS = st.one_of(st.text(max_size=4), st.sampled_from(["$tensor", "$bytes", "$int", "$dict", "$float", "n", "a/b"]))
VALUES = st.recursive(
    SCALARS | tensors(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def stored(value: Any) -> Any:
    """Through JSON text and safetensors bytes and back."""
    packer = Packer()
    text = json.dumps(packer.pack(value), allow_nan=False)
    tensors = load(save(packer.tensors))
    return unpack(json.loads(text), tensors.__getitem__)


@given(VALUES)
@example({"x": [math.nan, -math.inf, -0.0], "y": {"$float": "nan"}})
def test_what_is_stored_is_read_back_equal(value: Any) -> None:
    assert list(differences(value, stored(value))) == []


@given(VALUES)
def test_a_copy_is_equal_and_shares_no_memory(value: Any) -> None:
    copied = copy_value(value)
    assert list(differences(value, copied)) == []
    for (_, first), (_, second) in zip(leaves(value), leaves(copied), strict=True):
        if isinstance(first, Tensor) and first.numel():
            assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_changing_the_original_changes_no_copy() -> None:
    value: dict[str, Any] = {"w": torch.zeros(3), "deep": [{"b": bytearray(b"ab")}]}
    copied = copy_value(value)
    value["w"].add_(1)
    value["deep"][0]["b"][0] = 0
    value["deep"].append(1)
    assert copied["w"].tolist() == [0, 0, 0]
    assert copied["deep"] == [{"b": b"ab"}]


def test_a_copy_is_plain() -> None:
    copied = copy_value({"p": nn.Parameter(torch.ones(2)), "t": (1, 2)})
    assert type(copied["p"]) is Tensor
    assert not copied["p"].requires_grad
    assert copied["t"] == [1, 2]


@pytest.mark.parametrize(
    "foreign",
    [object(), {1, 2}, lambda: 1, nn.Linear(1, 1), np.zeros(2), np.int64(3), 1j, range(3)],
    ids=lambda value: type(value).__name__,
)
def test_foreign_objects_are_refused_at_any_depth(foreign: Any) -> None:
    for value in (foreign, [foreign], {"a": [{"b": foreign}]}):
        with pytest.raises(TypeError, match="a message or state may hold tensors, bytes, text and numbers; given: "):
            copy_value(value)


def test_keys_are_text() -> None:
    with pytest.raises(TypeError, match="keys of a message or state must be text; given: 1"):
        copy_value({"a": {1: 2}})


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (torch.zeros(2, 3), 24),
        (torch.zeros(2, 3, dtype=torch.float64), 48),
        (torch.zeros(5, dtype=torch.bool), 5),
        (torch.zeros(0), 0),
        (b"", 0),
        (b"abc", 3),
        ("é", 2),
        (0, 1),
        (255, 1),
        (256, 2),
        (-256, 2),
        (2**2047, 256),
        (True, 1),
        (None, 1),
        (1.5, 8),
        ([], 0),
        ({"name": [1, {"deep": b"12"}], "w": torch.zeros(1)}, 7),
    ],
    ids=str,
)
def test_size_in_bytes(value: Any, size: int) -> None:
    assert size_in_bytes(value) == size


@given(VALUES, VALUES)
def test_sizes_add_up(first: Any, second: Any) -> None:
    assert size_in_bytes([first, second]) == size_in_bytes(first) + size_in_bytes(second) >= 0


def test_equal_tensors_are_kept_once_but_kinds_apart() -> None:
    packer = Packer()
    packer.pack({"a": torch.zeros(4), "b": [torch.zeros(4)], "c": torch.zeros(2, 4).t()[:, 0]})
    assert len(packer.tensors) == 1
    packer.pack([torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32), torch.zeros(2, dtype=torch.float64), bytes(16)])
    assert len(packer.tensors) == 5


def test_only_what_is_reached_is_read() -> None:
    packer = Packer()
    tree = packer.pack({"wanted": torch.ones(1), "other": torch.zeros(1)})
    read: list[str] = []

    def tensor(name: str) -> Tensor:
        read.append(name)
        return packer.tensors[name]

    assert unpack(tree["$dict"]["wanted"], tensor).item() == 1
    assert len(read) == 1


# --- `differences`, on which these tests and the replay stand -------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "paths"),
    [
        ({"a": 1}, {"a": 2}, ["/a"]),
        ({"a": 1}, {"a": True}, ["/a"]),
        ({"a": 1}, {"a": 1.0}, ["/a"]),
        ({"a": None}, {}, ["/a"]),
        ({"a": {}}, {}, ["/a"]),
        ({"a": []}, {"a": {}}, ["/a"]),
        ({"a/b": 1}, {"a": {"b": 1}}, ["/a", "/a/b"]),
        ([1, 2], [1], ["/1"]),
        (torch.zeros(2), torch.zeros(2, 1), [""]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), [""]),
        (torch.tensor(0.0), torch.tensor(-0.0), [""]),
        (torch.tensor(1.0), 1.0, [""]),
        (torch.zeros(0), None, [""]),
    ],
    ids=str,
)
def test_differences_are_found(first: Any, second: Any, paths: list[str]) -> None:
    assert list(differences(first, second)) == paths
    assert list(differences(second, first)) == paths


def test_a_value_that_is_no_number_equals_itself() -> None:
    assert (
        list(differences({"x": math.nan, "t": torch.tensor(math.nan)}, {"x": math.nan, "t": torch.tensor(math.nan)}))
        == []
    )
