"""What a client sees of a step through two perturbations, and each record's own part of it in the same coordinates.

Under model perturbation a client knows the models before and after a step up to r and a positive rescaling of hidden
units. In other words, it knows their canonical forms C (`defenses.perturbation.canonical`,
`building_blocks.stripping`). The true weights are

    W_ij = C_ij n_i / n_j       (n_i > 0 is the scale of unit i; 1 for inputs and outputs)

With G the gradient at C, the true gradient is g, and a small step of rate eta moves the canonical form by

    C' - C = -eta J(g),    g_ij = G_ij n_j / n_i,    J: the derivative of the canonical form at W, a linear map.

A wrong r adds a multiple of one known row u to each row of C's last layer. Orthogonal to u and u' that layer is
therefore seen exactly too (P below; the other layers stay unchanged). One number per hidden unit and r remain secret.
Both are fitted, with the gradient of the client's records in the role of the gradient of all records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp, vjp

from leakboard.attacks.building_blocks.stripping import Received, outputs_of, strip, update_between
from leakboard.attacks.membership.building_blocks.batch import Loss
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.defenses.perturbation.client import Expanded
from leakboard.defenses.perturbation.wiring import Wiring
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import Task, task_of

#: squared norm of a row of n weights as torch draws them, U(-1/sqrt(n), 1/sqrt(n)): n values of variance 1 / (3 n)
DRAWN = 1 / 3
#: steps of L-BFGS; the fits of digits and convnet end after 20 to 60
ITERATIONS = 100


@dataclass(frozen=True)
class SeenStep:
    """A step as a client sees it: `values` = P(-(C' - C) / eta), in the network's shapes.

    `row` (features,) is u of the model before, `basis` (features, 2) an orthonormal basis of u and u'.
    """

    values: Parameters
    row: Tensor
    basis: Tensor
    expanded: Expanded

    @property
    def last(self) -> str:
        """The name of the last layer's weight."""
        return f"{self.expanded.wiring.last.name}.weight"

    def cleaned(self, step: Parameters) -> Parameters:
        """P: the step without everything that r can have contributed, for any r. Linear, symmetric."""
        return {**step, self.last: step[self.last] - (step[self.last] @ self.basis) @ self.basis.T}

    def form(self, model: Parameters) -> Parameters:
        """The canonical form of a model."""
        return canonical_form(model, self.expanded.plain)


def seen_step(before: Received, after: Received, expanded: Expanded, public: Public) -> SeenStep:
    """The step between two received models without the public weight decay: P(-(C' - C) / eta - decay J(W))."""
    last = f"{expanded.wiring.last.name}.weight"
    r = torch.zeros(public.classes, dtype=torch.float64)
    plain = [strip(got, r, expanded) for got in (before, after)]
    forms = [canonical_form(model, expanded.plain) for model in plain]
    moved = [canonical_form(strip(got, r - 1, expanded), expanded.plain) for got in (before, after)]
    rows = [one[last][0] - zero[last][0] for zero, one in zip(forms, moved, strict=True)]
    training = public.training
    # J(W) is the same for all models of one canonical form: W (1 + e) and C (1 + e) are rescalings of each other
    decay = jvp(lambda m: canonical_form(m, expanded.plain), (forms[0],), (forms[0],))[1]
    step = update_between(plain[0], plain[1], expanded.plain)
    values = {n: -v / training.learning_rate - training.weight_decay * decay[n] for n, v in step.items()}
    seen = SeenStep(values, rows[0], torch.linalg.qr(torch.stack(rows, dim=1))[0], expanded)
    return SeenStep(seen.cleaned(values), seen.row, seen.basis, expanded)


# --- the scales of hidden units -----------------------------------------------------------------


def first_scales(wiring: Wiring) -> list[Tensor]:
    """n (channels,) of each activation at torch's initialisation: n_i^2 = 1/3 of the mean n_j^2, summed over feeds."""
    found: list[Tensor] = []
    for relu, channels in enumerate(wiring.channels):
        sources = [weight.source for weight in wiring.weights if weight.target == relu]
        squares = [DRAWN * (1.0 if source is None else float(found[source].square().mean())) for source in sources]
        found.append(torch.full((channels,), math.sqrt(sum(squares)), dtype=torch.float64))
    return tied(found, wiring)


def tied(scales: list[Tensor], wiring: Wiring) -> list[Tensor]:
    """The same scales, but units behind an identity shortcut have the scale of its source, as in canonical forms."""
    found = list(scales)
    for skip in sorted(wiring.skips, key=lambda skip: skip.target):
        found[skip.target] = found[skip.source]
    return found


def ratios(form: Parameters, wiring: Wiring, scales: list[Tensor]) -> Parameters:
    """n_i / n_j, in shapes that broadcast to those of weights and biases."""
    found: Parameters = {}
    for weight in wiring.weights:
        value = form[f"{weight.name}.weight"]
        rows = torch.ones(len(value), dtype=torch.float64) if weight.target is None else scales[weight.target]
        inputs = torch.ones(value.shape[1], dtype=torch.float64)
        columns = inputs if weight.source is None else scales[weight.source].repeat_interleave(weight.repeat)
        found[f"{weight.name}.weight"] = (rows[:, None] / columns).view(*value.shape[:2], *([1] * (value.ndim - 2)))
        if weight.has_bias:
            found[f"{weight.name}.bias"] = rows
    return found


def drawn_model(form: Parameters, wiring: Wiring) -> Parameters:
    """The model of this canonical form with the scales of torch's initialisation."""
    ratio = ratios(form, wiring, first_scales(wiring))
    return {name: value * ratio[name] for name, value in form.items()}


# --- the gradient of the client's records, for any r ------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """G of a mean over records at a canonical form, as a function of the error of r.

    Half squared error is quadratic in r and has no terms that mix classes. So with errors d_k along fixed directions
    G(d) = G + sum_k (d_k linear_k + d_k^2 square_k), exactly. `shifts` (K, classes, features) is what d_k = 1 adds to
    the form's last layer.
    """

    form: Parameters
    gradient: Parameters
    linear: list[Parameters]
    square: list[Parameters]
    shifts: Tensor

    def at(self, errors: Tensor, last: str) -> tuple[Parameters, Parameters]:
        """The canonical form and G for errors d (K,)."""
        form = {**self.form, last: self.form[last] + torch.einsum("k,kcf->cf", errors, self.shifts)}
        found = dict(self.gradient)
        for d, linear, square in zip(errors, self.linear, self.square, strict=True):
            found = {name: value + d * linear[name] + d * d * square[name] for name, value in found.items()}
        return form, found


def reference(
    seen: SeenStep, before: Received, r: Tensor, public: Public, records: LabelledImages, weights: Tensor
) -> Reference:
    """The mean gradient of records with weights (N,) (clipping), around the model stripped of r (classes,).

    In V2 r can be wrong only along r^a, in V1 in every class. d = 1 changes outputs by about 1.
    """
    last, task = seen.last, task_of(public)
    form = seen.form(strip(before, r, seen.expanded))
    images = records.images.double()
    alpha = outputs_of(seen.expanded, before, images, public).alpha
    unit = 1 / float(alpha.square().mean().sqrt().clamp(min=1e-12))
    directions = torch.eye(public.classes) if before.direction is None else before.direction[None]
    units = unit * directions.double() / directions.double().norm(dim=1, keepdim=True)
    shifts = torch.stack([torch.outer(direction, seen.row) for direction in units])

    def gradient(shift: Tensor | float) -> Parameters:
        return task.gradient({**form, last: form[last] + shift}, images, records.labels, weights)[0]

    middle, pairs = gradient(0.0), [(gradient(shift), gradient(-shift)) for shift in shifts]
    linear = [{n: (up[n] - down[n]) / 2 for n in middle} for up, down in pairs]
    square = [{n: (up[n] + down[n]) / 2 - middle[n] for n in middle} for up, down in pairs]
    return Reference(form, middle, linear, square, shifts)


# --- both together ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A model with fitted scales (and r, if requested), and the share of the seen step that it does not explain."""

    model: Parameters
    misfit: float


def fitted(seen: SeenStep, known: Reference, pull: float, *, free_r: bool) -> Fit:
    """The model whose visible step along the reference gradient fits the observed step best.

        min over n, k > 0, d of   mean over layers ||seen - k P J(G(d) n_j / n_i)||^2 / ||seen||^2
                                  + pull sum over activations mean (log n / n0)^2

    The solver is L-BFGS on logarithms; n0 is from torch's initialisation. k is needed because momentum, and models that
    fit their members, make a step longer or shorter than the reference. Without `free_r`, d stays 0.
    """
    wiring, network = seen.expanded.wiring, seen.expanded.plain
    start = first_scales(wiring)
    logs = [torch.zeros_like(value, requires_grad=True) for value in start]
    size = torch.zeros((), dtype=torch.float64, requires_grad=True)
    errors = torch.zeros(len(known.shifts), dtype=torch.float64, requires_grad=True)

    def model_and_misfit() -> tuple[Parameters, Tensor]:
        form, gradient = known.at(errors, seen.last)
        scales = [value * log.exp() for value, log in zip(start, logs, strict=True)]
        ratio = ratios(form, wiring, tied(scales, wiring))
        model = {name: value * ratio[name] for name, value in form.items()}
        true = {name: gradient[name] / ratio[name] for name in form}
        step = seen.cleaned(jvp(lambda m: canonical_form(m, network), (model,), (true,))[1])
        shares = [
            (value - size.exp() * step[name]).square().sum() / value.square().sum().clamp(min=1e-300)
            for name, value in seen.values.items()
        ]
        return model, torch.stack(shares).mean()

    free = [*logs, size, *([errors] if free_r else [])]
    optimiser = torch.optim.LBFGS(free, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = model_and_misfit()[1] + pull * torch.stack([log.square().mean() for log in logs]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    model, misfit = model_and_misfit()
    return Fit({name: value.detach() for name, value in model.items()}, float(misfit.detach()))


def visible_loss(task: Task, model: Parameters, seen: SeenStep) -> Loss:
    """A record's loss as a function of x, in the seen step's shapes. Its gradient at x = 0 is P J(g), g the record's.

    The gradient of loss(W + (P J)^T x) with respect to x is P J g, and P is symmetric.
    """

    def loss(x: Parameters, image: Tensor, target: Tensor) -> Tensor:
        along: Callable[..., tuple[Parameters]] = vjp(seen.form, model)[1]
        (change,) = along(seen.cleaned(x))
        return task.loss(task.logits({name: value + change[name] for name, value in model.items()}, image), target)

    return loss
