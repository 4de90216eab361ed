"""docs/suites-reference.md: every key of a suite with its default and range, read off the schema that checks suites.

`make docs` writes it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.leaderboard.site.documents import anchor_of
from leakboard.leaderboard.site.settings import Setting, setting_of
from leakboard.suites.schema import Suite, parse_suite

HEADER = """# Every key of a suite

A suite is a YAML file that says what to run: data, model, training, defenses and attacks. `make docs`
writes this page from the schema that checks suites, so keys, defaults, ranges and refusals are those of the code.
[suites.md](suites.md) lists the suites that come along.

    .venv/bin/python run_benchmark.py run --suite mine.yaml --dry-run    # checks it, prints the plan and its time
    .venv/bin/python run_benchmark.py run --suite mine.yaml              # runs it: tables, and a page

The smallest useful `mine.yaml`; every other key has a default:

```yaml
{example}```

A key that is not in these tables is refused, and the refusal names the nearest one.
"""
EXAMPLE = """name: mine
datasets: [digits]
model: mlp
training: {rounds: 100}
defenses: [fedsgd, mp-dp]
attacks:
  - {name: inverting-gradients, threats: [server]}
  - {name: prior, threats: [server]}
"""
#: part of the schema -> its heading; in the order of the document
PARTS = {
    "Suite": "The suite",
    "Entry": "A data set or a model",
    "DefenseEntry": "A defense",
    "AttackEntry": "An attack",
    "Training": "`training`",
    "Dropout": "`training.dropouts`",
    "ObservedRounds": "`observe`",
    "Tuning": "`tuning`",
    "FurtherTuning": "`tuning.further`",
}
#: what keys mean that have no description in the schema
MEANINGS = {
    "Suite.name": "name of the suite, and of the folder `runs/<name>`",
    "Suite.description": "one line for tables and the page",
    "Suite.datasets": "the data sets; each is run with everything else",
    "Suite.model": "the network",
    "Suite.training": "the federation",
    "Suite.observe": "what is recorded for the attacks",
    "Suite.seeds": "one training per data set, defense and seed",
    "Suite.defenses": "one row of the tables each",
    "Suite.attacks": "each runs on every defense, under each of its threats",
    "*.name": "name of the plugin (`run_benchmark.py list`); `npz:FILE` gives the location of data",
    "*.label": "its name in tables and files; needed if a plugin is there twice; default: the plugin's name",
    "*.params": "parameters of the plugin",
    "DefenseEntry.model": "another network for this row only",
    "DefenseEntry.training": "other settings of `training` for this row only",
    "Training.learning_rate": "of the server's step",
    "Training.partition": "how records are dealt to clients: alike, or with skewed labels",
    "Training.dropouts": "clients that drop out in mid-round",
    "Dropout.client": "number of the client, from 0",
    "Dropout.round": "number of the round, from 0",
    "Tuning.seed": "seed of the tuning; must not be reported",
    "Tuning.clip": "the tried clip bounds",
    "Tuning.learning_rate": "the tried learning rates",
    "Tuning.same_as": "row -> the row whose point it takes",
    "Tuning.accuracy": "row -> accuracies in per cent, one list per learning rate with one value per clip bound",
    "Tuning.further": "row -> a grid of more parameters of that row",
    "FurtherTuning.params": "parameter -> the tried values",
    "FurtherTuning.accuracy": "accuracies in per cent, one per combination; the last parameter changes fastest",
}
#: settings that a rule refuses, beside the example's own
REFUSED: tuple[dict[str, Any], ...] = (
    {"training": {}},
    {"training": {"rounds": 3, "epochs": 2}},
    {"training": {"rounds": 3, "clients": 4, "participants": 5}},
    {"observe": {"probe_batch": [1, 8], "targets": 4}},
    {"defenses": ["fedsgd", "mp-dp", "mp-dp"]},
    {"defenses": ["mp-dp"]},
    {"seeds": [1, 1]},
    {"attacks": [{"name": "prior", "threats": ["servr"]}]},
    {"attacks": [{"name": "prior", "threats": ["server"], "about": "batch"}]},
    {"observe": {"rounds": []}},
    {"trainings": {}},
)
KINDS = {"dataset": "Data sets", "model": "Models", "defense": "Defenses", "attack": "Attacks"}


def suites_markdown() -> str:
    """The whole document."""
    whole = Suite.model_json_schema()
    parts: dict[str, Any] = {"Suite": whole, **whole["$defs"]}
    if set(parts) != set(PARTS):
        raise AssertionError(f"PARTS must name every part of the schema; it differs in {set(parts) ^ set(PARTS)}")
    text = [HEADER.format(example=EXAMPLE)]
    for name, title in PARTS.items():
        text += [f"## {title}", "", str(parts[name].get("description", "")).split("\n\n")[0].replace("\n", " "), ""]
        text += [*_table(_settings(name, parts[name])), ""]
    return "\n".join([*text, *_refusals(), *_plugins()])


def _settings(part: str, schema: Mapping[str, Any]) -> Iterator[Setting]:
    """The keys of a part of the schema. Every key has a meaning: the schema's description, or ours."""
    for key, value in schema["properties"].items():
        setting = setting_of(key, value)
        if setting.default == "required" and key not in schema.get("required", ()):
            setting = setting._replace(default="{}")  # made by a factory: the schema does not show it
        if not setting.meaning:
            known = MEANINGS.get(f"{part}.{key}") or MEANINGS[f"*.{key}"]
            setting = setting._replace(meaning=known)
        yield setting


def _table(settings: Iterator[Setting]) -> Iterator[str]:
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for name, default, allowed, meaning in settings:
        shown = "**required**" if default == "required" else f"`{default}`"
        for part, title in PARTS.items():
            allowed = re.sub(rf"\b{part}\b", f"[{part}](#{anchor_of(title)})", allowed)
        yield f"| `{name}` | {shown} | {allowed} | {_escaped(meaning)} |"


def _escaped(text: str) -> str:
    """A text of the code as Markdown: outside backticks, no character has a meaning of its own."""
    parts = text.split("`")
    return "`".join(re.sub(r"([<*|])", r"\\\1", part) if i % 2 == 0 else part for i, part in enumerate(parts))


def _refusals() -> Iterator[str]:
    """Rules about several keys, each shown by what it answers."""
    yield "## What is refused\n"
    yield "Some rules are about several keys. Each row is the example above with one change, and the answer to it.\n"
    yield "| change | answer |"
    yield "|---|---|"
    for change in REFUSED:
        try:
            parse_suite({**yaml.safe_load(EXAMPLE), **change}, "The suite mine.yaml")
        except UserError as error:
            shown = ", ".join(f"{key}: {json.dumps(value)}" for key, value in change.items()).replace('"', "")
            yield f"| `{shown}` | {' '.join(str(error).split())} |"
        else:
            raise AssertionError(f"nothing refuses {change}")
    yield ""


def _plugins() -> Iterator[str]:
    """The parameters of every plugin: what `params` may hold."""
    yield "## Parameters of plugins\n"
    yield "What `params` may hold, by plugin. Plugins without parameters are left out. R, V1 and V2 are explained in"
    yield "[model-perturbation.md](model-perturbation.md).\n"
    for kind, title in KINDS.items():
        yield f"### {title}\n"
        for name, entry in registry.entries(kind).items():
            if entry["parameters"]:
                yield f"**`{name}`**: {_escaped(entry['summary'])}\n"
                yield from _table(setting_of(key, schema) for key, schema in entry["parameters"].items())
                yield ""


if __name__ == "__main__":
    sys.stdout.write(suites_markdown().rstrip() + "\n")
