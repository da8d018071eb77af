"""Nothing of a forgotten person can be read back from what is left: read_back.py tries, and wins where it should.

Ranks of one person among others are uniform where an attack guesses, so that their sum is distributed as Irwin and Hall
say: the mean of so many is above `guessing` with a probability of about `FALSE_ALARM`, for each attack.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from expunge.deposit.forecast import traces_of
from expunge.heads import Rows as HeadRows
from games.read_back import ATTACKS, EXACT, FAINT, KINDS, Round, Seen, anchor_moves, begun, by_trained
from games.worlds import FALSE_ALARM

pytestmark = pytest.mark.usefixtures("one_thread")
FEW, MANY = 5, 24
ENOUGH, TIMES = {"one-hot": 16_000, "TF-IDF": 16_000, "digits": 32_000}, 12


@functools.cache
def guessing(rounds: int) -> float:
    """What the mean of so many uniform numbers exceeds so rarely."""

    def above(mean: float) -> float:
        rest = Fraction(rounds) * (1 - Fraction(mean))  # as often as the sum is below this: exact, since terms cancel
        terms = ((-1) ** k * math.comb(rounds, k) * (rest - k) ** rounds for k in range(math.floor(rest) + 1))
        return float(sum(terms) / math.factorial(rounds))

    return float(brentq(lambda mean: above(mean) - FALSE_ALARM, 0.5, 1.0))


def test_guessing_is_a_bound_that_attacks_can_exceed() -> None:
    assert guessing(1) == pytest.approx(1.0 - FALSE_ALARM, rel=1e-9)
    assert guessing(2) == pytest.approx(1.0 - math.sqrt(2.0 * FALSE_ALARM) / 2.0, rel=1e-9)
    assert guessing(MANY) < guessing(FEW) < 0.93


@functools.cache
def played(kind: str, rounds: int, design: str = "as it is") -> list[Round]:
    return [begun(kind, seed, design) for seed in range(rounds)]


def share(rounds: list[Round], name: str, *, known: bool, earlier: bool = False) -> float:
    return float(np.mean([each.rank(ATTACKS[name], known=known, earlier=earlier) for each in rounds]))


@pytest.mark.parametrize("known", [False, True], ids=["the deposit alone", "with all retained rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_back_from_what_is_left(kind: str, known: bool) -> None:
    shares = {name: share(played(kind, FEW), name, known=known) for name in [*EXACT, "gradient"]}
    assert max(shares.values()) <= guessing(FEW), shares


@pytest.mark.parametrize("kind", FAINT)
def test_rounding_names_nobody_in_a_column_that_others_hardly_have_anything_in(kind: str) -> None:
    """All digits that are left there would be of rounding, and of what the person had beside it."""
    rounds = [begun(kind, seed, rows=600) for seed in range(FEW)]
    assert max(share(rounds, name, known=True) for name in EXACT) <= guessing(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["the deposit alone", "with all retained rows"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_back_in_many_rounds(kind: str, known: bool) -> None:
    shares = {name: share(played(kind, MANY), name, known=known) for name in EXACT}
    assert max(shares.values()) <= guessing(MANY), shares


# So that the attacks can win ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_deposit_from_before_gives_everybody_away(kind: str) -> None:
    rounds = played(kind, FEW)
    assert share(rounds, "hashes", known=False, earlier=True) == 1.0
    assert share(rounds, "counts", known=True, earlier=True) > 0.99


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "outlier"])
def test_an_anchor_at_the_optimum_gives_them_away(kind: str) -> None:
    """Gradient and l2 w together are the row. (An outlier that the model was sure of has hardly a part in either.)"""
    rounds = played(kind, 2, "an anchor without noise")
    assert share(rounds, "gradient", known=False) > 0.99
    assert share(rounds, "anchor", known=False) > 0.99


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "outlier"])
def test_the_trained_model_gives_them_away_beside_what_is_left(kind: str) -> None:
    """The anchor's noise hides where the optimum was; whoever has the model as it was trained needs no anchor."""
    for each in played(kind, 2):
        scores = by_trained(Seen(each.after, each.model, None), each.people, each.trained)
        assert each.rank_by(scores) > 0.99
        assert scores[each.who] > 0.7


def test_all_digits_of_the_sums_give_them_away() -> None:
    """Pairs of words that nobody else had together are left as rounding; errors have the length of who left in them."""
    assert share(played("TF-IDF", 3, "all digits"), "rounding", known=False) > 0.99
    for kind in ("outlier", "ridge outlier"):
        assert share(played(kind, 3, "all digits"), "errors", known=True) > 0.95


def let_through(each: Round) -> float:
    """The share of the others that the best test ranks the right one above, on average over the noise."""
    moves = anchor_moves(Seen(each.after, each.model, None), each.people)[1]
    apart = np.linalg.norm(np.delete(moves, each.who, axis=0) - moves[each.who], axis=1)
    return float(norm.cdf(apart / 2.0).mean())


# What has noise, and how much it hides ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_anchor_tells_no_more_than_its_noise_lets_through(kind: str) -> None:
    """The best test of Gaussian noise ranks somebody above another with `Phi(r/2)`, r deviations apart."""
    rounds = played(kind, MANY)
    expected = [let_through(each) for each in rounds]
    found = share(rounds, "anchor", known=True)
    print(f"{kind}: {found:.2f}, {np.mean(expected):.2f} expected")
    assert found <= np.mean(expected) - float(norm.ppf(FALSE_ALARM)) / math.sqrt(12.0 * MANY)
    assert np.mean(expected) < 0.97


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ridge outlier"])
def test_a_gauge_tells_no_more_than_one_deviation_lets_through(kind: str) -> None:
    found = share(played(kind, MANY), "gauge", known=True)
    assert found <= norm.cdf(1.0 / math.sqrt(2.0)) - float(norm.ppf(FALSE_ALARM)) / math.sqrt(12.0 * MANY)


@functools.cache
def enough(kind: str) -> list[Round]:
    """Sources as large as people have: with fewer rows there is no room for so much noise, and `traces_of` says so."""
    return [begun(kind, seed, rows=ENOUGH[kind]) for seed in range(TIMES)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENOUGH)
def test_the_anchor_is_no_better_than_guessing(kind: str) -> None:
    """Neither when it is played, nor by what its noise could let through at best."""
    rounds = enough(kind)
    assert share(rounds, "anchor", known=True) <= guessing(TIMES)
    assert np.mean([let_through(each) for each in rounds]) < 0.67


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["one-hot", "TF-IDF", "digits"])
def test_what_is_said_of_the_anchor_is_what_its_noise_lets_through(kind: str) -> None:
    """Of ordinary people, drawn from the source: told when the deposit is made, and found by the attack's own moves."""
    each = begun(kind, 0)
    features, labels = each.retained
    told = traces_of(each.before, HeadRows(features, labels))
    some = np.random.default_rng(5).choice(len(labels), 150, replace=False)
    moves = anchor_moves(Seen(each.before, each.model, None), (features[some], labels[some]))[1]
    apart = np.linalg.norm(moves[:, None] - moves[None], axis=2)
    expected = (norm.cdf(apart / 2.0).sum(axis=1) - 0.5) / (len(some) - 1)
    assert told is not None
    assert told[0] == pytest.approx(expected.mean(), abs=0.03)
    assert told[1] == pytest.approx(np.quantile(expected, 0.95), abs=0.05)


@pytest.mark.slow
def test_the_script_prints_a_line_for_each_attack() -> None:
    script = Path(__file__).parent / "read_back.py"
    ran = subprocess.run([sys.executable, script, "1"], capture_output=True, text=True, check=True, env=os.environ)
    lines = ran.stdout.splitlines()
    assert len(lines) == len(KINDS) * len(ATTACKS) * 3
