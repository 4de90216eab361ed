"""How many images does guessing identify, and when did an attack identify more?"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakboard.leaderboard.ranking.evidence import Evidence, gather
from leakboard.leaderboard.ranking.goals.reconstruction import ReconstructionRanking, guessed_share, identifies
from leakboard.leaderboard.ranking.intervals import clopper_pearson
from leakboard.leaderboard.records.record import Record
from leakboard.metrics.identified import identified
from leakboard.metrics.matching import match
from tests.leaderboard.synthetic import reconstruction


def records(attack: str, share: float, batch_size: int, batches: int = 8, psnr: float = 12.0) -> Record:
    """The same share of hits in every batch."""
    hits = [1.0] * round(share * batch_size) + [0.0] * (batch_size - round(share * batch_size))
    levels = [psnr + 0.1 * (i % 3) for i in range(batches)]
    values = [level for level in levels for _ in range(batch_size)]
    return reconstruction("d", attack, values, identified=hits * batches, batch_size=batch_size)


def evidence(attack: str, share: float, batch_size: int) -> Evidence:
    (found,) = gather([records(attack, share, batch_size)])
    return found


@pytest.mark.parametrize("guesses", [1, 4, 16])
def test_guessing_identifies_at_most_the_bound(guesses: int) -> None:
    """Images without any relation to the originals, matched to them as answers are; false alarms 2.5 %."""
    random, decoys, trials, hits = torch.Generator().manual_seed(3), 99, 0, 0.0
    for _ in range(600 // guesses):
        drawn = torch.rand(2 * guesses + decoys, 1, 4, 4, generator=random)
        answer, originals, others = drawn[:guesses], drawn[guesses : 2 * guesses], drawn[2 * guesses :]
        found = identified(answer[match(answer, originals)], originals, others)
        hits, trials = hits + float(found.sum()), trials + guesses
    assert clopper_pearson(hits, trials).low <= guesses / (decoys + 1)
    if guesses > 1:  # and one guess's chance would be too small a bound
        assert clopper_pearson(hits, trials).low > 1 / (decoys + 1)


def test_what_guesses_reach_on_the_same_targets_may_prove_less_than_the_bound() -> None:
    attack, random = evidence("inverting-gradients", 0.12, 64), evidence("prior", 0.03125, 64)
    assert 0.03125 < guessed_share(attack, [random]) < 0.07
    assert guessed_share(attack, []) == pytest.approx(min(1.0, 64 * clients(attack) / 1000))
    assert identifies(attack, [random])
    assert not identifies(evidence("inverting-gradients", 0.047, 64), [random])
    one = evidence("inverting-gradients", 1.0, 1)
    assert guessed_share(one, [evidence("prior", 0.0, 1)]) == pytest.approx(clients(one) / 1000)


def clients(found: Evidence) -> int:
    told = found.records[0].cell.training.training
    number = told.get("participants") or told.get("clients") or 1
    assert isinstance(number, int)
    return number


def test_a_guess_that_identifies_images_of_a_large_batch_is_no_attack() -> None:
    """The worst case is the guess itself, with 7 % of the images; the attack has 3 %."""
    ranking = ReconstructionRanking()
    row = ranking.row("d", gather([records("inverting-gradients", 0.03, 256, psnr=10), records("prior", 0.07, 256)]))
    assert row is not None
    assert row.reported.attack == "prior"
    assert not ranking.leaks(row)
    assert ranking.why_control_holds(row)


def test_an_attack_that_identifies_more_than_guesses_is_one() -> None:
    ranking = ReconstructionRanking()
    row = ranking.row("d", gather([records("inverting-gradients", 0.3, 256, psnr=10), records("prior", 0.07, 256)]))
    assert row is not None
    assert ranking.leaks(row)
    assert not ranking.why_control_holds(row)
    assert np.mean(row.reported.values["identified"]) == pytest.approx(0.3, abs=0.01)
