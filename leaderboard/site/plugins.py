"""What the site says of a defense or an attack: what it is, what was found on every board, its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from leakboard.core import registry
from leakboard.core.glossary import explained
from leakboard.core.names import file_part
from leakboard.core.seeds import natural_order
from leakboard.leaderboard.page.cards import Card
from leakboard.leaderboard.ranking.verdicts import Finding
from leakboard.leaderboard.records.record import PluginSpec, Record
from leakboard.leaderboard.site.boards import SiteBoard, with_records
from leakboard.leaderboard.site.settings import Setting, setting_of
from leakboard.leaderboard.tables.all_cells import cell_tables
from leakboard.leaderboard.tables.table import Table

Kind = Literal["defense", "attack"]
FOLDERS: Mapping[Kind, str] = {"defense": "defenses", "attack": "attacks"}


class Found(NamedTuple):
    """One verdict: which board and defense, and what was asked and found."""

    board: SiteBoard
    card: Card
    finding: Finding
    #: the record behind it, from the top of the site; empty where there is none
    link: str
    #: the page of the worst attack on the page of a defense, and of the defense on that of an attack
    other: str


@dataclass(frozen=True)
class PluginPage:
    """The page of a defense or an attack. `entry` is what the plugin says of itself; empty if it is not here."""

    kind: Kind
    name: str
    entry: Mapping[str, Any]
    found: tuple[Found, ...]
    #: the cards of a defense, with their boards
    cards: tuple[tuple[SiteBoard, Card], ...]
    #: of an attack: every cell, by board
    cells: tuple[tuple[SiteBoard, tuple[Table, ...]], ...]
    boards: tuple[SiteBoard, ...]

    @property
    def page(self) -> str:
        """The path of its page in the site."""
        return page_of(self.kind, self.name)

    @property
    def settings(self) -> list[Setting]:
        """Its parameters with defaults and ranges."""
        return [setting_of(name, schema) for name, schema in self.entry.get("parameters", {}).items()]

    @property
    def terms(self) -> list[str]:
        """What the symbols mean that it uses to say what it is."""
        return explained(" ".join((self.name, str(self.entry.get("summary", "")), str(self.entry.get("claim", "")))))

    def count(self, verdict: str) -> int:
        """How many of its verdicts are this one."""
        return sum(1 for one in self.found if one.finding.verdict == verdict)


def page_of(kind: Kind, name: str) -> str:
    """The path of a plugin's page.

    >>> page_of("defense", "mp-dp+")
    'defenses/mp-dp+.html'
    """
    return f"{FOLDERS[kind]}/{file_part(name)}.html"


def plugin_of(kind: Kind, record: Record) -> PluginSpec:
    """The defense or the attack of a record."""
    return record.cell.training.defense if kind == "defense" else record.cell.attack


def plugin_pages(kind: Kind, boards: Sequence[SiteBoard]) -> list[PluginPage]:
    """One page for each plugin that is here, and for each that a board names."""
    named = {
        registry.canonical_name(kind, plugin_of(kind, record).name) for board in boards for record in board.records
    }
    return [_plugin_page(kind, name, boards) for name in natural_order({*registry.entries(kind), *named})]


def _plugin_page(kind: Kind, name: str, boards: Sequence[SiteBoard]) -> PluginPage:
    def own(record: Record) -> bool:
        return registry.canonical_name(kind, plugin_of(kind, record).name) == name

    mine = with_records(boards, own)
    labels = {board.name: {plugin_of(kind, record).label for record in records} for board, records in mine}
    found = [one for board, _ in mine for one in _verdicts(kind, board) if _label(kind, one) in labels[board.name]]
    here = tuple(board for board, _ in mine)
    shown = tuple((b, c) for b in here for c in b.cards if c.name == name) if kind == "defense" else ()
    cells = tuple((b, tuple(cell_tables(records))) for b, records in mine) if kind == "attack" else ()
    return PluginPage(kind, name, registry.entries(kind).get(name, {}), tuple(found), shown, cells, here)


def _verdicts(kind: Kind, board: SiteBoard) -> Iterator[Found]:
    for card in board.cards:
        for finding in card.findings:
            other = page_of("defense", card.name) if kind == "attack" else _attack_page(board, finding)
            link = board.link(finding.attack.link) if finding.attack is not None else ""
            yield Found(board, card, finding, link, other)


def _attack_page(board: SiteBoard, finding: Finding) -> str:
    """The page of the worst attack; empty if there is none."""
    record = board.by_key.get(finding.attack.link) if finding.attack is not None else None
    return "" if record is None else page_of("attack", registry.canonical_name("attack", record.cell.attack.name))


def _label(kind: Kind, one: Found) -> str:
    """The label of the defense, or of the worst attack, that a verdict is about."""
    if kind == "defense":
        return one.card.label
    return "" if one.finding.attack is None else str(one.finding.attack.value)
