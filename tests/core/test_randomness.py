"""Statistical tests have fixed keys, so they pass or fail for good; of all right keys, FALSE_ALARM would fail each."""

from __future__ import annotations

import hashlib
import hmac
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from leakboard.core.randomness import KEY_BYTES, Stream, derive_key, run_secret

FALSE_ALARM = 1e-3
KEY = bytes(range(32))


def test_hkdf_is_rfc_5869() -> None:
    # by hand: HMAC-SHA256 of the secret under a zero salt, then of info and 0x01 under that
    info = b"leakboard" + b"\x01\x00\x00\x00a" + b"\x02\x00\x00\x0012"
    extracted = hmac.new(bytes(32), b"secret", hashlib.sha256).digest()
    expected = hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
    assert derive_key(b"secret", "a", 12) == expected


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_keys_are_separate_by_names(first: list[str], second: list[str]) -> None:
    assert (derive_key(b"s", *first) == derive_key(b"s", *second)) == (first == second)


def test_keys_are_separate_by_border_and_secret() -> None:
    keys = [derive_key(b"s", "ab", "c"), derive_key(b"s", "a", "bc"), derive_key(b"s", "abc"), derive_key(b"t", "abc")]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == KEY_BYTES for key in keys)


def test_run_secret_is_seeded_or_fresh() -> None:
    assert run_secret(3) == run_secret(3)
    assert run_secret(3) != run_secret(4)
    assert run_secret(-1) != run_secret(1)
    assert run_secret(None) != run_secret(None)
    assert len(run_secret(None)) == KEY_BYTES


def test_chacha20_known_answer_of_rfc_8439() -> None:
    # section 2.3.2: key 00..1f, block counter 1 (little endian), nonce 000000090000004a00000000
    nonce = bytes.fromhex("01000000" + "000000090000004a00000000")
    expected = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert Stream(KEY, nonce).bytes(64) == expected


@given(st.lists(st.integers(0, 70), max_size=6))
def test_a_stream_goes_on_where_it_stopped(counts: list[int]) -> None:
    stream, whole = Stream(KEY), Stream(KEY).bytes(sum(counts))
    assert b"".join(stream.bytes(count) for count in counts) == whole


def test_all_draws_come_from_one_stream() -> None:
    mixed, plain = Stream(KEY), Stream(KEY)
    mixed.uniform(2, 3)
    mixed.permutation(5)
    plain.bytes(8 * (6 + 5))
    assert mixed.bytes(16) == plain.bytes(16)


def test_a_key_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32 bytes; given: 31"):
        Stream(bytes(31))


def test_shapes_even_empty_ones() -> None:
    assert Stream(KEY).uniform(2, 0, 3).shape == (2, 0, 3)
    assert Stream(KEY).normal().shape == ()
    assert Stream(KEY).normal(4, 5).shape == (4, 5)
    assert Stream(KEY).permutation(0).tolist() == []


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_uniform_is_open_even_at_the_ends(byte: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    # the smallest and the largest word that the cipher can give
    monkeypatch.setattr(Stream, "bytes", lambda self, count: byte * count)
    drawn = float(Stream(KEY).uniform(1)[0])
    assert 0.0 < drawn < 1.0
    assert math.isfinite(Stream(KEY).normal(1)[0])


def test_uniform_is_uniform() -> None:
    drawn = Stream(KEY).uniform(100_000)
    assert drawn.min() > 0
    assert drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM


def test_normal_is_normal() -> None:
    drawn = Stream(KEY).normal(100_000)
    assert stats.kstest(drawn, "norm").pvalue > FALSE_ALARM


def test_neighbouring_draws_are_unrelated() -> None:
    drawn = Stream(KEY).normal(100_000)
    # the correlation of independent draws is about N(0, 1/n)
    correlation = float(np.corrcoef(drawn[:-1], drawn[1:])[0, 1])
    assert abs(correlation) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(len(drawn))


def test_streams_of_two_purposes_are_unrelated() -> None:
    first, second = (Stream(derive_key(KEY, purpose)).normal(100_000) for purpose in ("a", "b"))
    correlation = float(np.corrcoef(first, second)[0, 1])
    assert abs(correlation) < stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(len(first))


def test_permutations_are_uniform() -> None:
    stream = Stream(KEY)
    ranks: dict[tuple[int, ...], int] = {}
    for _ in range(12_000):
        drawn = tuple(stream.permutation(4).tolist())
        ranks[drawn] = ranks.get(drawn, 0) + 1
    assert len(ranks) == 24
    assert stats.chisquare(list(ranks.values())).pvalue > FALSE_ALARM


@given(st.integers(0, 50))
def test_a_permutation_has_everything_once(count: int) -> None:
    assert sorted(Stream(KEY).permutation(count).tolist()) == list(range(count))


def test_the_torch_generator_follows_from_the_key() -> None:
    draws = [torch.rand(3, generator=Stream(key).generator()).tolist() for key in (KEY, KEY, bytes(32))]
    assert draws[0] == draws[1] != draws[2]
