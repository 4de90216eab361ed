"""Scores of another library's membership attacks; runs in that library's own environment and imports its code.

    PEER_PYTHON benchmarks/_membership_peer.py leakpro|privacy-meter CHECKOUT SIGNALS.npz SCORES.npz

`benchmarks/membership_peers.py` starts it. The signals are those of models that were trained once for everybody:
`logits` (N, A, classes), `member` (N, A), `labels` (A,), `outside` (N, Z, classes) and `outside_labels` (Z,), records
that no model learned, and `counts`: how many reference models to use. For target t the references are the first of the
models outside its pair. Scores are (N, A) by name, beside the CPU seconds that each took.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def references(models: int, target: int, count: int) -> list[int]:
    """The first `count` models outside the target's pair."""
    return [i for i in range(models) if i // 2 != target // 2][:count]


def leakpro(signals: Any, count: int) -> dict[str, Callable[[int], Any]]:
    """LiRA and RMIA of LeakPro with its default settings, online and offline."""
    lira = importlib.import_module("leakpro.attacks.mia_attacks.lira").AttackLiRA
    rmia = importlib.import_module("leakpro.attacks.mia_attacks.rmia").AttackRMIA
    shared = importlib.import_module("leakpro.attacks.mia_attacks.abstract_mia").AbstractMIA
    logits, member, labels = signals["logits"], signals["member"], signals["labels"]

    def attack(kind: Any, target: int, online: bool) -> Any:
        """An attack whose models are trained already; records in its order: members of the target first."""
        made = kind.__new__(kind)
        made.configs = kind.AttackConfig(num_shadow_models=count, online=online)
        for name, value in made.configs.model_dump().items():
            setattr(made, name, value)
        inside, outside = member[target].nonzero()[0], (~member[target]).nonzero()[0]
        order, chosen = np.concatenate([inside, outside]), references(len(logits), target, count)
        shared.audit_dataset = {
            "data": order,
            "in_members": np.arange(len(inside)),
            "out_members": np.arange(len(inside), len(order)),
        }
        made.out_indices = ~member[chosen][:, order]
        return made, order, logits[target][order], [logits[i][order] for i in chosen]

    def scores(made: Any, order: Any) -> Any:
        made.run_attack()
        found = np.empty(len(order))
        found[order] = np.concatenate([made.in_member_signals, made.out_member_signals]).ravel()
        return found

    def run_lira(target: int, online: bool) -> Any:
        made, order, own, others = attack(lira, target, online)
        made.fix_var_threshold = 32  # as in its `prepare_attack`
        made.target_logits = made.rescale_logits(own, labels[order])
        made.shadow_models_logits = np.array([made.rescale_logits(other, labels[order]) for other in others])
        return scores(made, order)

    def run_rmia(target: int, online: bool) -> Any:
        np.random.seed(target)  # noqa: NPY002 (it draws z from the global generator)
        made, order, own, others = attack(rmia, target, online)
        inside = len(made.audit_dataset["in_members"])
        made.handler = SimpleNamespace(
            train_indices=np.arange(inside),
            test_indices=np.arange(inside, len(order)),
            target_model=None,
            get_labels=lambda chosen: labels[order][chosen],
        )
        made.epsilon, made.load_for_optuna = 1e-6, True  # the logits are there already
        made.shadow_models, made.attack_data_indices = [None] * len(others), np.arange(len(order))
        made.ground_truth_indices, made.logits_theta, made.logits_shadow_models = labels[order], own, others
        made.prepare_attack()
        return scores(made, order)

    return {
        "lira-online": lambda target: run_lira(target, True),
        "lira-offline": lambda target: run_lira(target, False),
        "rmia-online": lambda target: run_rmia(target, True),
        "rmia-offline": lambda target: run_rmia(target, False),
    }


def privacy_meter(signals: Any, count: int) -> dict[str, Callable[[int], Any]]:
    """RMIA of ml_privacy_meter (it has no LiRA); of `count` models, each record has half that did not learn it."""
    attacks, quiet = importlib.import_module("attacks"), logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)

    def confidence(logits: Any, labels: Any) -> Any:
        """Softmax of the true class (records, models)."""
        made = np.exp(logits - logits.max(-1, keepdims=True))
        made /= made.sum(-1, keepdims=True)
        return np.take_along_axis(made, labels[None, :, None], 2)[:, :, 0].T

    own = confidence(signals["logits"], signals["labels"])
    population = confidence(signals["outside"], signals["outside_labels"])
    member = signals["member"].T

    def run(target: int) -> Any:
        tuned = attacks.tune_offline_a(target, own, population, member, quiet)[0]
        return attacks.run_rmia(target, own, population, member, count // 2, tuned)

    return {"rmia-offline": run}


def main() -> None:
    """Write the scores of all attacks, numbers of references and targets."""
    peer, checkout, source, out = sys.argv[1:]
    sys.path.insert(0, str(Path(checkout).resolve()))
    signals = dict(np.load(source))
    made: dict[str, Any] = {}
    for count in signals["counts"].tolist():
        found = leakpro(signals, count) if peer == "leakpro" else privacy_meter(signals, count)
        for name, attack in found.items():
            started = time.process_time()
            made[f"{name}/{count}"] = np.stack([attack(target) for target in range(len(signals["logits"]))])
            made[f"seconds/{name}/{count}"] = np.array(time.process_time() - started)
    np.savez(out, **made)


if __name__ == "__main__":
    main()
