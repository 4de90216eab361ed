"""What could the server see? Attack the first and the last recorded round, and look at the pictures."""

from __future__ import annotations

import sys

from digits_app import RATE, digits, network

import leakboard as lb

folder = sys.argv[1] if len(sys.argv) > 1 else "recording"
view = lb.load_view(folder)
rounds = [observation.context for observation in view.observations]
print(f"{len(rounds)} rounds of {len(rounds[0].participants)} clients in {folder}")
for seen in (rounds[0], rounds[-1]):
    found = lb.attack(
        "inverting-gradients",
        model=network(),
        transcript=view,
        round=seen.round,
        client=seen.participants[0],
        learning_rate=RATE,
        auxiliary=digits(slice(1500, None)),  # digits that no client has
        params={"iterations": 300, "tv": 0.01},
    )
    path = found.save(f"{folder}/round-{seen.round}.png")
    print(f"round {seen.round}: labels {found.labels.tolist()}, matching cost {found.cost:.3f}, {path}")
