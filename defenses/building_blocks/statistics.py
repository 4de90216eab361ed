"""Batch-norm statistics as a part of the update, for schemes that hide, clip or noise all that a client sends.

A client's running means and variances after training tell about its images as the gradient does. Here they travel as
s_t - s_(t+1), beside w_t - w_(t+1), so that one vector holds everything. The counters of batches are the same for all
clients; the server knows them without a message.
"""

from __future__ import annotations

from leakboard.federation.payload import Parameters
from leakboard.federation.task import Task


def statistics_names(task: Task) -> tuple[str, ...]:
    """The buffers that are real numbers: running means and variances."""
    buffers = dict(task.skeleton().named_buffers())
    return tuple(name for name in task.buffer_names if buffers[name].is_floating_point())


def with_statistics(task: Task, update: Parameters, model: Parameters, buffers: Parameters) -> Parameters:
    """An update and, after it, how the statistics moved; the update itself if the network has none."""
    return {**update, **{name: model[name] - buffers[name] for name in statistics_names(task)}}


def without_statistics(task: Task, sent: Parameters, model: Parameters) -> tuple[Parameters, Parameters]:
    """The inverse: the update, and the buffers after training."""
    update = {name: sent[name] for name in task.parameter_names}
    return update, buffers_after(task, sent, model)


def buffers_after(task: Task, moved: Parameters, model: Parameters) -> Parameters:
    """All buffers of a model after training, if its statistics moved by `moved`.

    Noise can make a variance negative, and a network with such a variance gives no numbers: it counts as 0.
    """
    names, passes = statistics_names(task), task.public.training.local_steps
    found: Parameters = {}
    for name in task.buffer_names:
        if name not in names:
            found[name] = model[name] + passes
            continue
        value = model[name].double() - moved[name].double()
        found[name] = (value.clamp(min=0) if name.endswith("running_var") else value).to(model[name])
    return found
