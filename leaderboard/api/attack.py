"""`lb.attack`: an attack of ours on an update from any training loop, without federation, suite or run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from leakboard.attacks.base import Attack, MembershipAttack, ReconstructionAttack
from leakboard.defenses.base import Defense
from leakboard.federation.given_network import GivenTask, refuse_undifferentiable
from leakboard.federation.view import View
from leakboard.leaderboard.api.answering import AttackResult, infer, reconstruct
from leakboard.leaderboard.api.foreign import Records, Tensors, labels_of
from leakboard.leaderboard.api.given_case import Case, GivenRecords, Loop, Shape, attack_of, check_numbers
from leakboard.leaderboard.api.given_update import GivenUpdate

__all__ = ["AttackResult", "attack"]


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
    chosen = attack_of(name, params)
    check_numbers(seed, time_limit)
    given = GivenUpdate(gradient, update, learning_rate, transcript, round, client)
    data = GivenRecords.of(auxiliary, candidates, known, shape)
    case = Case.of(model, given, data, Loop(loss, records, local_steps, local_batches, mean, std))
    knowledge, count = case.knowledge(data, defense, seed, device, time_limit, progress), len(case.gradients)
    if isinstance(chosen, ReconstructionAttack):
        batch = case.public.training.batch_size
        refuse_undifferentiable(cast(GivenTask, knowledge.given), case.state, batch)
        wanted = labels_of(labels, count, batch, case.public.classes)
        return reconstruct(chosen, knowledge, wanted, count, data.auxiliary is None)
    return infer(cast(MembershipAttack, chosen), knowledge, data.candidates, data.known, count)
