"""`lb.attack`: an attack of ours on an update from any training loop, without federation, suite or run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from leakboard.attacks.base import (
    Attack,
    Inversion,
    KnownMembership,
    MembershipAnswer,
    MembershipAttack,
    MembershipTask,
    ReconstructionAnswer,
    ReconstructionAttack,
    ReconstructionTask,
)
from leakboard.attacks.membership.building_blocks.shadows import ShadowAttack
from leakboard.attacks.reconstruction.matching.gradients import Matcher
from leakboard.attacks.reconstruction.matching.labels import labels_of as labels_of_problem
from leakboard.core import registry
from leakboard.core.errors import Unsupported, UserError
from leakboard.core.files import write_bytes
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense, Gradient
from leakboard.defenses.fedsgd import FedSGD
from leakboard.federation.given_network import (
    GivenTask,
    buffers_of,
    classes_of,
    copied,
    parameters_of,
    refuse_randomness,
    refuse_undifferentiable,
)
from leakboard.federation.local_training import client_update
from leakboard.federation.payload import Parameters
from leakboard.federation.recording import Local, SeenUpdate, update_in
from leakboard.federation.view import View
from leakboard.leaderboard.api.checks import device_name
from leakboard.leaderboard.api.foreign import (
    GivenKnowledge,
    Records,
    Tensors,
    check_records,
    is_several,
    labels_of,
    loss_of,
    normalisation_of,
    public_of,
    records_of,
    statistics_after,
    statistics_of,
    tensors_of,
    view_of,
)
from leakboard.leaderboard.api.views import load_view
from leakboard.leaderboard.goals.question import AttackFailed, GoalQuestion
from leakboard.leaderboard.page.pictures import strip

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class AttackResult:
    """What an attack made of an update: images with their matching cost, or membership scores; flags in both cases.

    `cost` is 1 - cosine between the gradient of the images and the given one (mean over several updates); with local
    steps it is taken between updates. `labels` are those that it was computed with: the known ones, or recovered ones.
    Both are None for membership.
    """

    attack: str
    answer: ReconstructionAnswer | MembershipAnswer
    cost: float | None = None
    labels: Tensor | None = None
    flags: tuple[str, ...] = field(default=())

    @property
    def images(self) -> Tensor:
        """Reconstructed images (N, C, H, W), in [0, 1] units but not clamped; those of several updates in order."""
        if not isinstance(self.answer, ReconstructionAnswer):
            raise UserError(f"The attack '{self.attack}' gives membership scores and no images.")
        return torch.cat(list(self.answer.images))

    @property
    def scores(self) -> Tensor:
        """Membership scores (N,) of the candidates; higher means member."""
        return self._membership.scores

    @property
    def decisions(self) -> Tensor:
        """Which candidates the attack takes for members (N,)."""
        return self._membership.decisions

    @property
    def diagnostics(self) -> Mapping[str, float]:
        """The attack's own numbers."""
        return self.answer.diagnostics

    @property
    def _membership(self) -> MembershipAnswer:
        if not isinstance(self.answer, MembershipAnswer):
            raise UserError(f"The attack '{self.attack}' gives images and no membership scores.")
        return self.answer

    def save(self, path: str | Path, scale: int = 4) -> Path:
        """Write the images side by side into a PNG file, each pixel `scale` times as large."""
        images = self.images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
        try:
            write_bytes(Path(path), strip(images))
        except (OSError, ValueError) as error:
            raise UserError(f"The images cannot be written to {path}: {error}.") from None
        return Path(path)


def attack(
    name: str | Path | type[Attack] | Attack,
    *,
    model: nn.Module,
    gradient: Tensors | Sequence[Tensors] | None = None,
    update: Tensors | Sequence[Tensors] | None = None,
    learning_rate: float | None = None,
    local_steps: int = 1,
    local_batches: int = 1,
    transcript: str | Path | View | None = None,
    round: int | None = None,
    client: str | None = None,
    loss: str | nn.Module = "ce",
    records: int | None = None,
    labels: Any = None,
    shape: Shape | None = None,
    mean: Any = None,
    std: Any = None,
    auxiliary: Records | None = None,
    candidates: Records | None = None,
    known: tuple[Tensor, Tensor, Tensor] | None = None,
    defense: str | Defense | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> AttackResult:
    """Run one of our attacks on an update from your own training loop (docs/foreign-updates.md).

    Args:
        name: the attack: its name, a Python file, a class or an instance.
        model: the module as it was *before* the update, in the modes (train or eval) in which it was trained.
        gradient: the gradient of the mean loss: tensors by parameter name, or in the order of `model.parameters()`. A
            list of these are several updates on the same model, attacked together.
        update: or w_before - w_after of local steps of plain SGD, in the same form; it needs `learning_rate`. With the
            differences of batch norm's running statistics in it, attacks use these too.
        learning_rate: of the local steps.
        local_steps: how many steps the client took. `unrolled` and `sme` use them; other attacks take the update
            divided by rate and steps for a gradient, and a flag says so.
        local_batches: the client's records are cut into this many batches, in their order; step k takes batch k, in
            turn.
        transcript: or a recording (`leakboard.flower`) or view: model and update come from its `round` and `client`.
        round, client: which round (as it was numbered) and which client; the first ones without.
        loss: 'ce', 'mse' (half squared error on one-hot), nn.CrossEntropyLoss or nn.MSELoss.
        records: how many records the update is the mean of; 1, or what the transcript says.
        labels: their labels (records,), if they are known.
        shape: (C, H, W) of an image; not needed with `auxiliary` or `candidates`.
        mean, std: what your loop normalises images with, per channel; without them images in [0, 1] go in as they are.
        auxiliary: (images, labels) in [0, 1] that the attacker has: other records of the same kind.
        candidates: for membership: (images, labels) to be scored.
        known: for membership attacks that learn: (images, labels, members), with members (N,) bool.
        defense: what was done to the update (a name or an instance), for attacks that imitate it.
        params: parameters of the attack, if it is given by name.
        seed: of the attack's own random numbers.
        time_limit: seconds after which the attack should return the best answer that it has.
        device: where it computes.
        progress: called with one line now and then.

    Returns:
        Images with their matching cost, or scores; and the flags that tell what went wrong.

    Raises:
        UserError: in one sentence, where the module or the update cannot be attacked, or the attack does not apply.
    """
    chosen = _attack_of(name, params)
    _check_numbers(seed, time_limit)
    given = _Update(gradient, update, learning_rate, transcript, round, client)
    extra = None if auxiliary is None else records_of(auxiliary, "`auxiliary`")
    asked = None if candidates is None else records_of(candidates, "`candidates`")
    size = _shape_of(shape, extra, asked)
    told = _known_of(known)
    module = copied(model)
    seen = given.seen()
    if seen is not None:
        _load(module, seen.model)
    count = _whole(records if records is not None else seen.records if seen is not None else 1)
    refuse_randomness(module)
    classes = classes_of(module, size, count)
    for part, what in (
        (extra, "`auxiliary`"),
        (asked, "`candidates`"),
        (None if told is None else told.records, "`known`"),
    ):
        check_records(part, what, size, classes)
    local = given.schedule(local_steps, local_batches, count, seen)
    form, factor = loss_of(loss, classes, count if local is None else count // local.batches)
    gradients, statistics = given.sent(module, factor, seen, local)
    public = public_of(
        type(model).__name__, form, size, classes, count, _precision(module), max(1, len(gradients)), local, factor
    )
    means = normalisation_of(mean, 0.0, size[0], "mean"), normalisation_of(std, 1.0, size[0], "std")
    public = public.model_copy(update={"mean": means[0], "std": means[1]})
    state = {**parameters_of(module), **buffers_of(module)}
    knowledge = GivenKnowledge(
        view=view_of(public, state, gradients, statistics),
        defense=_defense_of(defense),
        auxiliary=extra if extra is not None else LabelledImages(torch.empty(0, *size), torch.empty(0).long()),
        seed=seed,
        device=device_name(cast(Any, device), "local"),
        deadline=None if time_limit is None else time.monotonic() + time_limit,
        given=GivenTask(module, public),
        **({} if progress is None else {"progress": progress}),
    )
    if isinstance(chosen, ReconstructionAttack):
        refuse_undifferentiable(cast(GivenTask, knowledge.given), state, count)
        wanted = labels_of(labels, len(gradients), count, classes)
        return _reconstruct(chosen, knowledge, wanted, len(gradients), auxiliary is None)
    return _infer(cast(MembershipAttack, chosen), knowledge, asked, told, len(gradients))


@dataclass(frozen=True)
class _Update:
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


def _attack_of(given: object, params: Mapping[str, Any] | None) -> Attack:
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".py")):
        names = [entry["name"] for entry in registry.load_file(given) if entry["kind"] == "attack"]
        if len(names) != 1:
            raise UserError(f"{given} must define one attack; given: {', '.join(names) or 'none'}.")
        given = names[0]
    if isinstance(given, str):
        made: object = registry.create("attack", given, dict(params or {}))
    elif isinstance(given, type) and issubclass(given, Attack):
        made = given.parse(params or {}, f"The attack '{given.name}'")
    else:
        made = given
    if not isinstance(made, Attack):
        raise UserError(f"An attack is given by name, file, class or instance; given: {type(given).__name__}.")
    if made is given and params:
        raise UserError(f"`params` belong to an attack given by name or class; '{made.name}' has its own already.")
    if not isinstance(made, ReconstructionAttack | MembershipAttack):
        raise UserError(f"The attack '{made.name}' is about {made.goal}: allowed are reconstruction and membership.")
    if not made.allows("server"):
        raise UserError(
            f"The attack '{made.name}' needs the view of {' or '.join(made.threats)}; an update is what a server sees."
        )
    return made


def _defense_of(given: str | Defense | None) -> Defense:
    made: object = FedSGD() if given is None else registry.create("defense", given) if isinstance(given, str) else given
    if not isinstance(made, Defense):
        raise UserError(f"`defense` must be the name or an instance of a defense; given: {type(made).__name__}.")
    if type(made).read is not Defense.read or type(made).interpret is not Defense.interpret:
        raise UserError(
            f"The defense '{made.name}' sends no single gradient of a client, so no update stands for its messages: "
            "evaluate it in a federation (lb.evaluate)."
        )
    return made


def _shape_of(given: object, *parts: LabelledImages | None) -> Shape:
    found = [tuple(part.images.shape[1:]) for part in parts if part is not None]
    shape = given if given is not None else found[0] if found else None
    if shape is None:
        raise UserError("The shape of an image is not known: give `shape` as (C, H, W), or `auxiliary` images.")
    good = isinstance(shape, tuple | list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
    if not good:
        raise UserError(f"`shape` must be (C, H, W), three whole numbers; given: {shape!r:.80}.")
    channels, height, width = cast(Sequence[int], shape)
    return channels, height, width


def _check_numbers(seed: object, time_limit: object) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"`seed` must be a whole number; given: {seed!r:.80}.")
    if time_limit is not None and not (isinstance(time_limit, int | float) and time_limit > 0):
        raise UserError(f"`time_limit` must be a positive number of seconds; given: {time_limit!r:.80}.")


def _whole(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise UserError(f"`records` must be a whole number of at least 1; given: {given!r:.80}.")
    return given


def _precision(module: nn.Module) -> str:
    return str(next(module.parameters()).dtype).removeprefix("torch.")


def _known_of(given: object) -> KnownMembership | None:
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 3 or not isinstance(given[2], Tensor):
        raise UserError("`known` must be (images, labels, members), three tensors.")
    records, members = records_of(tuple(given[:2]), "`known`"), given[2]
    if members.dtype != torch.bool or members.shape != records.labels.shape or len(set(members.tolist())) < 2:
        raise UserError(f"`known` must tell members (N,) as booleans, some of each; given: {members.dtype}.")
    return KnownMembership(records, members.cpu())


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


def _load(module: nn.Module, weights: Parameters) -> None:
    """Give the module the weights that the client got."""
    named = by_name(module, weights, "The model's weights")
    module.load_state_dict({name: named[name] for name in module.state_dict()})


def _reconstruct(
    chosen: ReconstructionAttack,
    knowledge: GivenKnowledge,
    labels: tuple[Tensor, ...] | None,
    problems: int,
    alone: bool,
) -> AttackResult:
    if not problems:
        raise UserError(f"The attack '{chosen.name}' needs an update: give `gradient`, `update` or `transcript`.")
    size = knowledge.public.training.batch_size
    task = ReconstructionTask("first", 0, problems, size, labels, (size,) * problems)
    answer = cast(ReconstructionAnswer, _answer(chosen, knowledge, task, alone))
    asked = task.problems(knowledge)
    used = torch.stack([labels_of_problem(knowledge, problem) for problem in asked])
    return AttackResult(chosen.name, answer, _cost(knowledge, asked, used, answer), used.flatten(), answer.flags)


def _cost(
    knowledge: GivenKnowledge, problems: tuple[Inversion, ...], labels: Tensor, answer: ReconstructionAnswer
) -> float:
    if knowledge.public.training.is_local:
        return _update_cost(knowledge, problems, labels, answer)
    matcher = Matcher(knowledge.task, problems, labels, 1, knowledge.device)
    return float(matcher.costs(torch.stack(list(answer.images)).float().to(knowledge.device)).mean())


def _update_cost(
    knowledge: GivenKnowledge, problems: tuple[Inversion, ...], labels: Tensor, answer: ReconstructionAnswer
) -> float:
    """The same between updates: that of the client's local steps on the answer, and the given one."""
    costs = []
    for problem, images, own in zip(problems, answer.images, labels, strict=True):
        made, _ = client_update(knowledge.task, problem.model, images.to(knowledge.task.dtype), own)
        seen = cast(Gradient, problem.update).values
        one, other = (torch.cat([values[name].double().flatten() for name in made]) for values in (made, seen))
        costs.append(1 - float(nn.functional.cosine_similarity(one, other, dim=0)))
    return sum(costs) / len(costs)


def _infer(
    chosen: MembershipAttack,
    knowledge: GivenKnowledge,
    candidates: LabelledImages | None,
    known: KnownMembership | None,
    gradients: int,
) -> AttackResult:
    if candidates is None:
        raise UserError(f"The attack '{chosen.name}' needs `candidates`: (images, labels) to be scored.")
    if isinstance(chosen, ShadowAttack) and known is None:
        raise UserError(
            f"The attack '{chosen.name}' trains shadow models, for which it must know the whole training: run it in a "
            "federation (lb.evaluate), or choose an attack on one model (loss-threshold, known-members)."
        )
    if chosen.about == "batch" and not gradients:
        raise UserError(f"The attack '{chosen.name}' needs an update: give `gradient`, `update` or `transcript`.")
    index = 0 if chosen.about == "batch" and gradients == 1 else None
    answer = cast(MembershipAnswer, _answer(chosen, knowledge, MembershipTask(candidates, known, index), False))
    return AttackResult(chosen.name, answer, flags=answer.flags)


def _answer(
    chosen: Attack, knowledge: GivenKnowledge, task: Any, alone: bool
) -> ReconstructionAnswer | MembershipAnswer:
    """The attack's answer, checked; `alone`: the attacker has no auxiliary images."""
    goal = cast(GoalQuestion, registry.create("goal", chosen.goal))
    try:
        answer = goal.call(chosen, knowledge, task)
        goal.accept(answer, task, knowledge.public)
    except Unsupported as error:
        raise UserError(f"The attack '{chosen.name}' does not apply here: {error}.") from None
    except AttackFailed as error:
        hint = "; `auxiliary` images may help" if alone else ""
        raise UserError(f"The attack '{chosen.name}' gave no usable answer: {error}{hint}.") from None
    except UserError:
        raise
    except Exception as error:
        if not alone:
            raise
        raise UserError(
            f"The attack '{chosen.name}' failed without `auxiliary` images, which most such attacks need "
            f"({type(error).__name__}: {error})."
        ) from error
    return cast(ReconstructionAnswer | MembershipAnswer, answer)
