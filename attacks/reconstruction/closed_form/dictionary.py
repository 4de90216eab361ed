"""Separating large batches by sparse dictionary learning: the number of starts does not grow as 2^B."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from leakboard.attacks.reconstruction.closed_form.disaggregation import (
    COARSE,
    DEPENDENT,
    Factors,
    Subspace,
    sparsest,
)

#: starts that are solved together
CHUNK = 128
#: steps of one solution, and the factor by which its smoothing shrinks in each step
STEPS, SHRINK = 60, 0.8
#: the first smoothing, in root mean squares of a column, and the last, in tolerances
SMOOTH, FINEST = 0.3, 0.1
#: exponents of the sum of |u . q|^p, in turn: records that one misses may be found by the other
POWERS = (1.0, 0.7)
#: a column with a smaller share of zeros is not taken for known
SPARSE = 0.4
#: so many equal ratios of two columns, up to this relative difference, are no chance
COINCIDE, ALIKE = 8, 1e-4


def learned(
    matrix: Tensor, records: int, starts: int, random: torch.Generator, stop: Callable[[], bool] = lambda: False
) -> Iterator[Factors]:
    """Successively better guesses at G = S X, S sparse, for a matrix that `has_rank`.

    Every column of S is U q for the left singular vectors U (n, B) and some q. Sparse columns are local minima of
    sum_i |u_i . q|^p over directions q, p <= 1, and many starts find them (`sparse_directions`). A start is a row of U.
    Once some columns are known, starts are made orthogonal to all of them (even passes) or to a random half of them
    (odd passes), so that other columns are found next. Two records that are alike give a column that mixes them; sums
    of two columns (`sparser_pairs`) take it apart.
    """
    subspace = Subspace.of(matrix, records)
    alive = subspace.alive
    if records == 1:
        yield Factors(subspace.basis, subspace.within)
    if records == 1 or len(alive) < records:
        return
    chosen, count = alive.new_empty(0, records), -1
    for number in range(-(-starts // CHUNK)):
        if stop():
            return
        rows = alive[torch.randint(len(alive), (CHUNK,), generator=random)]
        sparse = ((chosen @ alive.T).abs() < subspace.tolerance).sum(1) > SPARSE * len(alive)
        known = chosen[sparse][: records - 1]  # others may mix records
        if number % 2:
            known = chosen[torch.rand(len(chosen), generator=random) < 0.5]
        if len(known):
            span = torch.linalg.qr(known.T).Q
            rows = rows - rows @ span @ span.T
        power = POWERS[number // 2 % len(POWERS)]
        found = sparse_directions(alive, torch.nn.functional.normalize(rows, dim=1), power, FINEST * subspace.tolerance)
        pool = torch.cat([chosen, sparsest(found, alive, COARSE * subspace.tolerance)])
        pool = torch.cat([pool, sparser_pairs(pool, alive)])
        chosen = sparsest(pool, alive, subspace.tolerance)
        zeros = subspace.zeros(chosen)
        if len(chosen) == records and zeros > count:
            count = zeros
            yield subspace.factors(chosen)


def sparser_pairs(vectors: Tensor, basis: Tensor) -> Tensor:
    """Unit vectors q_a + t q_b of pairs among (K, B) for which the columns have the most common t = -u q_a / u q_b.

    A t that `COINCIDE` rows of the basis (n, B) share makes that many new zeros; for unrelated columns none is shared.
    """
    if len(basis) <= COINCIDE:  # so few rows share nothing
        return vectors.new_empty(0, basis.shape[1])
    columns = vectors @ basis.T  # (K, n)
    found = [vectors.new_empty(0, basis.shape[1])]
    for vector, column in zip(vectors, columns, strict=True):
        ratios = -column / torch.where(columns.abs() < 1e-9, torch.nan, columns)
        ratios = torch.where((column.abs() < 1e-9) | ratios.isnan(), torch.inf, ratios).sort(1).values
        gaps = (ratios[:, COINCIDE:] / ratios[:, :-COINCIDE] - 1).abs()
        gap, place = torch.where(gaps.isfinite(), gaps, torch.inf).min(1)
        shared = ratios.gather(1, place[:, None] + COINCIDE // 2)
        found.append((vector + shared * vectors)[gap < ALIKE])
    sums = torch.cat(found)
    return torch.nn.functional.normalize(sums[sums.norm(dim=1) > DEPENDENT], dim=1)  # a vector minus itself is none


def sparse_directions(basis: Tensor, starts: Tensor, power: float, finest: float) -> Tensor:
    """Unit vectors q (N, B) near local minima of sum_i |u_i . q|^power, from starts (N, B), for rows u_i (n, B).

    Iteratively reweighted least squares: with weights w_i = ((u_i . q)^2 + e^2)^(power / 2 - 1) the next q minimises
    sum_i w_i (u_i . q')^2 among all q' with q . q' = 1. The smoothing e shrinks geometrically (Daubechies et al. 2010).
    """
    found, smoothing = starts, SMOOTH / len(basis) ** 0.5
    ridge = 1e-13 * torch.eye(basis.shape[1], dtype=basis.dtype)
    for _ in range(STEPS):
        weights = ((found @ basis.T).square() + smoothing**2) ** (power / 2 - 1)
        weights = weights / weights.amax(1, keepdim=True)
        curvature = (basis.T * weights[:, None]) @ basis + ridge
        found = torch.nn.functional.normalize(torch.linalg.solve(curvature, found), dim=1)
        smoothing = max(finest, smoothing * SHRINK)
    return found[found.isfinite().all(1)]
