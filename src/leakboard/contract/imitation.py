"""Rules about the optional hooks by which attacks imitate a scheme (`leakboard.defenses.imitation`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from leakboard.contract.checking import Broken, NotApplicable
from leakboard.contract.draws import Draw, draws
from leakboard.contract.overflow import vector
from leakboard.contract.worlds import make_world, network_for, world_of
from leakboard.defenses.base import AGGREGATE, Defense, Gradient, Transform
from leakboard.federation.payload import Parameters, Payload, leaves
from leakboard.federation.transcript import Observation

#: how far the size of drawn noise may be from what `noise_scale` says. A server alone may not see all that decides the
#: noise (a random graph, say), so its law may be a mean one; with a client on its side it sees that
NOISE_TOLERANCE = {"server+clients:1": 0.05, "server+keys": 0.5}
#: how far a correlation may be off: six times the error of one over the values of two pairs of runs
CORRELATION_TOLERANCE = 0.05


def check_simulate_gives_a_clients_message(defense: Defense) -> None:
    """`simulate` gives what a client's message holds, from public settings alone, and repeats itself.

    Where a message is sealed, an outsider without keys gets what is inside: a gradient in the model's shapes.
    """
    world = world_of(defense)
    received = next(m.payload for o in world.view("client").observations for m in o.messages if m.kind == "model")
    batch = world.unseen.select(torch.arange(4))
    first, second = (
        defense.simulate(world.outcome.public, received, batch.images, batch.labels, seed=3) for _ in range(2)
    )
    updates = (m for o in world.view("server").observations for m in o.messages if m.kind == "update")
    sent = next(m.payload for m in updates if m.sender == "client:0")
    is_open = "gradient" in sent
    if is_open and first.keys() != sent.keys():
        raise Broken(f"A message has the parts {sorted(sent)}; simulated: {sorted(first)}.")
    expected = sent["gradient"] if is_open else world.outcome.model
    for name, value in first["gradient"].items():
        if not torch.equal(value, second["gradient"][name]):
            raise Broken(f"Two simulations with one seed differ in '{name}'.")
        if value.shape != expected[name].shape:
            raise Broken(f"'{name}' must have the shape {tuple(expected[name].shape)}; given: {tuple(value.shape)}.")


def check_mimic_is_a_function_of_gradients(defense: Defense) -> None:
    """`mimic` gives a differentiable function of N gradients, each on its own, which draws nothing."""
    _check_transforms(defense, "mimic")


def check_mimic_records_is_a_function_of_gradients(defense: Defense) -> None:
    """`mimic_records` gives a differentiable function of N gradients, each on its own, which draws nothing."""
    _check_transforms(defense, "mimic_records")


def check_noise_scale_agrees_with_drawn_noise(defense: Defense) -> None:
    """`noise_scale` has the names and shapes of the gradients that `read` finds, and the size of noise really drawn.

    Two runs on the same records and the same first model differ by their noise alone. So with deviations a and b, the
    difference over sqrt(a^2 + b^2) has the root mean square 1 over all values.
    """
    _overrides(defense, "noise_scale")
    found = False
    for threat, tolerance in NOISE_TOLERANCE.items():
        pairs = draws(defense, threat)
        for owner in pairs[0][0].laws:
            found = True
            for draw in (draw for pair in pairs for draw in pair):
                _check_law(draw, owner)
            size = float(torch.cat([_standardised(pair, owner) for pair in pairs]).square().mean().sqrt())
            if abs(size - 1) > tolerance:
                raise Broken(f"Under '{threat}' the noise of '{owner}' is {size:.2f} times as large as it says.")
            if any(_beyond_bound(pair, owner) for pair in pairs):
                raise Broken(f"Under '{threat}' the noise of '{owner}' is larger than its `bound`.")
    if not found:
        raise NotApplicable("with these parameters it names no noise.")


def check_joint_noise_agrees_with_drawn_noise(defense: Defense) -> None:
    """`joint_noise` gives a correlation matrix in the order of its laws, which agrees with noise really drawn."""
    _overrides(defense, "joint_noise")
    pairs = draws(defense, "server+clients:1")
    owners = list(pairs[0][0].joint.laws)
    if len(owners) < 2:
        raise NotApplicable("with these parameters it names noise on fewer than two gradients.")
    for draw in (draw for pair in pairs for draw in pair):
        matrix = draw.joint.correlation.double()
        sound = matrix.shape == (len(owners), len(owners)) and torch.allclose(matrix, matrix.T)
        if not sound or not torch.allclose(matrix.diagonal(), torch.ones_like(matrix.diagonal())):
            raise Broken(
                f"The correlation must be symmetric with ones on its diagonal, {len(owners)} by {len(owners)}."
            )
        if float(torch.linalg.eigvalsh(matrix).min()) <= 0:
            raise Broken("The correlation must be positive definite.")
    for a, one in enumerate(owners):
        for b, two in enumerate(owners[:a]):
            drawn = torch.cat([_standardised(p, one) * _standardised(p, two) for p in pairs]).mean()
            said = torch.cat([_expected(p, a, b) for p in pairs]).mean()
            if abs(float(drawn - said)) > CORRELATION_TOLERANCE:
                raise Broken(f"The noise of '{one}' and '{two}' has the correlation {drawn:.2f}; it says {said:.2f}.")


def check_noise_over_rounds_agrees_with_noise_scale(defense: Defense) -> None:
    """`noise_over_rounds` has a row per round and one more, and the deviation of a sum's noise where both are named."""
    _overrides(defense, "noise_over_rounds")
    world = world_of(defense)
    public = world.outcome.public
    mixing = defense.noise_over_rounds(public, public.training.batch_size)
    if mixing is None:
        raise NotApplicable("with these parameters rounds are independent.")
    if mixing.ndim != 2 or len(mixing) != public.total_rounds + 1 or not bool(mixing.isfinite().all()):
        raise Broken(f"It must have {public.total_rounds + 1} rows of finite numbers; given: {tuple(mixing.shape)}.")
    for observation in world.view("server").of_kind("train"):
        law = defense.noise_scale(observation, public).get(AGGREGATE)
        if law is not None:
            said, known = float(mixing[observation.context.round].norm()), float(vector(law.deviation).mean())
            if abs(said - known) > 1e-3 * known:
                raise Broken(f"In round {observation.context.round} it gives {said:g}; `noise_scale` says {known:g}.")


def check_open_updates_agree_with_the_reading(defense: Defense) -> None:
    """`open_updates` has owners that `read` has too, with means over as many clients, and repeats itself."""
    _overrides(defense, "open_updates")
    world = world_of(defense)
    public = world.outcome.public
    for threat in ("server", "server+keys", "server+clients:1"):
        view = world.view(threat)
        readings = {reading.context: reading.gradients for reading in world.readings(threat)}
        for observation in view.of_kind("train") + view.of_kind("probe"):
            read = readings[observation.context]
            first, second = (defense.open_updates(observation, public) for _ in range(2))
            for owner, (parts, clients) in first.items():
                if owner not in read or read[owner].clients != clients:
                    raise Broken(f"Under '{threat}' it has '{owner}' of {clients} clients, and `read` has not.")
                if not _alike(parts, second[owner][0], values=True):
                    raise Broken(f"Asked twice, it gives two different updates of '{owner}'.")


def check_a_deviating_server_keeps_the_form(defense: Defense) -> None:
    """`deviate` gives a scheme of the same class, whose server sends messages of the same form."""
    _overrides(defense, "deviate")
    deviating = defense.deviate()
    if deviating is None:
        raise NotApplicable("with these parameters it knows no such strategy.")
    if type(deviating) is not type(defense):
        raise Broken(f"It must be a copy by `model_copy`; given: {type(deviating).__name__}.")
    honest, other = world_of(defense), make_world(deviating, model_parameters=network_for(defense))
    for one, two in zip(honest.view("client").observations, other.view("client").observations, strict=True):
        if not _alike(_messages(one), _messages(two)):
            raise Broken(f"In round {one.context.round} a client gets messages of another form.")


def check_a_rehearsal_trains_the_same_model(defense: Defense) -> None:
    """`rehearsal` gives a defense that trains the very same model."""
    _overrides(defense, "rehearsal")
    found = make_world(defense.rehearsal(), model_parameters=network_for(defense)).outcome.model
    for name, value in world_of(defense).outcome.model.items():
        if not torch.equal(value, found[name]):
            raise Broken(f"'{name}' of the trained model differs.")


def _overrides(defense: Defense, hook: str) -> None:
    if getattr(type(defense), hook) is getattr(Defense, hook):
        raise NotApplicable(f"it does not override `{hook}`.")


# --- functions of gradients ------------------------------------------------------------------------


def _check_transforms(defense: Defense, hook: str) -> None:
    _overrides(defense, hook)
    world = world_of(defense)
    seen: list[Gradient] = []
    for threat in ("server", "server+keys"):
        seen += [gradient for reading in world.readings(threat) for gradient in reading.gradients.values()]
    found = [(made, g) for g in seen[:6] if (made := getattr(defense, hook)(g, world.outcome.public)) is not None]
    if not found:
        raise NotApplicable("with these parameters it says that nothing is done.")
    for transform, gradient in found:
        _check_transform(transform, gradient.values)


def _check_transform(transform: Transform, like: Parameters) -> None:
    """Three random gradients of several sizes: form, repeatability, each on its own, derivatives."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.1, 1.0, 10.0])
    given = {
        name: (torch.randn(3, *value.shape, generator=generator) * sizes.view(3, *[1] * value.ndim)).requires_grad_()
        for name, value in like.items()
    }
    first, second = transform(given), transform(given)
    for name, value in given.items():
        if name not in first or first[name].shape != value.shape:
            shape = tuple(first[name].shape) if name in first else "nothing"
            raise Broken(f"'{name}' must keep the shape {tuple(value.shape)} of three gradients; given: {shape}.")
        if not torch.equal(first[name], second[name]):
            raise Broken(f"Applied twice to the same gradients, it gives two different values of '{name}'.")
    if not any(value.requires_grad for value in first.values()):
        raise Broken("No derivative goes through it: build it of torch functions, without `detach`.")
    for number in range(3):
        alone = transform({name: value[number : number + 1] for name, value in given.items()})
        if not all(torch.allclose(alone[name][0], first[name][number], rtol=1e-4) for name in given):
            raise Broken(f"Gradient {number} of three comes out otherwise alone: each must be treated on its own.")


# --- noise -----------------------------------------------------------------------------------------

Pair = tuple[Draw, Draw]


def _check_law(draw: Draw, owner: str) -> None:
    if owner not in draw.gradients:
        raise Broken(f"It names the noise of '{owner}', of whom `read` finds no gradient.")
    if owner not in draw.laws:
        raise Broken(f"It names the noise of '{owner}' in one run and not in another.")
    values, deviation = draw.gradients[owner].values, draw.laws[owner].deviation
    for name, value in values.items():
        if name not in deviation or deviation[name].shape != value.shape:
            raise Broken(f"The deviation of '{name}' of '{owner}' must have the shape {tuple(value.shape)}.")
        if not bool(deviation[name].isfinite().all()) or not bool((deviation[name] >= 0).all()):
            raise Broken(f"The deviation of '{name}' of '{owner}' must be finite and not negative.")


def _values(draw: Draw, owner: str) -> tuple[Tensor, Tensor]:
    """Gradient and deviation (D,) in the same order."""
    values, deviation = draw.gradients[owner].values, draw.laws[owner].deviation
    return vector(values), vector({name: deviation[name] for name in values})


def _standardised(pair: Pair, owner: str) -> Tensor:
    """The difference (D,) of two draws over its deviation; 0 where neither has noise and they agree."""
    (x, a), (y, b) = (_values(draw, owner) for draw in pair)
    scale = (a.square() + b.square()).sqrt()
    quiet = (scale == 0) & torch.isclose(x, y, rtol=1e-4, atol=1e-6)
    return torch.where(quiet, 1.0, (x - y) / scale)


def _beyond_bound(pair: Pair, owner: str) -> bool:
    bounds = [draw.laws[owner].bound for draw in pair]
    if bounds[0] is None or bounds[1] is None:
        return False
    names = pair[0].gradients[owner].values
    most = sum(vector({name: bound[name] for name in names}) for bound in bounds if bound is not None)
    difference = _values(pair[0], owner)[0] - _values(pair[1], owner)[0]
    return bool((difference.abs() > 1.001 * most + 1e-6).any())


def _expected(pair: Pair, a: int, b: int) -> Tensor:
    """What the product of two owners' standardised differences (D,) should be on average."""
    owners = list(pair[0].joint.laws)
    one, two = ([_values(draw, owners[place])[1] for draw in pair] for place in (a, b))
    shared = sum(draw.joint.correlation[a, b] * one[i] * two[i] for i, draw in enumerate(pair))
    scale = (one[0].square() + one[1].square()).sqrt() * (two[0].square() + two[1].square()).sqrt()
    assert isinstance(shared, Tensor)
    return shared / scale.clamp(min=1e-300)


# --- forms -----------------------------------------------------------------------------------------


def _messages(observation: Observation) -> Payload:
    return {f"{m.sender} {m.receiver} {m.kind}": m.payload for m in observation.messages}


def _alike(first: Payload, second: Payload, *, values: bool = False) -> bool:
    """Whether two payloads have the same parts with tensors of the same shapes; or the same values too."""
    return list(_forms(first, values)) == list(_forms(second, values))


def _forms(payload: Payload, values: bool) -> Iterator[tuple[str, Any]]:
    for path, leaf in leaves(payload):
        if isinstance(leaf, Tensor):
            yield str(path), (tuple(leaf.shape), leaf.tolist() if values else None)
        else:
            yield str(path), leaf if values else type(leaf).__name__
