"""The update that a user gives to `lb.attack`: a gradient, weights after local steps, or a recording of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

from leakboard.core.errors import UserError
from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Local, SeenUpdate, update_in
from leakboard.federation.view import View
from leakboard.leaderboard.api.foreign import is_several, statistics_after, statistics_of, tensors_of
from leakboard.leaderboard.api.views import load_view


@dataclass(frozen=True)
class GivenUpdate:
    """The update as it was given: exactly one of three ways, or none for attacks on the model alone."""

    gradient: Any
    update: Any
    learning_rate: float | None
    transcript: str | Path | View | None
    round: int | None
    client: str | None

    def __post_init__(self) -> None:
        ways = [w for w in ("gradient", "update", "transcript") if getattr(self, w) is not None]
        if len(ways) > 1:
            raise UserError(f"Give only one of `gradient`, `update` and `transcript`; given: {' and '.join(ways)}.")
        rate = self.learning_rate
        if self.update is not None and rate is None:
            raise UserError("`update` needs the `learning_rate` of the local step: the gradient is their quotient.")
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate < float("inf")):
            raise UserError(f"`learning_rate` must be a positive number; given: {rate!r}.")

    def seen(self) -> SeenUpdate | None:
        """The update of the transcript, if there is one."""
        if self.transcript is None:
            return None
        view = self.transcript if isinstance(self.transcript, View) else load_view(self.transcript)
        return update_in(view, self.round, self.client)

    def schedule(self, steps: int, batches: int, records: int, seen: SeenUpdate | None) -> Local | None:
        """The client's local steps; None where there was one step on all records, which is a gradient."""
        for name, value in (("local_steps", steps), ("local_batches", batches)):
            if type(value) is not int or value < 1:
                raise UserError(f"`{name}` must be a whole number of at least 1; given: {value!r:.80}.")
        if seen is not None and seen.local is not None:
            own = (seen.local.steps, seen.local.batches)
            if (steps, batches) not in ((1, 1), own):
                raise UserError(
                    f"The transcript says {own[0]} local steps on {own[1]} batches; given: {steps} on {batches}. Leave "
                    "out `local_steps` and `local_batches`."
                )
            return seen.local
        if steps == batches == 1:
            return None
        if batches > min(steps, records) or records % batches:
            raise UserError(
                f"`local_batches` must divide the records ({records}) and be at most `local_steps` ({steps}): every "
                f"record is trained on; given: {batches}."
            )
        if self.learning_rate is None or self.gradient is not None or (seen is not None and seen.weights is None):
            raise UserError(
                "`local_steps` belongs to an `update`, or to a transcript of weights, with its `learning_rate`: one "
                "gradient has no local steps."
            )
        return Local(steps, batches, self.learning_rate)

    def sent(
        self, module: nn.Module, factor: float, seen: SeenUpdate | None, local: Local | None
    ) -> tuple[list[Parameters], list[Parameters]]:
        """The gradients in our form, or updates of local steps; and batch norm's statistics after each, if told.

        Of a model alone there are none.
        """
        if seen is not None and seen.weights is not None:
            if self.learning_rate is None:
                raise UserError("A transcript of weights needs the `learning_rate` of the clients' local step.")
            after = by_name(module, seen.weights, "The client's weights")
            told = {n: v.detach().double() - after[n].double() for n, v in module.named_parameters()}
            scale = 1.0 if local is not None else factor / self.learning_rate
            found = tensors_of(told, module, "The transcript's update", scale)
            typed = {name: value.to(next(module.parameters()).dtype) for name, value in found.items()}
            return [typed], [statistics_of(module, after)]
        if seen is not None:
            scale = 1.0 if local is not None else factor
            return [tensors_of(seen.gradient or {}, module, "The transcript's gradient", scale)], [{}]
        given = self.gradient if self.gradient is not None else self.update
        if given is None:
            return [], []
        several = list(given) if is_several(given) else [given]
        if self.gradient is not None:
            return [tensors_of(one, module, "`gradient`", factor) for one in several], [{} for _ in several]
        scale = 1.0 if local is not None else factor / cast(float, self.learning_rate)
        found_all = [tensors_of(one, module, "`update`", scale) for one in several]
        return found_all, [statistics_of(module, statistics_after(module, one)) for one in several]


def by_name(module: nn.Module, given: Parameters, what: str) -> Parameters:
    """Tensors by the names of the module's state; names that are mere numbers stand for its order."""
    state = module.state_dict()
    if set(given) != set(state) and len(given) == len(state) and all(name.isdecimal() for name in given):
        given = dict(zip(state, (given[name] for name in sorted(given, key=int)), strict=True))
    for name, value in state.items():
        if name not in given:
            raise UserError(f"{what} in the transcript lack '{name}', which the model has.")
        if given[name].shape != value.shape:
            shapes = f"{tuple(value.shape)}; given: {tuple(given[name].shape)}"
            raise UserError(f"{what} in the transcript must have '{name}' in shape {shapes}.")
    return given


def load_weights(module: nn.Module, weights: Parameters) -> None:
    """Give the module the weights that the client got."""
    named = by_name(module, weights, "The model's weights")
    module.load_state_dict({name: named[name] for name in module.state_dict()})
