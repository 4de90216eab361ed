"""The neighbours of each client: the complete graph, or a random n-out graph (Bollobas 2011)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakboard.core.randomness import Stream
from leakboard.defenses.noise.calibration import Edge


def choose_neighbours(stream: Stream, own: int, others: Sequence[int], count: int) -> list[int]:
    """A client's n random choices among the others."""
    rest = [other for other in others if other != own]
    return sorted(rest[position] for position in stream.permutation(len(rest))[:count])


def union_edges(choices: Mapping[int, Sequence[int]]) -> list[Edge]:
    """The undirected union: an edge if either client chose the other.

    >>> union_edges({0: [1], 1: [2], 2: [1]})
    [(0, 1), (1, 2)]
    """
    return sorted({(min(a, b), max(a, b)) for a, chosen in choices.items() for b in chosen})


def complete_edges(clients: Sequence[int]) -> list[Edge]:
    """All pairs of clients."""
    return [(a, b) for i, a in enumerate(sorted(clients)) for b in sorted(clients)[i + 1 :]]
