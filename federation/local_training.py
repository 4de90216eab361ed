"""What a client computes in a round: one gradient, or the update of its local steps."""

from __future__ import annotations

from torch import Tensor

from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task


def client_update(task: Task, model: Parameters, images: Tensor, labels: Tensor) -> tuple[Parameters, Parameters]:
    """What a client sends without a defense: its update, and the buffers (batch-norm statistics) after training.

    Without local steps the update is the gradient g of the mean loss over images (N, C, H, W) and labels (N,). With
    `local_steps` S and rate eta it is, from w_0 = w_t and over the batches of `Training.local_schedule`,

        w_t - w_(t+1)  =  eta sum_(s < S) g_s(w_s),    w_(s+1) = w_s - eta g_s(w_s).
    """
    training = task.public.training
    if training.local_learning_rate is None:
        return task.gradient(model, images, labels)
    update: Parameters = {}
    current, buffers = dict(model), dict[str, Tensor]()
    for chosen in training.local_schedule(len(images)):
        gradient, buffers = task.gradient(current, images[chosen], labels[chosen])
        moved = {name: training.local_learning_rate * value for name, value in gradient.items()}
        # the sum of the steps, not the difference of two models: subtracting weights would round more
        update = {name: update[name] + value for name, value in moved.items()} if update else moved
        current = {**current, **buffers, **{name: model[name] - value for name, value in update.items()}}
    return update, buffers
