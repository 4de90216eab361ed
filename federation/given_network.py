"""A torch module of a user's own as a learning task, for updates from training loops that are not ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakboard.core.errors import Unsupported, UserError
from leakboard.federation.payload import Parameters
from leakboard.federation.settings import Public
from leakboard.federation.task import Task

#: layers that draw at random in train mode
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class GivenTask(Task):
    """The task of a given module, which is copied (`copied`). Its layers keep the modes that they have.

    "Train mode" of this task is the state in which the module was given: batch norm in eval mode stays in eval mode.
    """

    def __init__(self, module: nn.Module, public: Public) -> None:
        self._module = module
        super().__init__(public)
        keep_modes(module)
        if not self._runs(self.arranged):  # a forward pass with `view` works only in the usual layout
            self.arranged = torch.Tensor.contiguous

    def _built(self) -> nn.Module:
        return self._module

    def initial(self, generator_seed: int) -> Parameters:
        """A given module cannot be initialised again: nobody knows how that was done."""
        raise Unsupported("a given module cannot be trained anew from its first weights")

    def _runs(self, arranged: Callable[[Tensor], Tensor]) -> bool:
        """Whether forward and backward passes work in a memory layout."""
        images = arranged(torch.full((2, *self.public.shape), 0.5, dtype=self.dtype))
        model = {n: arranged(v).requires_grad_() for n, v in parameters_of(self._module).items()}
        try:
            loss = self.logits({**model, **buffers_of(self._module)}, images).sum()
            torch.autograd.grad(loss, list(model.values()), allow_unused=True)
        except RuntimeError:
            return False
        return True


def copied(module: object) -> nn.Module:
    """A copy of a user's module on the CPU. Parameters that are not trained become buffers: they have no gradient."""
    if not isinstance(module, nn.Module):
        raise UserError(f"`model` must be a torch module (nn.Module); given: {type(module).__name__}.")
    try:
        found = copy.deepcopy(module).to("cpu")
    except Exception as error:  # a module may hold anything
        raise UserError(f"The model cannot be copied: {type(error).__name__}: {_line(error)}.") from error
    for layer in found.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            if not value.requires_grad:
                delattr(layer, name)
                layer.register_buffer(name, value.detach())
            else:
                value.grad = None
    names = [name for name, _ in found.named_parameters()]
    if not names:
        raise UserError("The model has no parameter that is trained (`requires_grad`): there is no gradient to attack.")
    kinds = {value.dtype for value in found.parameters()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        given = ", ".join(sorted(str(kind) for kind in kinds))
        raise UserError(f"The model's parameters must be all float32 or all float64; given: {given}.")
    return found


def parameters_of(module: nn.Module) -> Parameters:
    """The trained parameters by name, detached."""
    return {name: value.detach() for name, value in module.named_parameters()}


def buffers_of(module: nn.Module) -> Parameters:
    """Copies of the buffers by name: batch norm writes into them."""
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def keep_modes(module: nn.Module) -> None:
    """Let `train()` put the module back into the modes that its layers have now; `eval()` works as ever."""
    given = {layer: layer.training for layer in module.modules()}

    def train(mode: bool = True) -> nn.Module:
        for layer, training in given.items():
            layer.training = training and mode
        return module

    setattr(module, "train", train)  # noqa: B010  (an attribute hides the method, which mypy would not let us assign)


def refuse_randomness(module: nn.Module) -> None:
    """Refuse dropout in train mode: an attack cannot repeat its draws."""
    random = [n for n, layer in module.named_modules() if isinstance(layer, DROPOUTS) and layer.training and layer.p]
    if random:
        raise UserError(
            f"The model has dropout in train mode ('{random[0]}'): its draws cannot be repeated; attack an update of a "
            "client that trained without dropout, and call eval() on these layers."
        )


def classes_of(module: nn.Module, shape: tuple[int, int, int], records: int) -> int:
    """The number of classes of a module for images of a shape (C, H, W); one sentence where it cannot be attacked.

    The module is run on `records` random images, in the modes that it has, twice with different random numbers.
    """
    dtype = next(module.parameters()).dtype
    images = torch.rand(records, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    outputs = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            outputs.append(_output(module, images))
    if not torch.equal(*outputs):
        raise UserError("The model draws at random when it is run: its draws cannot be repeated by an attack.")
    return int(outputs[0].shape[1])


def _output(module: nn.Module, images: Tensor) -> Tensor:
    wanted = f"logits ({len(images)}, classes) for images {tuple(images.shape)}"
    try:
        found: Any = functional_call(module, {**parameters_of(module), **buffers_of(module)}, (images,))
    except Exception as error:  # a module may do anything
        raise UserError(
            f"The model must give {wanted}; it ended with {type(error).__name__}: {_line(error)}."
        ) from None
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(images) or found.shape[1] < 2:
        given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"The model must give {wanted}, at least two classes; given: {given}.")
    return found


def refuse_undifferentiable(task: GivenTask, model: Parameters, records: int) -> None:
    """Refuse a network through which gradient matching cannot see the image: it needs a second derivative.

    The gradient of random images is taken, then the slope of its size in these images.
    """
    images = torch.rand(records, *task.public.shape, generator=torch.Generator().manual_seed(0))
    images = images.to(task.dtype).requires_grad_()
    weights = {name: model[name].detach().clone().requires_grad_() for name in task.parameter_names}
    buffers = {name: model[name].clone() for name in task.buffer_names}
    labels = torch.arange(records) % task.public.classes
    try:
        loss = task.loss(task.logits({**weights, **buffers}, images, train=True), labels)
        found = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
        unused = [name for name, value in zip(weights, found, strict=True) if value is None]
        if unused:
            raise UserError(
                f"The parameter '{unused[0]}' has no influence on the loss: set its `requires_grad` to False, "
                "or attack the module that was trained."
            )
        size = torch.stack([value.square().sum() for value in found]).sum()
        (slope,) = torch.autograd.grad(size, images, allow_unused=True)
    except RuntimeError as error:
        raise UserError(f"The model cannot be differentiated twice: {_line(error)}.") from None
    if slope is None or not bool(slope.any()):
        raise UserError(
            "The model has a part that is not differentiable (rounding, argmax, detach): its gradient does not change "
            "with the image, so there is nothing to match."
        )


def _line(error: Exception) -> str:
    """The first line of an error's message, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:300] if lines else "no message"
