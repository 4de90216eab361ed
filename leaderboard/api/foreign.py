"""What a user's own training loop gives to `lb.attack`, checked, in the form in which attacks get it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from leakboard.attacks.base import Knowledge
from leakboard.attacks.reconstruction.matching.batch_statistics import NORMS
from leakboard.core.errors import UserError
from leakboard.datasets.base import LabelledImages
from leakboard.federation.party import Message, RoundContext
from leakboard.federation.payload import Parameters, size_in_bytes
from leakboard.federation.recording import Local
from leakboard.federation.settings import SERVER, VICTIM, Public, Training
from leakboard.federation.task import Task
from leakboard.federation.transcript import Observation
from leakboard.federation.view import View

#: tensors by the names of the module's parameters, or in their order
Tensors: TypeAlias = Mapping[str, Tensor] | Sequence[Tensor | None]
#: images (N, C, H, W) and labels (N,)
Records: TypeAlias = LabelledImages | tuple[Tensor, Tensor]
Loss = Literal["ce", "mse"]


@dataclass(frozen=True)
class GivenKnowledge(Knowledge):
    """What an attacker has of a foreign update: the task comes with it, because no plugin builds the network."""

    given: Task = field(kw_only=True)

    @property
    def task(self) -> Task:
        """The given network with its loss and normalisation."""
        return self.given

    @property
    def can_simulate(self) -> bool:
        """No plugin builds the network; what a defense does to a gradient is then told by its hooks."""
        return False


def loss_of(given: object, classes: int, records: int) -> tuple[Loss, float]:
    """The loss, and the factor that turns its gradient into that of our form: a mean over records.

    Our `mse` is 1/2 ||logits - onehot||^2; torch's MSELoss averages over classes too and has no 1/2.
    """
    if given in ("ce", "mse"):
        return ("ce" if given == "ce" else "mse"), 1.0
    plain_ce = type(given) is nn.CrossEntropyLoss and given.weight is None and not given.label_smoothing
    if isinstance(given, nn.CrossEntropyLoss | nn.MSELoss) and (plain_ce or type(given) is nn.MSELoss):
        kind: Loss = "ce" if plain_ce else "mse"
        if given.reduction == "sum":
            return kind, (1.0 if plain_ce else 0.5) / records
        if given.reduction == "mean":
            return kind, 1.0 if plain_ce else 0.5 * classes
    told = f"'{given}'" if isinstance(given, str) else repr(given)[:80]
    raise UserError(
        "`loss` must be 'ce' (cross-entropy), 'mse' (half squared error on one-hot), nn.CrossEntropyLoss without "
        f"weights and smoothing, or nn.MSELoss on one-hot targets; given: {told}."
    )


def is_several(given: Any) -> bool:
    """Whether these are the tensors of several updates: a list of dicts or of lists."""
    return isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], Mapping | Sequence)


def tensors_of(given: Tensors, module: nn.Module, what: str, factor: float) -> Parameters:
    """One tensor per trained parameter, in the module's order, multiplied by a factor; buffers are left out."""
    wanted = {name: tuple(value.shape) for name, value in module.named_parameters()}
    named = _named(given, list(wanted), what)
    ignored = {name for name, _ in module.named_buffers()}
    strangers = [name for name in named if name not in wanted and name not in ignored]
    if strangers:
        raise UserError(f"{what} has a tensor '{strangers[0]}', which is no parameter of the model.")
    found: Parameters = {}
    for name, shape in wanted.items():
        value = named.get(name)
        if not isinstance(value, Tensor):
            raise UserError(
                f"{what} has nothing for the parameter '{name}' {shape}: give one tensor for each trained parameter, "
                "and set `requires_grad` to False on those that were not trained."
            )
        if tuple(value.shape) != shape:
            raise UserError(f"{what} must have '{name}' in shape {shape}; given: {tuple(value.shape)}.")
        if not value.is_floating_point():
            raise UserError(f"{what} must hold floating-point numbers; given: '{name}' of {value.dtype}.")
        plain = value.detach().to("cpu").clone()
        found[name] = plain if factor == 1 else plain * factor
    return found


def _named(given: Tensors, names: list[str], what: str) -> Mapping[str, Tensor | None]:
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UserError(
            f"{what} must be a dict of tensors by the names of the model's parameters, or a list in their order; "
            f"given: {type(given).__name__}."
        )
    if len(given) != len(names):
        raise UserError(f"{what} must have {len(names)} tensors, one per trained parameter; given: {len(given)}.")
    return dict(zip(names, given, strict=True))


def records_of(given: object, what: str) -> LabelledImages:
    """A user's images and labels, as floats in [0, 1] and whole numbers."""
    if isinstance(given, LabelledImages):
        images, labels = given.images, given.labels
    elif isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, Tensor) for part in given):
        images, labels = given
    else:
        raise UserError(f"{what} must be (images, labels), two tensors; given: {type(given).__name__}.")
    if images.ndim != 4 or labels.shape != images.shape[:1] or labels.is_floating_point():
        raise UserError(
            f"{what} must be images (N, C, H, W) and whole-numbered labels (N,); given: {tuple(images.shape)} and "
            f"{labels.dtype} {tuple(labels.shape)}."
        )
    images = images.detach().cpu()
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    if images.numel() and not (float(images.min()) >= 0 and float(images.max()) <= 1):
        raise UserError(
            f"{what} must have images in [0, 1], before normalisation (see `mean` and `std`); given: "
            f"{float(images.min()):.3g} to {float(images.max()):.3g}."
        )
    return LabelledImages(images, labels.detach().cpu().long())


def check_records(given: LabelledImages | None, what: str, shape: tuple[int, int, int], classes: int) -> None:
    """Refuse images of another shape than the update's, and labels that the network does not know."""
    if given is None or not len(given):
        return
    if tuple(given.images.shape[1:]) != shape:
        raise UserError(f"{what} must have images of shape {shape}; given: {tuple(given.images.shape[1:])}.")
    least, most = int(given.labels.min()), int(given.labels.max())
    if least < 0 or most >= classes:
        raise UserError(f"{what} must have labels from 0 to {classes - 1}; given: {least} to {most}.")


def labels_of(given: Any, problems: int, records: int, classes: int) -> tuple[Tensor, ...] | None:
    """The known labels of each problem (records,); None where they are not known."""
    if given is None:
        return None
    try:
        flat = (
            torch.cat([torch.as_tensor(part).flatten() for part in given]) if problems > 1 else torch.as_tensor(given)
        )
    except (TypeError, ValueError, RuntimeError):
        flat = torch.empty(0)
    count = problems * records
    whole = not flat.is_floating_point() and flat.numel() == count
    if not whole or int(flat.min()) < 0 or int(flat.max()) >= classes:
        raise UserError(f"`labels` must be {count} whole numbers from 0 to {classes - 1}; given: {str(given)[:80]}.")
    return tuple(torch.split(flat.detach().cpu().long().flatten(), records))


def normalisation_of(given: object, default: float, channels: int, name: str) -> tuple[float, ...]:
    """One number per channel, from one number, one per channel, or nothing."""
    if given is None:
        return (default,) * channels
    try:
        values = torch.as_tensor(given, dtype=torch.float64).flatten().tolist()
    except (TypeError, ValueError, RuntimeError):
        values = []
    values = values * channels if len(values) == 1 else values
    good = len(values) == channels and all(math.isfinite(v) and (name == "mean" or v > 0) for v in values)
    if not good:
        raise UserError(f"`{name}` must be one number for each of {channels} channels; given: {str(given)[:80]}.")
    return tuple(values)


def statistics_after(module: nn.Module, update: Tensors) -> Parameters:
    """The buffers after training, where an update by names holds their differences."""
    if not isinstance(update, Mapping):
        return {}
    found: Parameters = {}
    for name, value in module.named_buffers():
        moved = update.get(name)
        if moved is not None and moved.shape == value.shape:
            found[name] = value.detach().cpu() - moved.detach().cpu()
    return found


def statistics_of(module: nn.Module, after: Mapping[str, Tensor]) -> Parameters:
    """Batch norm's running statistics among what a client sent; none unless all such layers were in train mode."""
    layers = [(path, layer) for path, layer in module.named_modules() if isinstance(layer, NORMS)]
    tracked = [(path, layer) for path, layer in layers if layer.track_running_stats]
    names = [f"{path}.running_{kind}" for path, _ in tracked for kind in ("mean", "var")]
    if not all(layer.training for _, layer in tracked) or not all(name in after for name in names):
        return {}
    return {name: after[name].detach().cpu().clone() for name in names}


def public_of(
    name: str,
    loss: Loss,
    shape: tuple[int, int, int],
    classes: int,
    records: int,
    precision: str,
    rounds: int,
    local: Local | None,
    factor: float,
) -> Public:
    """The public settings of a federation with one client: what attacks and defenses may ask about.

    `factor` turns a gradient of the user's loss into one of ours; a local rate is divided by it, so the steps stay.
    """
    told: dict[str, Any] = {"loss": loss, "rounds": rounds, "batch_size": records, "clients": 1, "precision": precision}
    if local is not None:
        told |= {"local_steps": local.steps, "local_batches": local.batches}
        told |= {"local_learning_rate": local.learning_rate / factor}
    training = Training.parse(told, "The training")
    unknown = {"defense": "fedsgd", "parameters": {}, "model": name, "model_parameters": {}}
    return Public(
        **unknown,
        shape=shape,
        classes=classes,
        mean=(0.0,) * shape[0],
        std=(1.0,) * shape[0],
        training=training,
        total_rounds=rounds,
        shard_sizes=(records,),
    )


def view_of(
    public: Public, model: Parameters, gradients: Sequence[Parameters], statistics: Sequence[Parameters]
) -> View:
    """What a server holds that sent this model and received these gradients, each with its batch-norm statistics.

    Each gradient is there twice: as a training round, about which membership is asked, and as a probe to reconstruct.
    """
    client, records = (VICTIM,), public.training.batch_size
    contexts = [RoundContext(index, None, "train", client, records) for index in range(len(gradients))]
    contexts += [RoundContext(0, index, "probe", client, records) for index in range(len(gradients))]
    sent = zip(contexts, [*gradients, *gradients], [*statistics, *statistics], strict=True)
    observations = [_observation(context, model, gradient, told) for context, gradient, told in sent]
    if not observations:
        observations = [_observation(RoundContext(0, None, "final", client, records), model, None, {})]
    return View(SERVER, (SERVER,), public, tuple(observations), {SERVER: bytes(32)}, {})


def _observation(
    context: RoundContext, model: Parameters, gradient: Parameters | None, statistics: Parameters
) -> Observation:
    sent: dict[str, Any] = {"model": model}
    messages = [Message("distribute", SERVER, VICTIM, "model", sent, size_in_bytes(sent))]
    if gradient is not None:
        received: dict[str, Any] = {"gradient": gradient, "buffers": statistics}
        messages.append(Message("update", VICTIM, SERVER, "update", received, size_in_bytes(received)))
    return Observation(context, tuple(messages), {}, {})
