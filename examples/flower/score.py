"""How good are the pictures? PSNR against the clients' true digits, which no attacker has.

    python score.py FOLDER

Flower draws the numbers of its nodes, so a client is taken for the one whose digits fit its update better.
"""

from __future__ import annotations

import sys

from digits_app import BATCH, RATE, digits, network

import leakboard as lb
from leakboard.metrics.matching import match
from leakboard.metrics.psnr import psnr

view, auxiliary = lb.load_view(sys.argv[1]), digits(slice(1500, None))
for seen in (view.observations[0].context, view.observations[-1].context):
    for client in seen.participants:
        found = lb.attack(
            "inverting-gradients",
            model=network(),
            transcript=view,
            round=seen.round,
            client=client,
            learning_rate=RATE,
            auxiliary=auxiliary,
            params={"iterations": 300, "tv": 0.01},
        )
        scores = []
        for part in (0, 1):
            first = 1000 * part + BATCH * seen.round
            truth, labels = digits(slice(first, first + BATCH))
            floor = float(psnr(auxiliary[0].mean(0, keepdim=True).expand_as(truth), truth).mean())
            reached = float(psnr(found.images[match(found.images, truth)], truth).mean())
            scores.append((reached, floor, found.labels.tolist() == sorted(labels.tolist())))
        reached, floor, right = max(scores)
        print(f"round {seen.round}: PSNR {reached:.1f} dB, mean auxiliary image {floor:.1f} dB, labels right: {right}")
