"""Peak memory, CPU time and transcript size of a federation as the numbers of clients and rounds grow.

    .venv/bin/python benchmarks/scale.py [rounds] [clients] [ratios] [units] [large] [--defense D ...] [--short]
    .venv/bin/python benchmarks/scale.py clients --defense secagg --sizes 250 500 1000 [--hidden 8]

rounds   5 clients, 10, 100 and 1,000 rounds, nothing observed. Memory must not grow.
clients  5, 100 and 1,000 clients, 2 rounds; the last one is observed (2 probes of one record; the messages of 4
         witnesses are kept). Memory must grow by one message per client.
ratios   Both as ratios, one JSON line each: the peak after most rounds against the peak after 10; the memory of one
         more client against the size of its message.
units    The cost of one more party, and of one more value in the server's mean (docs/scaling.md).
large    10,000 clients of fedsgd, 1,000 per round, 2 rounds of which the last one is observed: at most 4 GiB. One more
         client and round takes at most 1.25 times the CPU time that it takes with 1,000 clients.

The data is synthetic: images of 1 x 32 x 32 as in `quick`, 16 records per client (digits would have one at
1,000 clients), batches of 4. The network is an mlp with one hidden layer of 32 units: 33,130 parameters, about as many
as `quick`'s convnet; `--hidden` gives another width. mp-dp runs on the complete graph up to 100 clients and on the
random 10-out graph above that. Secure aggregation (secagg, ddp, ddg, skellam, mp-dp+) has the complete graph at 5
clients and the sparse one of SecAgg+ above that; half of the clients may collude. Every line is a separate process.
Memory is its largest resident size minus its size before the federation was made (with the data).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parent.parent / folder) for folder in ("src", ""))

from benchmarks._ratio import add_parts, cpu_seconds, line
from leakboard.federation.settings import Public, Training

HIDDEN = 32
RECORDS, BATCH, SHAPE, CLASSES = 16, 4, (1, 32, 32), 10
DEFENSES = ("fedsgd", "secagg", "mp-dp")
MASKED = ("secagg", "ddp", "ddg", "skellam", "mp-dp+")
SIZES, PARAMETERS = (10, 100, 1000), 1024 * HIDDEN + HIDDEN + HIDDEN * 10 + 10
MIB = 1024 * 1024
LARGE, LARGE_ROUND, LARGE_MIB = 10_000, 1_000, 4096.0


def order_of(defense: str, clients: int, rounds: int, observed: bool, hidden: int = HIDDEN) -> dict[str, Any]:
    """The settings of one measurement."""
    parameters: dict[str, Any] = {}
    if clients > 100 and defense == "mp-dp":
        parameters = {"neighbours": 10}
    if clients > 5 and defense in MASKED:
        parameters = {"graph": "sparse"}
    return {
        "defense": defense,
        "parameters": parameters,
        "clients": clients,
        "participants": None,
        "rounds": rounds,
        "observed": observed,
        "hidden": hidden,
    }


def _public(order: dict[str, Any]) -> Public:
    """The public settings of a measurement."""
    clients, rounds = order["clients"], order["rounds"]
    return Public(
        defense=order["defense"],
        parameters=order["parameters"],
        model="mlp",
        model_parameters={"hidden": [order["hidden"]]},
        shape=SHAPE,
        classes=CLASSES,
        mean=(0.5,),
        std=(0.25,),
        training=Training(
            rounds=rounds, batch_size=BATCH, clients=clients, participants=order["participants"], learning_rate=0.05
        ),
        total_rounds=rounds,
        shard_sizes=(RECORDS,) * clients,
    )


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Run one federation in this process and return its cost."""
    import torch

    from leakboard.core import registry
    from leakboard.datasets.base import LabelledImages
    from leakboard.defenses.base import Defense
    from leakboard.federation.rounds import Federation
    from leakboard.federation.settings import ObservedRounds, client_name
    from leakboard.federation.transcript import Transcript
    from leakboard.federation.view import seeable

    torch.set_num_threads(1)
    clients = order["clients"]
    defense = registry.create("defense", order["defense"], order["parameters"])
    assert isinstance(defense, Defense)
    public = _public(order)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(clients, RECORDS, *SHAPE, generator=generator)
    labels = torch.randint(0, CLASSES, (clients, RECORDS), generator=generator)
    shards = {client_name(i): LabelledImages(images[i], labels[i]) for i in range(clients)}
    observe = ObservedRounds(rounds=("last",) if order["observed"] else (), targets=2, witnesses=4)
    before, started = _resident(), time.process_time()
    outcome = Federation(defense, public, shards, observe, 0).run()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform != "darwin" else 1)
    with tempfile.TemporaryDirectory() as folder:
        Transcript(tuple(seeable(o) for o in outcome.transcript.observations)).save(Path(folder))
        stored = sum(path.stat().st_size for path in Path(folder).iterdir())
    probes = 2 * int(order["observed"])
    steps = outcome.client_rounds + probes * public.training.per_round
    return {"mib": (peak - before) / MIB, "ms": 1000 * seconds / steps, "stored": stored / MIB, "seconds": seconds}


def _resident() -> int:
    """Resident bytes now; if the system does not tell, the largest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform != "darwin" else 1)


def _in_process(order: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(order)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _row(order: dict[str, Any]) -> None:
    found = _in_process(order)
    k = order["participants"] or order["clients"]
    notes = ", ".join(f"{name}: {value}" for name, value in order["parameters"].items())
    print(
        f"| {order['defense']} | {order['clients']:,} | {k:,} | {order['rounds']:,} | {found['mib']:.1f} "
        f"| {found['ms']:.2f} | {found['stored']:.1f} | {notes} |",
        flush=True,
    )


def table(parts: list[str], defenses: list[str], most: int, sizes: list[int], hidden: int) -> None:
    """One row per measurement, in Markdown."""
    print("| defense | clients | per round | rounds | peak MiB | CPU ms per client and round | MiB stored | |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for defense in defenses:
        if "rounds" in parts:
            for rounds in (n for n in SIZES if n <= most):
                _row(order_of(defense, 5, rounds, observed=False, hidden=hidden))
        if "clients" in parts:
            for clients in sizes or (5, *(n for n in SIZES[1:] if n <= most)):
                _row(order_of(defense, clients, 2, observed=True, hidden=hidden))


def ratios(defenses: list[str], most: int) -> None:
    """Growth with rounds and with clients, as lines of the common table."""
    for defense in defenses:
        few, many = (_in_process(order_of(defense, 5, rounds, observed=False)) for rounds in (SIZES[0], most))
        print(line(f"{defense}: memory of {most:,} rounds against 10", many["mib"], few["mib"], "MiB", 1.1), flush=True)
        few, many = (_in_process(order_of(defense, clients, 2, observed=True)) for clients in (5, 100))
        each, message = (many["mib"] - few["mib"]) / 95 * 1024, PARAMETERS * 4 / 1024
        print(line(f"{defense}: memory of one more client, in gradients", each, message, "KiB"), flush=True)


def large() -> None:
    """Many more clients than take part in a round, as lines of the common table."""
    order = {**order_of("fedsgd", LARGE, 2, observed=True), "participants": LARGE_ROUND}
    what = f"fedsgd, {LARGE:,} clients, {LARGE_ROUND:,} per round"
    print(line(f"{what}: peak memory", _in_process(order)["mib"], LARGE_MIB, "MiB", 1.0), flush=True)
    each = {}
    for clients in (LARGE_ROUND, LARGE):
        plain = {**order, "clients": clients, "observed": False}
        few, many = (_in_process({**plain, "rounds": rounds})["seconds"] for rounds in (1, 4))
        each[clients] = (many - few) / (3 * LARGE_ROUND) * 1000  # without set-up and end, which are once per party
    name = f"{what}: one more client and round, against {LARGE_ROUND:,} clients"
    print(line(name, each[LARGE], each[LARGE_ROUND], "CPU ms", 1.25), flush=True)


def units() -> None:
    """Unit costs of the federation itself, without training."""
    import torch

    from leakboard.defenses.base import mean
    from leakboard.defenses.fedsgd import FedSGD
    from leakboard.federation.rounds import Federation

    torch.set_num_threads(1)
    gradients = [{"w": torch.randn(PARAMETERS)} for _ in range(1000)]
    seconds = cpu_seconds(lambda: mean(gradients))
    print(
        f"mean of 1,000 gradients: {seconds:.3f} CPU s, {1e9 * seconds / 1000 / PARAMETERS:.1f} ns a value", flush=True
    )
    for clients in (1000, 10_000):
        order = {**order_of("fedsgd", clients, 1, observed=False), "participants": 10}
        public, before, started = _public(order), _resident(), time.process_time()
        federation = Federation(FedSGD(), public, {}, None, 0)
        seconds, each = time.process_time() - started, (_resident() - before) / len(federation.parties) / 1024
        print(f"{clients:,} parties: {seconds:.2f} CPU s, {each:.1f} KiB each", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_parts(parser, "rounds", "clients", "ratios", "units", "large")
    parser.add_argument("--defense", nargs="+", default=list(DEFENSES))
    parser.add_argument("--short", action="store_true", help="up to 100 rounds and 100 clients")
    parser.add_argument("--sizes", nargs="+", type=int, default=[], help="clients: these numbers of clients instead")
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="rounds, clients: hidden units of the mlp")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    most = 100 if given.short else 1000
    if given.one:
        print(json.dumps(measure(json.loads(given.one))))
        return
    parts = given.parts or ["rounds", "clients"]
    if "units" in parts:
        units()
    if "large" in parts:
        large()
    if "ratios" in parts:
        ratios(given.defense, most)
    tabled = [part for part in parts if part in ("rounds", "clients")]
    if tabled:
        table(tabled, given.defense, most, given.sizes, given.hidden)


if __name__ == "__main__":
    main()
