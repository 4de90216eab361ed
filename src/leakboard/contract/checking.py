"""Applies rules to a plugin: one result per rule, in bounded CPU time, without a trace in the user's caches."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from leakboard.core.alarms import alarm
from leakboard.core.plugins import Plugin

#: a plain function `check_*` of one plugin; it returns nothing, or raises `Broken` or `NotApplicable`
Rule = Callable[[Any], None]
Outcome = Literal["ok", "broken", "not applicable"]

#: a rule may use so many seconds of CPU. Other work on the machine takes none of them, so it changes no verdict
CPU_SECONDS = 600.0
#: an error of a plugin is quoted up to this length
LONGEST_QUOTE = 300


class Broken(Exception):
    """A plugin breaks a rule; the message is one sentence that says how."""


class NotApplicable(Exception):
    """A rule says nothing about this plugin; the message is the reason."""


class OutOfTime(BaseException):
    """The CPU time of a rule is used up. No plugin catches this by `except Exception`."""


@dataclass(frozen=True)
class Result:
    """What one rule says about one plugin.

    `name` is the name of the rule's function and `rule` its sentence. `reason` says how the rule is broken, or why it
    does not apply; it is empty where the plugin keeps the rule.
    """

    name: str
    rule: str
    outcome: Outcome
    reason: str = ""

    @property
    def line(self) -> str:
        """One line for a terminal.

        >>> print(Result("check_x", "It repeats itself.", "broken", "Two answers differ.").line)
        BROKEN  It repeats itself → Two answers differ.
        """
        mark = {"ok": "ok", "broken": "BROKEN", "not applicable": "–"}[self.outcome]
        return f"{mark:6}  {self.rule}" if not self.reason else f"{mark:6}  {self.rule.rstrip('.')} → {self.reason}"


def sentence_of(rule: Rule) -> str:
    """The rule in words: the first line of its docstring."""
    return (rule.__doc__ or "").strip().split("\n", 1)[0]


def apply(rule: Rule, plugin: Plugin, cpu_seconds: float = CPU_SECONDS) -> Result:
    """What one rule says about one plugin. Whatever the plugin raises breaks the rule."""
    name, sentence = rule.__name__, sentence_of(rule)
    try:
        with _surroundings(), alarm(cpu_seconds, OutOfTime(), cpu=True):
            rule(plugin)
    except NotApplicable as why:
        return Result(name, sentence, "not applicable", _one_line(str(why)))
    except Broken as how:
        return Result(name, sentence, "broken", _one_line(str(how)))
    except OutOfTime:
        return Result(name, sentence, "broken", f"It was not done after {cpu_seconds:g} CPU seconds.")
    except Exception as error:
        return Result(name, sentence, "broken", _one_line(f"It raised {type(error).__name__}: {error}."))
    return Result(name, sentence, "ok")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]} …"


@contextmanager
def _surroundings() -> Iterator[None]:
    """One thread, as attacks have in a run; kept shadow models and generators go to a folder that is removed."""
    from leakboard.attacks.membership.building_blocks import shadows
    from leakboard.attacks.reconstruction.matching import generator

    threads, folders = torch.get_num_threads(), (shadows.FOLDER, generator.FOLDER)
    with tempfile.TemporaryDirectory() as scratch, torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)
        shadows.FOLDER = generator.FOLDER = Path(scratch)
        try:
            yield
        finally:
            shadows.FOLDER, generator.FOLDER = folders
            torch.set_num_threads(threads)
