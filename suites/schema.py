"""The suite file: which defenses, attacks, data and settings make up a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from leakboard.core import registry
from leakboard.core.errors import Problems, UserError, unknown_name
from leakboard.core.explaining import Faults, explain
from leakboard.core.names import file_part
from leakboard.core.plugins import Settings
from leakboard.federation.settings import ObservedRounds, Training
from leakboard.federation.view import THREATS, parse_threat
from leakboard.suites import suite_file, suite_files

MAX_SUITE_BYTES = 200_000
#: YAML nodes, with each alias counted as often as it is used: a few lines of nested aliases can be billions of nodes
MAX_SUITE_NODES = 50_000
#: letters, digits, some signs, and single spaces inside: `mp-dp (V1)`, `mp-dp (paper's formula)`
LABEL = r"^(?:[A-Za-z0-9._+@%()'-](?: ?[A-Za-z0-9._+@%()'-])*)?$"
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Entry(Settings):
    """A plugin with its parameters and its own label: `name`, or `{name, label, params}`."""

    name: str = Field(min_length=1, max_length=500)
    label: str = Field("", max_length=60, pattern=LABEL)
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @property
    def title(self) -> str:
        """The label if there is one, otherwise the plugin's name."""
        return self.label or self.name.partition(":")[0]


class DefenseEntry(Entry):
    """A defense; `model`, `training` and `seeds` override the suite's settings for this row only."""

    model: Entry | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    seeds: tuple[Seed, ...] | None = Field(
        None, min_length=1, max_length=1000, description="those of the suite's seeds that this row has; null: all"
    )


class AttackEntry(Entry):
    """An attack, the threats under which it runs, and what it is told."""

    threats: tuple[str, ...] = Field(min_length=1, max_length=100, description=f"who attacks: {', '.join(THREATS)}")
    known_labels: bool = Field(False, description="whether a reconstruction attack knows the labels")
    known_members: float = Field(
        0, ge=0, lt=1, description="share of members and non-members that a membership attack knows; not evaluated"
    )
    about: Literal["training", "batch"] = Field(
        "training",
        description="membership: in the training set at all, or in the victim's batch of each observed round",
    )
    pool_share: float = Field(
        1, gt=0, le=1, description="`about: batch`: share of the victim's batch that is among the candidates"
    )


class FurtherTuning(Settings):
    """More parameters of one row, tried at its best clip bound and learning rate of the common grid.

    `learning_rate` is allowed among them, for rows whose best is outside of the common grid. `accuracy` has one value
    per combination of the values in `params`, where the last parameter changes fastest.
    """

    params: dict[str, tuple[float, ...]] = Field(min_length=1)
    accuracy: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed, given = len(self.combinations()), len(self.accuracy)
        if given not in (0, needed):
            raise ValueError(f"accuracy must have one value per combination of params, {needed}; given: {given}")
        return self

    def combinations(self) -> list[dict[str, float]]:
        """All points of the grid, in the order of `accuracy`."""
        return [dict(zip(self.params, values, strict=True)) for values in product(*self.params.values())]

    def best(self) -> dict[str, float]:
        """The most accurate point; the first if several are equal."""
        return max(zip(self.accuracy, self.combinations(), strict=True), key=lambda pair: pair[0])[1]


class Tuning(Settings):
    """How the clip bound and the learning rate of each row were chosen: the grid, the seed, and the results.

    `accuracy` has, by row, one list per learning rate with one value per clip bound (one value if the row does not
    clip), in percent, on held-out records (`benchmarks/tuning.py` computes it). A row in `same_as` was not trained on
    the grid and takes the point of another row: its training is the same up to rounding, or the suite's file says how
    close.
    """

    seed: Seed
    clip: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, max_length=100)
    learning_rate: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1, max_length=100)
    same_as: dict[str, str] = Field(default_factory=dict)
    accuracy: dict[str, tuple[tuple[float, ...], ...]] = Field(default_factory=dict)
    further: dict[str, FurtherTuning] = Field(default_factory=dict)

    def best(self, row: str) -> tuple[float | None, float]:
        """Clip bound (None if the row does not clip) and learning rate of the most accurate point.

        If several are equal, the first is taken: the smaller learning rate, then the smaller bound. A further grid may
        replace the learning rate of the common one.
        """
        values = self.accuracy[self.same_as.get(row, row)]
        best = max((value, -r, -c) for r, own in enumerate(values) for c, value in enumerate(own))
        rate, clip = -best[1], -best[2]
        own = self.further[row].best() if row in self.further and self.further[row].accuracy else {}
        bound = self.clip[clip] if len(values[rate]) > 1 else None
        return bound, own.get("learning_rate", self.learning_rate[rate])


class Suite(Settings):
    """A whole suite, as in `suites/*.yaml`."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    datasets: tuple[Entry, ...] = Field(min_length=1, max_length=100)
    model: Entry
    training: Training
    observe: ObservedRounds = ObservedRounds()
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, max_length=1000)
    defenses: tuple[DefenseEntry, ...] = Field(min_length=1, max_length=1000)
    attacks: tuple[AttackEntry, ...] = Field(min_length=1, max_length=1000)
    control: str = Field("fedsgd", description="label of the row without a defense")
    utility_gate: float = Field(0.9, ge=0, le=1, description="share of the control's accuracy that a ranked row needs")
    decoys: int = Field(999, ge=1, le=100_000, description="number of other images with which `identified` compares")
    time_limit: float = Field(3600, gt=0, description="time limit of a cell or a training, in seconds")
    memory_limit: float = Field(16, gt=0, description="memory limit of a cell or a training, in GiB")
    tuning: Tuning | None = Field(None, description="how clip bounds and learning rates were chosen")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = list(self._faults())
        if faults:
            raise Faults(*faults)
        return self

    def _faults(self) -> Iterator[str]:
        """What does not go together, each as a clause of a sentence."""
        for what, entries in (("datasets", self.datasets), ("defenses", self.defenses), ("attacks", self.attacks)):
            titles = [entry.title for entry in entries]
            twice = {title for title in titles if titles.count(title) > 1}
            if twice:
                yield f"two {what} are called {', '.join(sorted(twice))}: give one of them a label"
            files = [file_part(title) for title in titles]
            alike = [title for title, file in zip(titles, files, strict=True) if files.count(file) > 1]
            if alike and not twice:
                yield f"these {what} would share the names of their files: {', '.join(alike)}"
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds must differ"
        yield from self._seed_faults()
        if self.tuning is not None and self.tuning.seed in self.seeds:
            yield f"the seed of the tuning ({self.tuning.seed}) must not be among the seeds that are reported"
        if len(set(self.observe.rounds)) < len(self.observe.rounds):
            yield "the observed rounds must differ"
        for attack in self.attacks:
            if len(set(attack.threats)) < len(attack.threats):
                yield f"the threats of {attack.title} must differ"
            for threat in dict.fromkeys(attack.threats):
                try:
                    parse_threat(threat, self.training.clients)
                except UserError as error:
                    yield str(error).rstrip(".")

    def seeds_of(self, row: DefenseEntry) -> tuple[int, ...]:
        """The seeds of a row: its own, otherwise the suite's."""
        return self.seeds if row.seeds is None else row.seeds

    def _seed_faults(self) -> Iterator[str]:
        """Seeds of rows that the control does not have: nothing could be compared with it there."""
        for row in self.defenses:
            own = self.seeds_of(row)
            if row.seeds is not None and len(set(own)) < len(own):
                yield f"the seeds of the defense '{row.title}' must differ"
            if other := sorted(set(own) - set(self.seeds)):
                yield f"the defense '{row.title}' has the seeds {other}, which are not among the suite's seeds"
            if row.title == self.control and set(own) != set(self.seeds):
                yield f"the control '{row.title}' must have all seeds of the suite"


def is_about_rounds(goal: str, entry: AttackEntry) -> bool:
    """Whether an attack of this goal runs once per observed round instead of once on the whole training."""
    return bool(registry.find("goal", goal)["per_round"]) or entry.about == "batch"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which builds no Python objects; here it also builds no large objects from small files."""

    def get_single_node(self) -> yaml.Node | None:
        """The document's tree; refused if its aliases expand to too much or refer to themselves."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _unfolded(node, {}) > MAX_SUITE_NODES:
            raise yaml.constructor.ConstructorError(problem=f"it unfolds to more than {MAX_SUITE_NODES} nodes")
        return node


def _unfolded(node: yaml.Node, known: dict[int, int | None]) -> int:
    """The number of nodes of a tree with every alias expanded."""
    if id(node) not in known:
        known[id(node)] = None  # started
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = sum(_unfolded(part, known) for part in parts) if isinstance(node, yaml.CollectionNode) else 0
        known[id(node)] = 1 + below
    size = known[id(node)]
    if size is None:
        raise yaml.constructor.ConstructorError(problem="an alias refers to itself", problem_mark=node.start_mark)
    return size


def load_suite(name_or_file: str) -> Suite:
    """A suite by name, or from a YAML file; every mistake is reported in one sentence."""
    path = suite_file(name_or_file)
    try:
        if not path.is_file():
            raise unknown_name("suite", name_or_file, suite_files())
        if path.stat().st_size > MAX_SUITE_BYTES:
            raise UserError(f"The suite {path.name} is too large: at most {MAX_SUITE_BYTES} bytes are read.")
        given = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise UserError(f"The suite {path} cannot be read: {error.strerror}.") from None
    # YAML's own constructors raise various errors: for a month 13, a number of 5,000 digits, `!!bool maybe`
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise UserError(f"The suite {path.name} is not valid YAML{line}: {getattr(error, 'problem', error)}.") from None
    if not isinstance(given, dict):
        raise UserError(f"The suite {path.name} must be a mapping of settings; given: {type(given).__name__}.")
    return parse_suite(given, f"The suite {path.name}")


def parse_suite(given: Mapping[str, Any], what: str) -> Suite:
    """A suite from its settings; each mistake is one sentence that begins with `what`, and all are told at once."""
    try:
        suite = Suite.model_validate(given)
    except ValidationError as error:
        raise UserError(*explain(error, what, Suite).problems, *_wrong_plugins(given)) from None
    check_plugins(suite)
    return suite.model_copy(update={"control": _control(suite)})


def _wrong_plugins(given: Mapping[str, Any]) -> list[str]:
    """What is wrong with the plugins of a suite that has other mistakes; entries of a wrong form are passed over."""
    problems = Problems()
    for kind, key in (("dataset", "datasets"), ("model", "model"), ("defense", "defenses"), ("attack", "attacks")):
        listed = given.get(key)
        for one in listed if isinstance(listed, list | tuple) else [listed]:
            own = {name: one[name] for name in ("name", "params") if name in one} if isinstance(one, Mapping) else one
            with suppress(ValidationError), problems.collected():
                entry = Entry.model_validate(own)
                registry.create(kind, entry.name, entry.params)
    return problems.found


def _control(suite: Suite) -> str:
    """The title of the control. `fedavg` is the control of a suite that names none and has no `fedsgd`."""
    titles = [defense.title for defense in suite.defenses]
    named = registry.title_of("defense", suite.control, titles)
    absent = named == "fedsgd" and named not in titles and "control" not in suite.model_fields_set
    return "fedavg" if absent and "fedavg" in titles else named


def check_plugins(suite: Suite) -> None:
    """Check that every plugin that the suite names exists and takes its parameters; all mistakes are told at once."""
    problems = Problems()
    plugins = [("dataset", entry) for entry in suite.datasets]
    plugins += [("model", entry) for entry in (suite.model, *(row.model for row in suite.defenses if row.model))]
    for kind, entry in (*plugins, *(("defense", row) for row in suite.defenses)):
        with problems.collected():
            registry.create(kind, entry.name, entry.params)
    for defense in suite.defenses:
        with problems.collected():
            given = {**suite.training.model_dump(), **defense.training}
            Training.parse(given, f"training of the defense '{defense.title}'")
    for attack in suite.attacks:
        with problems.collected():
            _check_attack(suite, attack)
    titles = [defense.title for defense in suite.defenses]
    with problems.collected():
        if not problems.found and _control(suite) not in titles:
            raise unknown_name("control (a defense of the suite)", suite.control, titles)
    problems.refuse()


def _check_attack(suite: Suite, attack: AttackEntry) -> None:
    goal = registry.create("attack", attack.name, attack.params).describe()["goal"]
    for kind in ("goal", "ranking"):  # without both no table could be made
        registry.find(kind, goal)
    if attack.about not in registry.find("goal", goal)["about"]:
        able = ", ".join(n for n, other in registry.entries("goal").items() if attack.about in other["about"])
        raise UserError(f"The attack '{attack.title}' has no 'about: {attack.about}': its goal is {goal}, not {able}.")
    if attack.pool_share < 1 and attack.about != "batch":
        share = f"a pool_share of {attack.pool_share:g}"
        raise UserError(f"The attack '{attack.title}' has {share}, which only 'about: batch' can have.")
    if is_about_rounds(goal, attack) and not suite.observe.rounds:
        raise UserError(f"The attack '{attack.title}' is about observed rounds: observe.rounds must not be empty.")
