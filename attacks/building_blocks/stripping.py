"""How a client that knows model perturbation estimates the additive noise r, and removes it from the received model.

A client receives W_hat (and r^a in V2), runs it on its own images and sees, for record i,

    y_hat_i = y_i + alpha_i r,   alpha_i = sum_j a_hat_ij   (the perturbed inputs of the last layer, which it knows)

Only r (classes,) is still secret: rescaling by positive numbers does not change the function of a ReLU network. There
are three ways to estimate r, all by least squares:

    labelled    y_i is near the one-hot label: r = sum_i alpha_i (y_hat_i - ybar_i) / sum_i alpha_i^2. Training itself
                drives sum_i a_ij (y_i - ybar_i) to 0: exact on the whole training set of a model that has converged
    data-free   the last layer is s_j W_cj + r_c, and weights have no preferred sign: the median of every row
    label-free  one step changes y little: y_hat_i - y_hat'_i = alpha_i r - alpha'_i r' over two consecutive models

In V2 r = gamma r^a with r^a known. So r is projected on r^a (labelled, data-free) or solved for along it (label-free):
one number is estimated instead of one per class. A plain model with the last layer W_hat - r 1^T then computes y.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leakboard.attacks.base import Knowledge
from leakboard.core.errors import Unsupported
from leakboard.core.seeds import derive_seed
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense, Reading
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.perturbation.canonical import canonical_form
from leakboard.defenses.perturbation.client import Expanded, collapse, forward_collapsed
from leakboard.federation.party import RoundContext
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View

Estimate = Literal["labelled", "data-free", "label-free"]


class Diverged(Unsupported):
    """The model holds values that are not finite, so nothing can be estimated."""


#: the number of records that go through the network at once
CHUNK = 256


@dataclass(frozen=True)
class Received:
    """What a client received in one run of the protocol: W_hat with its diagonals, and r^a (classes,) in V2."""

    context: RoundContext
    perturbed: Parameters
    direction: Tensor | None


@dataclass(frozen=True)
class Outputs:
    """y_hat (N, classes) and alpha (N,) of a perturbed model on N records, in float64."""

    logits: Tensor
    alpha: Tensor


def perturbation_of(knowledge: Knowledge) -> ModelPerturbation:
    """The defense if it perturbs the model; otherwise raises `Unsupported`."""
    defense = knowledge.defense
    if not isinstance(defense, ModelPerturbation):
        raise Unsupported(nothing_to_strip(defense))
    return defense


def nothing_to_strip(defense: Defense) -> str:
    """Why a defense cannot be stripped of its perturbation; empty if it perturbs the model."""
    if isinstance(defense, ModelPerturbation):
        return ""
    return f"'{defense.name}' sends clients the model itself: there is nothing to strip, use the plain attack"


def received(observation: Observation) -> Received | None:
    """The model message of an observation, or None if these parties received none."""
    for message in observation.messages:
        if message.kind == "model":
            return Received(observation.context, message.payload["model"], message.payload.get("direction"))
    return None


@torch.no_grad()
def outputs_of(expanded: Expanded, got: Received, images: Tensor, public: Public) -> Outputs:
    """Run the received model on images (N, C, H, W) in [0, 1], in float64."""
    exact = {name: value.double() for name, value in got.perturbed.items()}
    runs = []
    for chunk in torch.split(task_of(public).normalise(images.double()), CHUNK):
        run, _ = forward_collapsed(expanded, exact, chunk)
        runs.append(Outputs(run.logits.detach(), run.alpha.detach()))
    return Outputs(torch.cat([run.logits for run in runs]), torch.cat([run.alpha for run in runs]))


# --- three estimates of r -------------------------------------------------------------------


def labelled(seen: Outputs, labels: Tensor, direction: Tensor | None) -> Tensor:
    """r (classes,) from records with labels (N,); 0 if all units are off, because r then changes no output."""
    targets = nn.functional.one_hot(labels, seen.logits.shape[1]).to(seen.logits)
    along = seen.alpha @ (seen.logits - targets) / seen.alpha.square().sum().clamp(min=1e-300)
    return _projected(along, direction)


def data_free(got: Received, expanded: Expanded) -> Tensor:
    """r (classes,) from the last layer only."""
    return _projected(got.perturbed[f"{expanded.wiring.last.name}.weight"].double().median(dim=1).values, got.direction)


def label_free(seen: Sequence[Outputs], directions: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """r (classes,) of two consecutive models (earlier, later) from the outputs of both on the same N records."""
    first, second = seen
    difference = first.logits - second.logits
    if directions[0] is None or directions[1] is None:
        design = torch.stack([first.alpha, -second.alpha], dim=1)
        solved = torch.linalg.lstsq(design, difference).solution
        return solved[0], solved[1]
    one, other = (direction.double() for direction in directions if direction is not None)
    columns = [torch.outer(first.alpha, one).flatten(), -torch.outer(second.alpha, other).flatten()]
    gammas = torch.linalg.lstsq(torch.stack(columns, dim=1), difference.flatten()[:, None]).solution[:, 0]
    return gammas[0] * one, gammas[1] * other


def _checked(value: Tensor) -> Tensor:
    """The value if it is finite; otherwise raises `Diverged`."""
    if not bool(value.isfinite().all()):
        raise Diverged("the received model, or its output, holds values that are not finite: the training diverged")
    return value


def _projected(r: Tensor, direction: Tensor | None) -> Tensor:
    """r unchanged (V1), or its component along the public r^a (V2)."""
    if direction is None:
        return r
    along = direction.double()
    return (r @ along) / (along @ along) * along


def strip(got: Received, r: Tensor, expanded: Expanded) -> Parameters:
    """The plain network that computes y_hat - alpha r, in float64. If r is right, this is the true model's function."""
    exact = {name: value.double() for name, value in got.perturbed.items()}
    last = f"{expanded.wiring.last.name}.weight"
    exact[last] = exact[last] - r[:, None]
    return collapse(exact, expanded)


# --- what two models reveal about the step between them ----------------------------------------


def update_between(earlier: Parameters, later: Parameters, network: nn.Module) -> Parameters:
    """The step between two models, each known up to a rescaling: the difference of their canonical forms.

    To first order, row i of the first layer moves by the tangential part of its true step, divided by the row's norm.
    The result has the names and shapes of the network, in float64.
    """
    first, second = (canonical_form(model, network) for model in (earlier, later))
    return {name: second[name] - value for name, value in first.items()}


def others_gradient(moved: Tensor, rows: Tensor, own: Tensor, clients: int, rate: float, norms: Tensor) -> Tensor:
    """The mean first-layer gradient (units, inputs) of the other clients after a step of plain SGD, to first order.

    `moved` is the layer's part of `update_between`, `rows` are the earlier canonical rows (of norm 1), and `own` is the
    client's gradient at that canonical model. `norms` (units,) are the norms of the true rows. In the first round they
    are almost public: torch draws n inputs from U(-1/sqrt(n), 1/sqrt(n)), so the norm is about sqrt(1/3). A gradient at
    the canonical model is the true one times the norm, and a true step moves a canonical row by step / norm. Hence

        mean over all = -moved norm^2 / rate,   others = (clients * mean - own) / (clients - 1)

    at the canonical model, without the component along each row, which a rescaling hides.
    """
    moved, rows, own = moved.flatten(1), rows.flatten(1), own.flatten(1)
    whole = -moved * norms.square()[:, None] / rate
    others = (clients * whole - own) / (clients - 1)
    return others - (others * rows).sum(1, keepdim=True) * rows


# --- from a view ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Stripper:
    """Strips the models in one client's view, with one estimate of r that uses up to `samples` of its own records."""

    view: View
    defense: ModelPerturbation
    estimate: Estimate
    samples: int | None

    @property
    def expanded(self) -> Expanded:
        """The clients' network."""
        return self.defense.expanded(self.view.public)

    def records(self) -> LabelledImages:
        """The client's own records, at most `samples` of them (a fixed choice)."""
        held = self.view.holdings[self.view.parties[0]]
        random = torch.Generator().manual_seed(derive_seed("own records", len(held)))
        return held.select(torch.randperm(len(held), generator=random)[: self.samples])

    def r(self, got: Received) -> Tensor:
        """The estimate of r (classes,) of a received model; raises `Diverged` if the model is not finite."""
        return _checked(self._estimated(got))

    def _estimated(self, got: Received) -> Tensor:
        if self.estimate == "data-free":
            return data_free(got, self.expanded)
        own = self.records()
        if self.estimate == "labelled":
            return labelled(self._outputs(got, own), own.labels, got.direction)
        pair = self.neighbours(got)
        found = label_free([self._outputs(item, own) for item in pair], [item.direction for item in pair])
        return found[0] if pair[0] is got else found[1]

    def stripped(self, got: Received) -> Parameters:
        """The plain model without r, in the precision of the training."""
        model = strip(got, self.r(got), self.expanded)
        return {name: value.to(task_of(self.view.public).dtype) for name, value in model.items()}

    def neighbours(self, got: Received) -> tuple[Received, Received]:
        """A received model and the one that is one step before or after it, earlier first.

        A client that takes part in every round receives all models. Among the recorded ones, a probe and the closing
        message show the model one step after the training of their round. Raises `Unsupported` if neither neighbour was
        recorded.
        """
        at = got.context
        if at.kind == "train":
            after = self.of("probe", at.round)
            if after is not None:
                return got, after
        else:
            before = self.of("train", at.round - 1 if at.kind == "final" else at.round)
            if before is not None:
                return before, got
        raise Unsupported(f"this view holds no two consecutive models around round {at.round}")

    def of(self, kind: str, round_index: int) -> Received | None:
        """The model in the first observation of that kind and round; only the first probe of a round counts."""
        observations = self.view.of_kind(kind, round_index)
        return received(observations[0]) if observations else None

    def _outputs(self, got: Received, records: LabelledImages) -> Outputs:
        found = outputs_of(self.expanded, got, records.images, self.view.public)
        return Outputs(_checked(found.logits), _checked(found.alpha))


@dataclass(frozen=True)
class StrippedKnowledge(Knowledge):
    """The client's knowledge, with models read without r, as a client that knows the scheme reads them.

    Shadow models are read in the same way, each with the records of its own client.
    """

    estimate: Estimate = "labelled"
    samples: int | None = None

    def readings(self) -> tuple[Reading, ...]:
        """The honest reading with stripped models. Probes are left out because they show the last model again.

        A model with values that are not finite (a single shadow may diverge) stays unchanged: attacks handle that case.
        """
        stripper = Stripper(self.view, perturbation_of(self), self.estimate, self.samples)
        kept = tuple(o for o in self.view.observations if o.context.kind != "probe")
        found = []
        for observation, reading in zip(
            kept, self.defense.interpret(replace(self.view, observations=kept)), strict=True
        ):
            got = received(observation)
            if got is not None:
                with contextlib.suppress(Diverged):
                    reading = replace(reading, model=stripper.stripped(got))
            found.append(reading)
        return tuple(found)

    def reading_key(self) -> list[Any]:
        """How the models were stripped."""
        return ["stripped", self.estimate, self.samples]
