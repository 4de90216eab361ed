"""The steps that all defenses with model perturbation share: MP_Server, LMT, MU_Server."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from leakboard.core.errors import Unsupported, UserError
from leakboard.datasets.base import LabelledImages
from leakboard.defenses.base import Defense, Gradient, Noise, Reading, Transform, mean
from leakboard.defenses.building_blocks.finite import LIMIT, bounded_mean, norm
from leakboard.defenses.noise.budget import clipping
from leakboard.defenses.perturbation.clean import CleanParts, clean_parts
from leakboard.defenses.perturbation.client import Expanded, Parts, collapse, expanded_of, train, train_clipped
from leakboard.defenses.perturbation.clipping import true_norms
from leakboard.defenses.perturbation.server import Secret, draw_secret, perturb, recover, skewed
from leakboard.federation.example_norms import loss_norms
from leakboard.federation.example_passes import Pass
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import SERVER, Public
from leakboard.federation.task import task_of
from leakboard.federation.transcript import Observation

#: float32 has 24 bits. The terms of the recovery cancel, so their rounding becomes an error of the result. Measured: up
#: to ten times 2^-24 of the largest term (a mean over a batch hides terms of its examples that cancelled)
ROUNDING = 10 * 2.0**-24
#: largest expected error of a recovered gradient, relative to its norm; the server shrinks gamma to stay below it
TOLERANCE = 2e-4
#: the factor by which a deviating server reduces the noise on one layer
SKEW = 1e-6


class ModelPerturbation(Defense):
    """The server sends a perturbed model; clients send gradient, Psi and Phi; the server recovers the gradient."""

    #: whether ReLUs are followed by transitional layers (the 2L-1 layers of the paper)
    transitional: ClassVar[bool] = True
    #: without transitional layers: the largest factor of a weight; 0 for the unbounded distribution of the official
    #: code
    spread: ClassVar[float] = 0.0

    variant: Literal["V1", "V2"] = Field(
        "V2", description="V2: r^a public, one secret gamma (official code); V1: r a secret vector (the paper's text)"
    )
    clip: float | None = Field(
        None, gt=0, description="L2 bound of an example's true gradient (by the oracle); null: off"
    )

    #: the server's own strategy, which clients do not know
    _deviates: bool = PrivateAttr(False)

    def check(self, public: Public) -> None:
        """Only the squared error and networks of ReLUs, convolutions and linear layers can be perturbed."""
        refused = []
        if public.training.loss != "mse":
            refused.append(
                f"The defense '{self.name}' needs loss 'mse' (its algebra is that of squared error); given: 'ce'."
            )
        if public.training.is_local:
            refused.append(
                f"The defense '{self.name}' recovers one gradient only, which a client takes on the perturbed model it "
                f"was sent: local_steps must be 1 and local_learning_rate must not be given; "
                f"given: {public.training.local_steps} local steps."
            )
        try:
            self.expanded(public)
        except Unsupported as reason:
            if not refused:
                raise
            refused.append(f"The defense '{self.name}' needs another network: {reason}.")
        if refused:
            raise UserError(*refused)

    def expanded(self, public: Public) -> Expanded:
        """The network that clients run."""
        return expanded_of(public, transitional=self.transitional)

    # --- server -----------------------------------------------------------------------------

    def distribute(self, me: Party) -> None:
        """MP_Server: draw fresh noise, common to all clients of this round; send the perturbed model."""
        expanded = self.expanded(me.public)
        with me.phase("MP"):
            scale = me.state.setdefault("gamma_scale", self._first_scale(expanded))
            secret = draw_secret(
                me.stream("perturbation"),
                expanded.wiring,
                me.public.classes,
                transitional=self.transitional,
                variant=self.variant,
                scale=scale,
                spread=self.spread,
            )
            secret = skewed(secret, self._skew(expanded))
            hidden = perturb(
                me.state["model"],
                expanded.wiring,
                secret,
                transitional=self.transitional,
                dtype=task_of(me.public).dtype,
            )
        me.state["secret"] = pack_secret(secret)
        me.state["distributed"] = dict(me.state["model"])  # a copy: the step below replaces entries of the original
        body: Payload = {"model": hidden}
        if self.variant == "V2":
            body["direction"] = secret.direction.to(task_of(me.public).dtype)
        me.broadcast(me.participants, "model", body)

    def _first_scale(self, expanded: Expanded) -> float:
        """The first scale of gamma: alpha sums over the inputs of the last layer, so many inputs need a small gamma."""
        last = expanded.network.get_submodule(expanded.wiring.last.name)
        assert isinstance(last, nn.Linear)
        return min(1.0, 32 / last.in_features)

    def aggregate(self, me: Party) -> None:
        """MU_Server: average gradient, Psi and Phi, recover in float64, take the step."""
        updates = list(me.received("update").values())
        if not updates:
            return
        with me.phase("Agg"):
            averages = {part: mean([u[part] for u in updates]) for part in ("gradient", "psi", "phi")}
        self.recover_and_step(me, averages, len(updates))

    def recover_and_step(self, me: Party, averages: Payload, clients: int) -> None:
        """Server: from the means of gradient, Psi and Phi over `clients` clients to the next model."""
        secret, psi, phi = unpack_secret(me.state["secret"]), averages["psi"], averages["phi"]
        with me.phase("Recover"):
            recovered = recover(averages["gradient"], psi, phi, self.expanded(me.public).wiring, secret)
        self._adapt(me, psi, phi, recovered, secret)
        final = self.finish(me, recovered, clients)
        for name in self._drowned(self.expanded(me.public)):
            final[name] = torch.zeros_like(final[name])
        self.step(me, {name: final[name].to(value) for name, value in me.state["model"].items()}, {})

    def skewed_server(self) -> Self:
        """The scheme with a server that draws R to its advantage; for `deviate` if the clients' noise depends on R."""
        deviating = self.model_copy()
        deviating._deviates = True
        return deviating

    def _skew(self, expanded: Expanded) -> float:
        """The factor of `skewed`: 1 for an honest server.

        A deviating server makes the first layer clean if it is fully connected, because that gradient alone reveals the
        images. Otherwise it makes the last layer clean, whose gradient reveals label and features.
        """
        if not self._deviates:
            return 1.0
        first = expanded.network.get_submodule(expanded.wiring.weights[0].name)
        return SKEW if isinstance(first, nn.Linear) else 1 / SKEW

    def _drowned(self, expanded: Expanded) -> list[str]:
        """The weights whose noise a skewed R increased: the deviating server does not train them."""
        skew, weights = self._skew(expanded), expanded.wiring.weights
        if skew < 1:
            return [f"{w.name}.weight" for w in weights if w.target is None]
        biases = [f"{w.name}.bias" for w in weights if w.has_bias and w.target is not None]
        return [*(f"{w.name}.weight" for w in weights if w.source is None), *biases] if skew > 1 else []

    def finish(self, me: Party, recovered: Parameters, clients: int) -> Parameters:
        """Server: a final change of the recovered mean over `clients` clients (central noise); none here."""
        return recovered

    def _adapt(self, me: Party, psi: Parameters, phi: Parameters, recovered: Parameters, secret: Secret) -> None:
        """Shrink gamma for the next rounds if cancellation would cost more than `TOLERANCE` of the gradient.

        The error grows with v Phi, the largest of the terms that cancel. v is taken at the largest gamma and a typical
        r^a, because this round's values may have been small. Noise makes the gradient look larger than it is, so its
        norm counts at most B. The server knows all of these values.
        """
        expanded, scale = self.expanded(me.public), float(me.state["gamma_scale"])
        zero, no_psi = ({name: torch.zeros_like(value) for name, value in part.items()} for part in (recovered, psi))
        term = norm(recover(zero, no_psi, phi, expanded.wiring, secret)) / float(secret.additive.square().sum())
        term *= (scale / self._skew(expanded)) ** 2 * me.public.classes / 3  # E |r^a|^2 = classes / 3
        size = min(norm(recovered), self.clip or math.inf)
        error = ROUNDING * term / max(size, 1e-300)
        if me.public.training.precision == "float32" and TOLERANCE < error < math.inf:
            me.state["gamma_scale"] = scale * math.sqrt(TOLERANCE / error)

    # --- client -----------------------------------------------------------------------------

    def update(self, me: Party) -> None:
        """LMT, clipping, and the noise that the scheme adds; send (gradient, Psi, Phi)."""
        gradient, psi, phi = self.local_parts(me)
        me.send(SERVER, "update", {"gradient": self.protect(me, gradient), "psi": psi, "phi": phi})

    def local_parts(self, me: Party) -> tuple[Parameters, Parameters, Parameters]:
        """Client: gradient, Psi and Phi of its batch on the received model, clipped by the oracle if clipping is on.

        A record for which any of the three is not finite counts as zero in all of them (`building_blocks.finite`).
        """
        given = hidden, direction, images, targets = self.inputs(me)
        expanded = self.expanded(me.public)

        def parts(chosen: slice, weights: Tensor | None) -> Parts:
            return train(expanded, hidden, direction, images[chosen], targets[chosen], weights)

        with me.phase("Train"):
            whole, factors = self.clipped_parts(me, *given) if self.clips(me) else (None, None)
            gradient, psi, phi = bounded_mean(me, parts, factors, self.part_bounds(), whole)
        self._measure(me, gradient, psi, phi, factors)
        return gradient, psi, phi

    def part_bounds(self) -> tuple[float, float, float]:
        """The largest norms of a record's own gradient, Psi and Phi, as sent; clipping by the oracle bounds none."""
        return (LIMIT, LIMIT, LIMIT)

    def inputs(self, me: Party) -> tuple[Parameters, Tensor | None, Tensor, Tensor]:
        """Client: the received perturbed model and direction, its normalised images, one-hot targets."""
        assert me.batch is not None
        task, received = task_of(me.public), me.expect("model")
        images = task.normalise(me.batch.images.to(task.dtype))
        targets = nn.functional.one_hot(me.batch.labels, me.public.classes).to(task.dtype)
        return received["model"], received.get("direction"), images, targets

    def clips(self, me: Party) -> bool:
        """Whether this client clips; without an oracle (an outsider's simulation) nothing is clipped."""
        return self.clip is not None and me.oracle is not None

    def simulates_exactly(self) -> bool:
        """Only without a clip bound: an outsider has no oracle, so its messages are not clipped."""
        return self.clip is None

    def clipped_parts(
        self, me: Party, hidden: Parameters, direction: Tensor | None, images: Tensor, targets: Tensor
    ) -> tuple[Parts | None, Tensor]:
        """Client: gradient, Psi and Phi of its clipped batch, and the factors (B,); None if only factors are known.

        c_b = min(1, B / ||g_b||) comes from the oracle: from the client's own signals, or from the true model if the
        network has unknown layers.
        """
        oracle, bound, expanded = me.oracle, self.clip, self.expanded(me.public)
        assert oracle is not None
        assert bound is not None

        def factors(made: Pass) -> Tensor:
            def norms(server: Payload, model: Parameters) -> Tensor:
                return true_norms(made, expanded, hidden, unpack_secret(server["secret"]))

            return oracle.clip_factors(norms, bound)

        def from_true_model(server: Payload, model: Parameters) -> Tensor:
            assert me.batch is not None
            return loss_norms(task_of(me.public), model, me.batch.images, me.batch.labels)

        found = train_clipped(expanded, hidden, direction, images, targets, factors)
        return found if found is not None else (None, oracle.clip_factors(from_true_model, bound))

    def mimic_records(self, observed: Gradient, public: Public) -> Transform | None:
        """Each record's true gradient is scaled down to norm B if clipping is on."""
        return None if self.clip is None else clipping(self.clip)

    def _measure(
        self, me: Party, gradient: Parameters, psi: Parameters, phi: Parameters, factors: Tensor | None
    ) -> None:
        """Let the harness measure how exact the recovery of this client's clean gradient is, and how small gamma
        became.

        Probes are measured separately: a single record that fits well has a gradient of almost zero length, and the
        error is relative to it. `gamma_shrunk` is the ratio of gamma's first scale to the current one.
        """
        if me.oracle is None or me.batch is None:
            return
        batch, public = me.batch, me.public
        wiring = self.expanded(public).wiring

        def error(server_state: Payload, model: Parameters) -> float:
            task = task_of(public)
            exact = {name: value.double() for name, value in server_state["distributed"].items()}
            true, _ = task.gradient(exact, batch.images, batch.labels, factors)
            found = recover(gradient, psi, phi, wiring, unpack_secret(server_state["secret"]))
            return norm({n: found[n] - true[n] for n in true}) / max(norm(true), 1e-300)

        first = self._first_scale(self.expanded(public))
        me.oracle.measure("recovery_error" if me.context.kind == "train" else "recovery_error_probe", error)
        me.oracle.measure("gamma_shrunk", lambda state, model: first / float(state["gamma_scale"]))

    # --- reading ----------------------------------------------------------------------------

    def read(self, observation: Observation, public: Public) -> Reading:
        """Server: divide its noise out, client by client. Client: the plain network that computes what it was sent."""
        expanded = self.expanded(public)
        server = observation.states.get(SERVER)
        if server is None:
            models = [m.payload["model"] for m in observation.messages if m.kind == "model"]
            return Reading(observation.context, collapse(models[0], expanded) if models else None, {})
        if "secret" not in server:
            return Reading(observation.context, None, {})
        secret = unpack_secret(server["secret"])
        size = observation.context.batch_size
        gradients = {
            m.sender: Gradient(
                recover(m.payload["gradient"], m.payload["psi"], m.payload["phi"], expanded.wiring, secret), 1, size
            )
            for m in observation.messages
            if m.kind == "update"
        }
        return Reading(observation.context, server["distributed"], gradients)

    def clean_parts(self, observation: Observation, public: Public) -> dict[str, CleanParts]:
        """Psi and Phi, which carry no noise, of each client whose own message the view's server can read, by client."""
        server = observation.states.get(SERVER)
        if server is None or "secret" not in server:
            return {}
        wiring, secret = self.expanded(public).wiring, unpack_secret(server["secret"])
        size = observation.context.batch_size
        return {
            client: clean_parts(
                body["psi"], body["phi"], server["distributed"], wiring, secret, records=size, clip=self.clip
            )
            for client, body in self.plain_updates(observation, public).items()
        }

    def plain_updates(self, observation: Observation, public: Public) -> dict[str, Payload]:
        """The messages (gradient, Psi, Phi) of single clients that the view's server can read, by client."""
        return {m.sender: m.payload for m in observation.messages if m.kind == "update"}

    def record_factors(self, observation: Observation, public: Public, batch: LabelledImages) -> Tensor | None:
        """Server: the factors c_b (B,) by which a client would clip these records; None: see `mimic_records`."""
        return None

    def clean_message(
        self, observation: Observation, public: Public, batch: LabelledImages, factors: Tensor | None
    ) -> dict[str, Parameters]:
        """Server: what a client would send for a batch, with records weighted by factors (B,), without any noise."""
        task = task_of(public)
        received = next(m.payload for m in observation.messages if m.kind == "model")
        images = task.normalise(batch.images.to(task.dtype))
        targets = nn.functional.one_hot(batch.labels, public.classes).to(task.dtype)
        weights = None if factors is None else factors.to(task.dtype)
        parts = train(self.expanded(public), received["model"], received.get("direction"), images, targets, weights)
        return dict(zip(("gradient", "psi", "phi"), parts, strict=True))

    def corrections(self, observation: Observation, public: Public, psi: Parameters, phi: Parameters) -> Parameters:
        """Server: R (v Phi - gamma Psi), which these parts of a message add to the recovered gradient."""
        server = observation.states[SERVER]
        nothing = {name: torch.zeros_like(value) for name, value in phi.items()}
        return recover(nothing, psi, phi, self.expanded(public).wiring, unpack_secret(server["secret"]))

    def multiplied_noise(
        self, observation: Observation, public: Public, deviation: float, bound: float | None = None
    ) -> Noise:
        """Server: noise of this size on every value of a perturbed gradient, after recovery: R times as large."""
        secret, factors = unpack_secret(observation.states[SERVER]["secret"]), {}
        model: Parameters = observation.states[SERVER]["distributed"]
        for weight in self.expanded(public).wiring.weights:
            value = model[f"{weight.name}.weight"]
            factors[f"{weight.name}.weight"] = secret.matrix(weight, value).expand(value.shape)
            if weight.has_bias:
                ones = torch.ones(value.shape[0], dtype=torch.float64)
                factors[f"{weight.name}.bias"] = ones if weight.target is None else secret.r[weight.target]
        most = None if bound is None else {name: bound * factor for name, factor in factors.items()}
        return Noise({name: deviation * factor for name, factor in factors.items()}, most)

    def local_noise(
        self, observation: Observation, public: Public, deviation: float, bound: float | None = None
    ) -> dict[str, Noise]:
        """The same noise on every client's perturbed gradient, by client; empty if the view has no server."""
        if "secret" not in observation.states.get(SERVER, {}):
            return {}
        law = self.multiplied_noise(observation, public, deviation, bound)
        return {m.sender: law for m in observation.messages if m.kind == "update"}


def pack_secret(secret: Secret) -> Payload:
    """A secret as plain values, for the server's state."""
    return {"r": list(secret.r), "s": list(secret.s), "gamma": secret.gamma, "direction": secret.direction}


def unpack_secret(packed: Payload) -> Secret:
    """The inverse of `pack_secret`."""
    return Secret(tuple(packed["r"]), tuple(packed["s"]), packed["gamma"], packed["direction"])
