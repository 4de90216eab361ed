"""Suite files: what they may say, and how a mistake in them is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.planning.plan import select
from leakboard.suites import suite_files
from leakboard.suites.schema import Entry, Suite, load_suite, parse_suite
from tests.leaderboard.runs import TINY, write_suite


@pytest.mark.parametrize("name", list(suite_files()))
def test_every_suite_of_the_checkout_is_valid(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert suite.description
    assert suite.control in [defense.title for defense in suite.defenses]
    goals = {registry.load("attack", attack.name).describe()["goal"] for attack in suite.attacks}
    if "reconstruction" in goals:
        assert "prior" in [attack.name for attack in suite.attacks]  # nothing can be compared without it


def test_an_attack_that_rebuilds_needs_something_observed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'prior' is about observed rounds: observe.rounds must not be empty"):
        load_suite(str(write_suite(tmp_path, observe={"rounds": []})))


def test_a_suite_file_is_read_as_it_stands(tmp_path: Path) -> None:
    suite = load_suite(str(write_suite(tmp_path, seeds=[3, 4])))
    assert suite.seeds == (3, 4)
    assert suite.model.params == {"hidden": [8]}
    assert [attack.title for attack in suite.attacks] == ["prior", "inverting-gradients", "loss-threshold", "shadow"]
    assert suite.control == "fedsgd"


@pytest.mark.parametrize(
    ("given_entry", "title"),
    [
        ("digits", "digits"),
        ("npz:/data/mine.npz", "npz"),
        ({"name": "npz:/data/mine.npz", "label": "mine"}, "mine"),
        ({"name": "digits", "params": {"label_noise": 0.5}}, "digits"),
    ],
)
def test_an_entry_is_a_name_or_more(given_entry: object, title: str) -> None:
    assert Entry.model_validate(given_entry).title == title


@pytest.mark.parametrize(
    "label", [" a", "a ", "a  b", " ", "a/b", "../x", "a\n", "a\tb", 'a"b', "a<b", "a$b", "a,b", "x" * 61]
)
def test_a_label_is_safe(label: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="label"):
        load_suite(str(write_suite(tmp_path, defenses=["fedsgd", {"name": "fedsgd", "label": label}])))


@pytest.mark.parametrize("label", ["mp-dp (V1)", "mp-dp (paper's formula)", "a b c", "(x)", "50%", "x" * 60])
def test_a_label_may_hold_spaces_parentheses_and_apostrophes(label: str, tmp_path: Path) -> None:
    suite = load_suite(str(write_suite(tmp_path, defenses=["fedsgd", {"name": "fedsgd", "label": label}])))
    assert suite.defenses[1].title == label


def test_labels_that_would_share_files_are_refused(tmp_path: Path) -> None:
    rows = ["fedsgd", {"name": "fedsgd", "label": "a (b"}, {"name": "fedsgd", "label": "a )b"}]
    with pytest.raises(UserError, match=r"would share the names of their files: a \(b, a \)b"):
        load_suite(str(write_suite(tmp_path, defenses=rows)))


def test_two_rows_of_one_plugin_need_a_label(tmp_path: Path) -> None:
    twice = ["fedsgd", {"name": "fedsgd", "label": "fedsgd-slow", "training": {"learning_rate": 0.01}}]
    suite = load_suite(str(write_suite(tmp_path, defenses=twice)))
    assert [defense.title for defense in suite.defenses] == ["fedsgd", "fedsgd-slow"]


def test_a_row_of_its_own_settings_is_checked(tmp_path: Path) -> None:
    slow = {"name": "fedsgd", "label": "slow", "training": {"learning_rte": 1}}
    with pytest.raises(UserError, match=r"defense 'slow'.*did you mean 'learning_rate'\?"):
        load_suite(str(write_suite(tmp_path, defenses=["fedsgd", slow])))


def test_a_suite_of_another_name_is_suggested() -> None:
    with pytest.raises(UserError, match="did you mean 'quick'"):
        load_suite("quik")


def test_a_suite_is_frozen_and_survives_its_own_dump() -> None:
    suite = Suite.model_validate(TINY)
    assert Suite.model_validate(suite.model_dump()) == suite


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TINY, "x"]), inner, max_size=4),
        max_leaves=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_yaml_holds_the_answer_is_a_suite_or_one_error(content: object) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite.yaml"
        path.write_text(yaml.safe_dump(content))
        with pytest.raises(UserError, match="suite"):
            load_suite(str(path))


@given(st.binary(max_size=80))
@settings(max_examples=60, deadline=None)
def test_whatever_the_bytes_are_the_answer_is_one_error(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "suite.yaml"
        path.write_bytes(content)
        with pytest.raises(UserError, match="suite"):
            load_suite(str(path))


@pytest.mark.parametrize(
    ("name", "threat", "about"),
    [
        ("idlg", "server", "training"),
        ("rmia", "client", "training"),
        ("gradient-membership", "server", "batch"),
        ("adversarial-r", "server:active", "training"),
        ("received-model", "client", "training"),
        ("audit", "server", "training"),
    ],
)
def test_an_attack_that_is_added_by_name_is_asked_what_it_was_made_for(name: str, threat: str, about: str) -> None:
    suite = select(load_suite("quick"), [], [name], [])
    (entry,) = (entry for entry in suite.attacks if entry.name == name)
    assert (entry.threats, entry.about) == ((threat,), about)


def test_fedavg_is_the_control_of_a_suite_that_names_none_and_has_no_fedsgd(tmp_path: Path) -> None:
    """`fedavg` was an alias of fedsgd: older suites that use it still have their control."""
    suite = load_suite(str(write_suite(tmp_path, defenses=["fedavg", "mp-dp"])))
    assert suite.control == "fedavg"
    assert [row.title for row in select(suite, ["fedavg"], [], []).defenses] == ["fedavg"]
    both = load_suite(str(write_suite(tmp_path, defenses=["fedavg", "fedsgd"])))
    assert both.control == "fedsgd"


def test_all_mistakes_are_told_at_once_those_of_plugins_too() -> None:
    wrong = {
        "name": "mine",
        "datasets": ["digit"],
        "model": {"name": "convnet", "params": {"wdth": 3}},
        "training": {"rounds": 0},
        "defenses": [{"name": "fedsg"}, 5],
        "attacks": [{"name": "dlgg", "threats": []}],
    }
    with pytest.raises(UserError) as caught:
        parse_suite(wrong, "It")
    told = "\n".join(caught.value.problems)
    for part in (
        "'training.rounds' is wrong",
        "'digit'",
        "'wdth'",
        "'fedsg'",
        "'dlgg'",
        "'attacks.0.threats' is wrong",
    ):
        assert part in told


def three_seeds(tmp_path: Path, **changes: object) -> Suite:
    rows = ["fedsgd", {"name": "clip", "seeds": [0]}]
    return load_suite(str(write_suite(tmp_path, **{"seeds": [0, 1, 2], "defenses": rows, **changes})))


def test_a_row_may_have_fewer_seeds(tmp_path: Path) -> None:
    suite = three_seeds(tmp_path)
    assert [suite.seeds_of(row) for row in suite.defenses] == [(0, 1, 2), (0,)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["fedsgd", {"name": "clip", "seeds": [3]}], r"'clip' has the seeds \[3\], which are not among the suite's"),
        (["fedsgd", {"name": "clip", "seeds": [1, 1]}], "the seeds of the defense 'clip' must differ"),
        (["fedsgd", {"name": "clip", "seeds": []}], "seeds"),
        ([{"name": "fedsgd", "seeds": [0]}, "clip"], "the control 'fedsgd' must have all seeds"),
    ],
)
def test_seeds_of_a_row_are_among_the_controls(rows: list[object], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        three_seeds(tmp_path, defenses=rows)


def test_a_choice_of_seeds_leaves_out_rows_without_them(tmp_path: Path) -> None:
    suite = three_seeds(tmp_path)
    assert [row.title for row in select(suite, (), (), (1, 2)).defenses] == ["fedsgd"]
    chosen = select(suite, (), (), (0, 2))
    assert [chosen.seeds_of(row) for row in chosen.defenses] == [(0, 2), (0,)]
    with pytest.raises(UserError, match=r"The defense 'clip' has only the seeds \[0\] in this suite\."):
        select(suite, ["clip"], (), (1,))
