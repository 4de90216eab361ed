from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leakboard.core.errors import UserError, nearest, unknown_name

NAMES = ["fedsgd", "mp-dp", "secagg", "inverting-gradients"]


def test_nearest_forgives_a_slip_and_the_case() -> None:
    assert nearest("fedsdg", NAMES) == "fedsgd"
    assert nearest("SecAgg", NAMES) == "secagg"
    assert nearest("inverting_gradients", NAMES) == "inverting-gradients"


def test_nearest_says_nothing_when_nothing_is_alike() -> None:
    assert nearest("xyz", NAMES) is None
    assert nearest("fedsgd", []) is None


@given(st.sampled_from(NAMES), st.data())
def test_one_lost_letter_is_always_forgiven(name: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(name) - 1))
    assert nearest(name[:position] + name[position + 1 :], NAMES) == name


def test_unknown_name_suggests_and_lists() -> None:
    error = unknown_name("defense", "fedsdg", NAMES)
    assert isinstance(error, UserError)
    assert str(error) == (
        "There is no defense 'fedsdg': did you mean 'fedsgd'? Known: fedsgd, mp-dp, secagg, inverting-gradients."
    )


def test_unknown_name_without_a_guess_or_without_names() -> None:
    assert str(unknown_name("attack", "xyz", NAMES[:1])) == "There is no attack 'xyz': Known: fedsgd."
    assert str(unknown_name("attack", "xyz", iter(()))) == "There is no attack 'xyz': Known: none."
