"""Separating a batch's gradient of a linear layer into its records, if a ReLU made one factor sparse.

The gradient of a linear layer, or its transpose, is a sum over the batch's records, G = S X, with one column of S
(n, B) and one row of X (B, d) per record. A ReLU leaves zeros in the columns of S. S is the backward signal of the
first layer (Dimitrov et al., SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024), or the
input of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: row sets that are tried together
CHUNK = 4096
#: a singular value this many times larger than the next one is signal, and the next one is rounding
GAP = 30.0
#: rounding turns a zero into at most this many times its standard size
SPREAD = 30.0
#: how much less exact a candidate may be before it is refined
COARSE = 10.0
#: a unit vector closer than this to a span counts as part of it
DEPENDENT = 1e-3


@dataclass(frozen=True)
class Factors:
    """G = sparse @ rows: (n, B) with many zeros, and (B, d). The scale and the sign of each record are arbitrary."""

    sparse: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Subspace:
    """G = basis @ within, (n, B) orthonormal and (B, d); values of a column below the tolerance count as zeros."""

    basis: Tensor
    within: Tensor
    tolerance: float

    @staticmethod
    def of(matrix: Tensor, records: int) -> Subspace:
        """From the singular vectors of a matrix that `has_rank`."""
        left, sizes, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        basis, within = left[:, :records], sizes[:records, None] * right[:records]
        rounding = _rounding(sizes, records) / float(sizes[records - 1])
        return Subspace(basis, within, SPREAD * rounding / len(basis) ** 0.5)

    @property
    def alive(self) -> Tensor:
        """The rows of the basis without those of no record, which are zero for every q."""
        return self.basis[self.basis.norm(dim=1) > self.tolerance]

    def zeros(self, chosen: Tensor) -> int:
        """How many zeros the columns U q of these vectors (K, B) have."""
        return int(((chosen @ self.alive.T).abs() < self.tolerance).sum())

    def factors(self, chosen: Tensor) -> Factors:
        """The factors of B independent vectors (B, B), one row per record."""
        sparse = self.basis @ chosen.T
        sparse[sparse.abs() < self.tolerance] = 0
        return Factors(sparse, torch.linalg.solve(chosen.T, self.within))


def has_rank(matrix: Tensor, records: int) -> bool:
    """Whether exactly `records` singular values exceed the rounding: no noise, no two identical records."""
    if not bool(matrix.isfinite().all()):
        return False
    sizes = torch.linalg.svdvals(matrix.double())
    if records > len(sizes) or not float(sizes[0]) > 0:
        return False
    return float(sizes[records - 1]) > GAP * _rounding(sizes, records)


def factorisations(
    matrix: Tensor, records: int, samples: int, generator: torch.Generator, stop: Callable[[], bool] = lambda: False
) -> Iterator[Factors]:
    """Successively better guesses at G = S X for a matrix that `has_rank`; the caller stops at a consistent one.

    With the singular vectors G = U V (U (n, B) orthonormal), every column of S is U q for some q. B - 1 rows of U at
    zeros of column b have the null vector q_b. So the search draws B - 1 rows, takes their null vector q, keeps it if
    U q has more zeros than the draw implies, and solves for q again from all of its zeros. The B sparsest independent
    vectors give S. If half of a record's entries are zero, one draw in 2^(B - 1) finds it.
    """
    subspace = Subspace.of(matrix, records)
    if records == 1:
        yield Factors(subspace.basis, subspace.within)
        return
    alive = subspace.alive
    if len(alive) < records:
        return
    chosen, count = alive.new_empty(0, records), -1
    for _ in range(-(-samples // CHUNK)):
        if stop():
            return
        # the sparsest independent set of a union is among the sparsest independent sets of its parts (a matroid)
        # (elimination loses digits, so the first pass is coarse; each vector is then refined from all of its zeros)
        pool = torch.cat([chosen, sparsest(_null_vectors(alive, generator), alive, COARSE * subspace.tolerance)])
        chosen = sparsest(pool, alive, subspace.tolerance)
        zeros = subspace.zeros(chosen)
        if len(chosen) < records or zeros == count:
            continue
        count = zeros
        yield subspace.factors(chosen)


def oriented(
    factors: Factors, weight: Tensor, bias: Tensor | None, bias_gradient: Tensor | None
) -> tuple[Factors, float]:
    """Factors of a first layer's gradient with inputs of length one (without a bias) or of true size.

    If the backward signal is not zero, the neuron is active: W x + b > 0. That fixes the sign and checks the
    factors: the second value is the smallest share of a record's active neurons that agree.
    """
    sparse, rows = factors.sparse, factors.rows
    if bias_gradient is not None:
        shares = torch.linalg.lstsq(sparse, bias_gradient[:, None]).solution[:, 0]
        scale = torch.where(shares.abs() < 1e-12, 1.0, shares)
    else:
        scale = rows.norm(dim=1).clamp(min=1e-300)
    inputs, signal = rows / scale[:, None], sparse * scale
    active = signal.abs() > 1e-6 * signal.abs().amax(0)
    pushed = inputs @ weight.T + (bias if bias is not None else 0)
    agreeing = ((pushed > 0).T & active).sum(0) / active.sum(0).clamp(min=1)
    if bias_gradient is None:
        sign = torch.where(agreeing < 0.5, -1.0, 1.0).double()
        inputs, signal = inputs * sign[:, None], signal * sign
        agreeing = torch.maximum(agreeing, 1 - agreeing)
    return Factors(signal, inputs), float(agreeing.min())


def _rounding(sizes: Tensor, records: int) -> float:
    """The size of a singular value that is only rounding: the next one, but at least that of float32."""
    float32 = float(sizes[0]) * 1e-8
    return max(float(sizes[records]), float32) if records < len(sizes) else 10 * float32


def _null_vectors(basis: Tensor, generator: torch.Generator) -> Tensor:
    """Unit vectors (N, B), each orthogonal to B - 1 random rows of the basis (n, B)."""
    count, records = basis.shape
    rows = torch.rand(CHUNK, count, generator=generator).topk(records - 1, dim=1).indices
    picked = basis[rows]  # (chunk, B - 1, B)
    # by elimination, with last entry 1; singular sets give infinities and are dropped
    head, info = torch.linalg.solve_ex(picked[..., :-1], -picked[..., -1])
    vectors = torch.cat([head, torch.ones(CHUNK, 1, dtype=basis.dtype)], dim=1)
    vectors = vectors[(info == 0) & vectors.isfinite().all(1)]
    return torch.nn.functional.normalize(vectors, dim=1)


def sparsest(vectors: Tensor, basis: Tensor, tolerance: float) -> Tensor:
    """The vectors (K, B) among (N, B) with the most zeros, greedily, each outside the span of the earlier ones."""
    records = basis.shape[1]
    zeros = ((vectors @ basis.T).abs() < tolerance).sum(1)
    vectors, zeros = vectors[zeros > records], zeros[zeros > records]  # any vector has B - 1 zeros
    chosen = span = vectors.new_empty(0, records)
    while len(vectors) and len(chosen) < records:
        best = zeros.argmax()
        refined = _null(basis[(basis @ vectors[best]).abs() < tolerance])
        rest = refined - refined @ span.T @ span
        if float(rest.norm()) > DEPENDENT:
            chosen = torch.cat([chosen, refined[None]])
            span = torch.cat([span, (rest / rest.norm())[None]])
        outside = (vectors - vectors @ span.T @ span).norm(dim=1) > DEPENDENT
        outside[best] = False
        vectors, zeros = vectors[outside], zeros[outside]
    return chosen


def _null(rows: Tensor) -> Tensor:
    """The unit vector that is closest to being orthogonal to all rows."""
    vector: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, 0]
    return vector
