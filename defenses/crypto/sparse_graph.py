"""Which clients share masks and secrets in secure aggregation with few neighbours (Bell et al. 2020, SecAgg+).

Clients stand on a ring in a random order. Each has the k/2 nearest on either side as neighbours, and t of them open its
secrets. k is the smallest even number for which, with `corrupt` colluders and `missing` dropouts at random positions:

- the honest clients that stay are connected, but for a probability of 2^-41: otherwise sums of parts could be opened;
- more than t - 1 of a client's neighbours collude with probability at most 2^-41 / N (nobody is opened);
- fewer than t of its neighbours stay with probability at most 2^-20 / N (the round is not lost).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

#: the logarithm of the probability that security fails, and of the one that a round is lost
SECURITY, CORRECTNESS = 40, 20


@dataclass(frozen=True)
class Degree:
    """k neighbours, of whom t open a client's secrets."""

    neighbours: int
    threshold: int


@lru_cache(maxsize=64)
def degree(clients: int, corrupt: float, missing: float, *, malicious: bool = False) -> Degree | None:
    """The smallest degree for N clients with these shares of colluders and dropouts; None: only the complete graph.

    `malicious`: a server that lies about who dropped out needs a larger threshold.

    >>> degree(1000, 0.05, 0.05)
    Degree(neighbours=30, threshold=17)
    """
    colluders, gone = math.floor(corrupt * clients), math.floor(missing * clients)
    for neighbours in range(2, clients - 1, 2):
        if _apart(clients, neighbours, colluders + gone) >= 2.0 ** -(SECURITY + 1):
            continue
        corrupted = _hypergeometric(clients, colluders, neighbours)
        above = np.append(np.cumsum(corrupted[:0:-1])[::-1], 0.0)
        most = int(np.argmax(above <= 2.0 ** -(SECURITY + 1) / clients))
        if malicious:
            most = math.ceil((most + neighbours - 1.25) / 2)
        staying = np.cumsum(_hypergeometric(clients, clients - gone, neighbours))
        least = int(np.argmax(staying >= 2.0**-CORRECTNESS / clients))
        if most < least:
            return Degree(neighbours, max(2, most + 1))
    return None


def _hypergeometric(clients: int, chosen: int, neighbours: int) -> NDArray[np.float64]:
    """P[x of the k neighbours are among the chosen], x = 0 to k, for k of N clients at random."""
    x = np.arange(neighbours + 1)
    possible = (x <= chosen) & (neighbours - x <= clients - chosen)
    y = np.where(possible, x, max(0, neighbours - clients + chosen))  # any possible number: it is overwritten
    log = _log_choose(chosen, y) + _log_choose(clients - chosen, neighbours - y) - _log_choose(clients, neighbours)
    return np.where(possible, np.exp(log), 0.0)


def _log_choose(count: int, chosen: NDArray[np.int64] | int) -> NDArray[np.float64]:
    return np.asarray(gammaln(count + 1) - gammaln(np.add(chosen, 1)) - gammaln(count - np.asarray(chosen) + 1))


def _apart(clients: int, neighbours: int, bad: int) -> float:
    """A bound on the probability that the graph falls apart without the `bad` clients.

    N (N - k - 1) / 2 * bad! (N - k)! / (N! (bad - k)!)
    """
    if bad < neighbours:
        return 0.0
    log = math.lgamma(bad + 1) + math.lgamma(clients - neighbours + 1)
    log -= math.lgamma(clients + 1) + math.lgamma(bad - neighbours + 1)
    return clients * (clients - neighbours - 1) / 2 * math.exp(log)


def ring_neighbours(order: Sequence[str], place: int, neighbours: int) -> list[str]:
    """The k nearest of the name at a place on the ring; all others where there are no more than k.

    >>> ring_neighbours("abcde", 0, 2), ring_neighbours("abc", 0, 2)
    (['e', 'b'], ['b', 'c'])
    """
    count = len(order)
    if neighbours >= count - 1:
        return [*order[:place], *order[place + 1 :]]
    half = neighbours // 2
    return [order[(place + step) % count] for step in (*range(-half, 0), *range(1, half + 1))]
