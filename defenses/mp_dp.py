"""The paper's scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import Field

from leakboard.core.randomness import Stream, derive_key
from leakboard.defenses.base import JointNoise, Noise, Reading
from leakboard.defenses.building_blocks.model_perturbation import ModelPerturbation
from leakboard.defenses.building_blocks.vectors import added
from leakboard.defenses.noise.budget import MODE, Budget, Mode
from leakboard.defenses.noise.calibration import Edge, Sigmas, corrected_sigmas, exact_theta, paper_sigmas
from leakboard.defenses.noise.graph import choose_neighbours, complete_edges, union_edges
from leakboard.defenses.noise.laws import signed_dn
from leakboard.federation.party import Message, Party, RoundContext, Step
from leakboard.federation.payload import Parameters, Payload
from leakboard.federation.settings import SERVER, Public, client_name
from leakboard.federation.transcript import Observation

Matrix = np.ndarray[Any, np.dtype[np.float64]]

NOT_PRIVATE = (
    "Psi and Phi are sent without noise; given R, which the server drew, the noise is uniform and not Gaussian"
)

#: the text in the record about a random n-out graph, by mode
GRAPH_FLAGS = {
    "paper": "n-out; the paper's theorem divides by zero there, its complete-graph formula is used with K",
    "corrected": "n-out; sigma follows from the exact theta of each round's graph, the claims from one such graph",
}


class MpDp(Budget, ModelPerturbation):
    """The paper's scheme: a perturbed model, own noise, and pairwise noise that cancels in the aggregate.

    MP_Server with transitional layers (r, s from DN*), LMT with Psi and Phi, DDP_Client: each client adds
    eta ~ DN(sigma_eta, 1) and, for every neighbour v, +-Delta_kv ~ DN(sigma_Delta, 1) from a ChaCha20
    stream under an X25519 key, to its perturbed gradient; MU_Server. So R * eta is marginally N(0, sigma_eta^2),
    and the mean over K clients carries variance sigma_eta^2 / K. The oracle clips (docs/decisions.md, 9.2).
    Not differentially private in either mode: see `claims`.
    """

    name: ClassVar[str] = "mp-dp"
    citation: ClassVar[str] = (
        "Yang et al., Efficiently Achieving Secure Model Training and Secure Aggregation (...) in Federated Learning"
    )
    claim: ClassVar[str] = (
        "The server gets local gradients only under (epsilon, delta)-DP, and clients learn nothing about the model."
    )

    mode: Mode = MODE
    neighbours: int | None = Field(None, ge=1, description="n of the random n-out graph; null: the complete graph")
    kappa: float = Field(10.0, gt=0, description="sigma_Delta^2 / sigma_eta^2, which the paper does not give")
    noise: bool = Field(True, description="switch all noise off (for exactness tests)")

    # --- keys and neighbours ----------------------------------------------------------------

    def setup(self) -> Sequence[Step]:
        """The initial model, then X25519 keys, which the server relays."""
        return (
            *super().setup(),
            Step("advertise", "client", self.advertise),
            Step("relay", SERVER, self.relay),
            Step("meet", "client", self.meet),
        )

    def protocol(self) -> Sequence[Step]:
        """Choose neighbours (if the graph is random), distribute, update, aggregate."""
        rest = super().protocol()
        return (Step("choose", "client", self.choose), *rest) if self.neighbours else rest

    def advertise(self, me: Party) -> None:
        """Client, once: make a key pair and send the public key."""
        with me.phase("Key_Gen"):
            private = X25519PrivateKey.from_private_bytes(me.stream("x25519").bytes(32))
            me.state["private_key"] = private.private_bytes_raw()
        me.send(SERVER, "public_key", {"key": private.public_key().public_bytes_raw()})

    def relay(self, me: Party) -> None:
        """Server, once: relay all public keys."""
        keys = {sender: body["key"] for sender, body in me.received("public_key").items()}
        me.broadcast(me.participants, "public_keys", {"keys": keys})

    def meet(self, me: Party) -> None:
        """Client, once: store the others' public keys."""
        me.state["public_keys"] = me.expect("public_keys")["keys"]

    def choose(self, me: Party) -> None:
        """Client: choose n others at random; the graph is public among this round's clients."""
        assert self.neighbours is not None
        others = [_index(name) for name in me.participants]
        count = min(self.neighbours, len(others) - 1)
        chosen = choose_neighbours(me.stream("neighbours"), me.index, others, count)
        me.state["chosen"] = chosen
        peers = tuple(name for name in me.participants if name != me.name)
        me.broadcast(peers, "neighbours", {"chosen": chosen})

    def edges(self, me: Party) -> list[Edge]:
        """The graph of this round, as client numbers."""
        everyone = [_index(name) for name in me.participants]
        if not self.neighbours:
            return complete_edges(everyone)
        if "chosen" not in me.state:  # an outsider's simulation has no choices: draw a graph from the same distribution
            count = min(self.neighbours, len(everyone) - 1)
            stream = me.stream("everyone's neighbours")
            return union_edges({own: choose_neighbours(stream, own, everyone, count) for own in everyone})
        choices = {_index(sender): body["chosen"] for sender, body in me.received("neighbours").items()}
        return union_edges({**choices, me.index: me.state["chosen"]})

    # --- noise ------------------------------------------------------------------------------

    def sigmas(self, public: Public, clients: int, edges: Sequence[Edge], batch: int) -> Sigmas:
        """sigma_eta and sigma_Delta for a batch of this size on this graph."""
        if self.mode == "paper":
            unit = paper_sigmas(self.round_epsilon(public), clients, self.delta, self.kappa)
        else:
            numbers = {name: i for i, name in enumerate(sorted({c for edge in edges for c in edge}))}
            local = [(numbers[a], numbers[b]) for a, b in edges]
            unit = corrected_sigmas(self.round_mu(public), clients, local, self.kappa)
        return unit.times(self.size(batch))

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """DDP_Client: add own and pairwise noise, in float64 so that the pairwise part cancels."""
        if not self.noise:
            return {name: value.double() for name, value in gradient.items()}
        with me.phase("DP"):
            edges = self.edges(me)
            sigmas = self.sigmas(me.public, len(me.participants), edges, me.context.batch_size)
            noise = self.flat_noise(me, edges, sigmas, sum(value.numel() for value in gradient.values()))
            return added(gradient, noise)

    def flat_noise(
        self, me: Party, edges: Sequence[Edge], sigmas: Sigmas, size: int
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """eta_k + sum_v +-Delta_kv as one vector over all parameters."""
        total = signed_dn(me.stream("eta"), sigmas.own, size)
        for a, b in edges:
            if me.index in (a, b):
                drawn = signed_dn(self.pair_stream(me, b if me.index == a else a), sigmas.pairwise, size)
                total += drawn if me.index == a else -drawn
        return total

    def pair_stream(self, me: Party, other: int) -> Stream:
        """The stream that this client shares with another one, for this context only."""
        if "private_key" not in me.state:  # an outsider's simulation has no shared key: draw from the same distribution
            return me.stream(f"pairwise with {other}")
        return shared_stream(me.state, me.index, other, me.context)

    # --- reading ----------------------------------------------------------------------------

    def read(self, observation: Observation, public: Public) -> Reading:
        """The server's recovered gradients, without the noise that colluding clients share with the senders."""
        if not self.noise or SERVER not in observation.states or observation.context.kind not in ("train", "probe"):
            return super().read(observation, public)
        messages = tuple(self._without_shared_noise(message, observation, public) for message in observation.messages)
        return super().read(replace(observation, messages=messages), public)

    def _without_shared_noise(self, message: Message, observation: Observation, public: Public) -> Message:
        """An update without the pairwise noise that a colluding neighbour of its sender knows."""
        colluders = {_index(name): state for name, state in observation.states.items() if "private_key" in state}
        if message.kind != "update" or not colluders:
            return message
        edges = self._seen_edges(observation)
        context, sender = observation.context, _index(message.sender)
        sigmas = self.sigmas(public, len(context.participants), edges, context.batch_size)
        gradient: Parameters = message.payload["gradient"]
        size = sum(value.numel() for value in gradient.values())
        known = np.zeros(size)
        for a, b in edges:
            other = b if sender == a else a
            if sender in (a, b) and other in colluders and other != sender:
                drawn = signed_dn(shared_stream(colluders[other], other, sender, context), sigmas.pairwise, size)
                known += drawn if sender == a else -drawn
        return replace(message, payload={**message.payload, "gradient": added(gradient, -known)})

    def _seen_edges(self, observation: Observation) -> list[Edge]:
        """The graph as the colluders know it: complete, or from the choices that they received and made."""
        if not self.neighbours:
            return complete_edges([_index(name) for name in observation.context.participants])
        choices = {_index(m.sender): m.payload["chosen"] for m in observation.messages if m.kind == "neighbours"}
        return union_edges(choices)

    def noise_scale(self, observation: Observation, public: Public) -> Mapping[str, Noise]:
        """R times the remaining sum of uniforms: eta, and Delta for every neighbour that does not collude.

        The variance is 2/3 (sigma_eta^2 + n sigma_Delta^2) R^2 with n such neighbours; the noise is uniform if n is 0.
        A server without colluders does not see a random graph and takes its mean degree.
        """
        if not self.noise or "secret" not in observation.states.get(SERVER, {}):
            return {}
        sigmas, held = self._unknown_noise(observation, public)
        unknown = dict(zip(observation.context.participants, held.sum(1).tolist(), strict=True))
        found = {}
        for message in observation.messages:
            if message.kind == "update":
                count = unknown[message.sender]
                deviation = math.sqrt(2 / 3 * (sigmas.own**2 + count * sigmas.pairwise**2))
                bound = math.sqrt(2) * sigmas.own if not count else None
                found[message.sender] = self.multiplied_noise(observation, public, deviation, bound)
        return found

    def joint_noise(self, observation: Observation, public: Public) -> JointNoise:
        """Delta_kv is in the messages of k and v with opposite signs, and all clients have the same R.

        Cov(k, v) = 2/3 (sigma_eta^2 I + sigma_Delta^2 L)_kv R^2, with L the Laplacian of the graph without colluders.
        """
        laws = self.noise_scale(observation, public)
        if not laws:
            return super().joint_noise(observation, public)
        sigmas, held = self._unknown_noise(observation, public)
        names = list(observation.context.participants)
        laplacian = np.diag(held.sum(1)) - np.minimum(held, held.T)
        covariance = sigmas.own**2 * np.eye(len(names)) + sigmas.pairwise**2 * laplacian
        deviations = np.sqrt(covariance.diagonal())
        places = [names.index(sender) for sender in laws]
        correlation = (covariance / np.outer(deviations, deviations))[np.ix_(places, places)]
        return JointNoise(laws, torch.from_numpy(correlation))

    def _unknown_noise(self, observation: Observation, public: Public) -> tuple[Sigmas, Matrix]:
        """The sigmas, and how many Delta_kv remain in k's message after `read`: (K, K), row k, column v.

        A colluder v subtracts its Delta_kv. A server without colluders does not see a random graph: each edge counts
        with its probability.
        """
        context, count = observation.context, len(observation.context.participants)
        colluders = {_index(name) for name, state in observation.states.items() if "private_key" in state}
        seen = bool(colluders) or not self.neighbours
        edges = self._seen_edges(observation) if seen else self._typical_edges(count)
        sigmas = self.sigmas(public, count, edges, context.batch_size)
        if not seen:
            return sigmas, 2 * len(edges) / max(1, count * (count - 1)) * (1 - np.eye(count))
        places = {_index(name): place for place, name in enumerate(context.participants)}
        held = np.zeros((count, count))
        for a, b in edges:
            held[places[a], places[b]] = b not in colluders
            held[places[b], places[a]] = a not in colluders
        return sigmas, held

    # --- claims -----------------------------------------------------------------------------

    def deviate(self) -> Self:
        """A server that draws a small R for one layer, which shrinks the noise on that layer (`skewed`)."""
        return self.skewed_server()

    def claims(self, public: Public) -> dict[str, Any]:
        """The claimed and the composed epsilon, and why neither holds."""
        if not self.noise:
            return {"dp_holds": False, "reason": "all noise is switched off"}
        clients = public.training.per_round
        edges = self._typical_edges(clients)
        sigmas = self.sigmas(public, clients, edges, public.training.batch_size)
        theta = exact_theta(sigmas, clients, edges) * self.size(public.training.batch_size) ** 2
        found = {
            **self.budget_claims(public, math.sqrt(theta)),
            "mode": self.mode,
            "sigma_eta": sigmas.own,
            "sigma_delta": sigmas.pairwise,
            "dp_holds": False,
            "reason": NOT_PRIVATE,
        }
        if self.neighbours and self.neighbours < clients - 1:
            found["graph"] = GRAPH_FLAGS[self.mode]
        return found

    def _typical_edges(self, clients: int) -> list[Edge]:
        """The graph on which the claims are computed: complete, or one n-out graph from a fixed seed."""
        everyone = range(clients)
        if not self.neighbours or self.neighbours >= clients - 1:
            return complete_edges(everyone)
        stream = Stream(derive_key(bytes(32), "typical graph", clients, self.neighbours))
        return union_edges({own: choose_neighbours(stream, own, everyone, self.neighbours) for own in everyone})


def shared_stream(state: Payload, own: int, other: int, context: RoundContext) -> Stream:
    """The stream of a pair of clients, from one's private key and the other's public key, bound to the context."""
    private = X25519PrivateKey.from_private_bytes(state["private_key"])
    public = X25519PublicKey.from_public_bytes(state["public_keys"][client_name(other)])
    pair = (min(own, other), max(own, other))
    where = (context.kind, context.round, -1 if context.probe is None else context.probe)
    return Stream(derive_key(private.exchange(public), "pairwise", *pair, *where))


def _index(name: str) -> int:
    return int(name.partition(":")[2])
