"""What each command is asked for, typed. Imports nothing heavy: help and `list` answer at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class RunOptions:
    """`run`: a suite, and what of it."""

    name: ClassVar[str] = "run"
    suite: str = "quick"
    on: str | None = None
    data: str = ""
    defense: tuple[str, ...] = ()
    attack: tuple[str, ...] = ()
    seed: tuple[int, ...] = ()
    out: str | None = None
    workers: int | None = None
    executor: Literal["local", "ray"] = "local"
    gpus_per_cell: float = 0.0
    device: Literal["cpu", "cuda"] = "cpu"
    dry_run: bool = False
    plugin: tuple[str, ...] = ()
    checkpoint_seconds: float = 120.0
    retry_failed: bool = False
    fresh_keys: bool = False
    keep_transcripts: bool = False
    lpips_weights: str = ""
    download: bool = False
    all: bool = False


@dataclass(frozen=True)
class ListOptions:
    """`list`: plugins and suites."""

    name: ClassVar[str] = "list"
    kind: str | None = None
    json: bool = False


@dataclass(frozen=True)
class StatusOptions:
    """`status`: how far a run is."""

    name: ClassVar[str] = "status"
    out: str


@dataclass(frozen=True)
class TableOptions:
    """`table`: which tables of a run, in which format."""

    name: ClassVar[str] = "table"
    out: str
    format: str | None = None
    scoreboard: bool = False
    all: bool = False
    phases: bool = False
    paper: bool = False
    target: float | None = None
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportOptions:
    """`report`: the page of a run."""

    name: ClassVar[str] = "report"
    out: str
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShowOptions:
    """`show`: one record, or what is behind the marks of a defense."""

    name: ClassVar[str] = "show"
    record: str
    question: str = ""
    out: str = "runs/quick"
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class NewOptions:
    """`new`: a skeleton of a plugin."""

    name: ClassVar[str] = "new"
    kind: str
    plugin: str
    to: str = "."


@dataclass(frozen=True)
class CheckOptions:
    """`check`: the contract, on a plugin file."""

    name: ClassVar[str] = "check"
    plugin: str


@dataclass(frozen=True)
class CompareOptions:
    """`compare`: two runs."""

    name: ClassVar[str] = "compare"
    first: str
    second: str
    format: str | None = None
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubmitOptions:
    """`submit`: a run's records for publishing."""

    name: ClassVar[str] = "submit"
    run: str
    to: str | None = None
    allow_dirty: bool = False
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyOptions:
    """`verify`: records to be computed again."""

    name: ClassVar[str] = "verify"
    records: tuple[str, ...]
    data: str = ""
    plugin: tuple[str, ...] = ()
    lpips_weights: str = ""
    mark: bool = False
    depth: Literal["attack", "training"] = "training"


@dataclass(frozen=True)
class RefreshOptions:
    """`refresh`: a new attack on everything that a board has, and its records on the board."""

    name: ClassVar[str] = "refresh"
    board: str
    attack: tuple[str, ...]
    plugin: tuple[str, ...] = ()
    out: str | None = None
    data: str = ""
    workers: int | None = None
    lpips_weights: str = ""
    allow_dirty: bool = False


@dataclass(frozen=True)
class FiguresOptions:
    """`figures`: the figures of a run, for papers."""

    name: ClassVar[str] = "figures"
    out: str
    to: str | None = None
    format: tuple[str, ...] = ()
    plugin: tuple[str, ...] = ()


@dataclass(frozen=True)
class LpipsOptions:
    """`lpips`: the weights that the metric LPIPS needs, once for all runs."""

    name: ClassVar[str] = "lpips"
    source: str = ""
    download: bool = False


@dataclass(frozen=True)
class DataOptions:
    """`data get`: a data set of torchvision, compared with the published boards."""

    name: ClassVar[str] = "data"
    action: str
    dataset: str
    archive: str = ""
    to: str = ""


@dataclass(frozen=True)
class ShadowsOptions:
    """`shadows`: the shadow models of a board, published or taken into the cache."""

    name: ClassVar[str] = "shadows"
    action: Literal["publish", "get"]
    folders: tuple[str, ...]


@dataclass(frozen=True)
class PruneOptions:
    """`prune`: remove from a run what can be made again."""

    name: ClassVar[str] = "prune"
    run: str
    dry_run: bool = False


@dataclass(frozen=True)
class SiteOptions:
    """`site`: one static site from everything published."""

    name: ClassVar[str] = "site"
    out: str = "site"


Asked = (
    RunOptions
    | ListOptions
    | StatusOptions
    | TableOptions
    | ReportOptions
    | ShowOptions
    | NewOptions
    | CheckOptions
    | CompareOptions
    | SubmitOptions
    | VerifyOptions
    | RefreshOptions
    | FiguresOptions
    | LpipsOptions
    | DataOptions
    | ShadowsOptions
    | PruneOptions
    | SiteOptions
)
COMMANDS: tuple[type[Asked], ...] = (
    RunOptions,
    ListOptions,
    StatusOptions,
    TableOptions,
    ReportOptions,
    ShowOptions,
    NewOptions,
    CheckOptions,
    CompareOptions,
    SubmitOptions,
    VerifyOptions,
    RefreshOptions,
    FiguresOptions,
    LpipsOptions,
    DataOptions,
    ShadowsOptions,
    PruneOptions,
    SiteOptions,
)
