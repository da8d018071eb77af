"""Rules on deposits at their edges: what an honest one may say passes, a little more does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import beside_problems
import honest
from deposit_problems import made
from expunge.bounds.deposit_surrogate import softmax_bend
from expunge.bounds.scale import power_of_four
from expunge.certificate import rules as kept
from expunge.certificate.dossier import claim_of
from expunge.certificate.rules import ABOVE, KEPT, KEPT_WORDS, TRIED, USED, Rule, Stated
from expunge.certificate.verify import checks
from expunge.deposit.shape import GRID
from expunge.errors import ExpungeError
from expunge.unlearn import unlearn
from forging import changed

pytestmark = pytest.mark.usefixtures("one_thread")
RULES = {rule.name: rule for rule in (*KEPT_WORDS, *KEPT)}
Json = dict[str, Any]


@cache
def content(route: str) -> Json:
    made_of: dict[str, Callable[[], honest.Honest]] = {
        "long rows": lambda: honest.kept("softmax", l2=0.05, n=300),
        "range": lambda: honest.kept("softmax", 3, l2=1e-4, width=1, max_norm=1.0, n=120),
        "plain": lambda: honest.kept("softmax", 3, l2=0.01, n=60, noise="exact"),
        "exact": lambda: honest.kept("ridge"),
        "one-vs-rest": lambda: honest.kept("one-vs-rest", l2=0.3, n=300),
        "beside": lambda: honest.beside(1800, noise="exact"),
        "beside long rows": lambda: honest.beside(beside_problems.MANY),
    }
    return made_of[route]().certificate.content


def facts(route: str) -> dict[str, float]:
    return {name: fact["value"] for name, fact in content(route)["bound"]["inputs"].items()}


def holds(name: str, route: str, **changes: Any) -> bool:
    stated = changed(content(route), changes)
    check = RULES[name].check(Stated(stated, claim_of(stated)))
    assert check is not None
    return bool(check.passed)


def edge(name: str, route: str, fact: str, least: float | None = None, most: float | None = None) -> None:
    """The rule holds within, and not beyond."""
    for limit, inside in ((least, 1.0 + 1e-4), (most, 1.0 - 1e-4)):
        if limit is not None:
            assert holds(name, route, **{fact: limit * inside}), (name, fact, limit)
            assert not holds(name, route, **{fact: limit / inside}), (name, fact, limit)


def test_rules_are_of_deposits_alone_or_of_every_certificate() -> None:
    assert len(RULES) == len(KEPT) + len(KEPT_WORDS) == 26
    assert all(isinstance(rule, Rule) and rule.applies is not None for rule in KEPT)
    assert all(rule.applies is None for rule in KEPT_WORDS)


def test_the_shape_s_numbers() -> None:
    name, own = "the shape's numbers are those of one matrix", facts("long rows")
    edge(name, "long rows", "shape_inverse_trace", least=12 / own["shape_largest"], most=12 / own["shape_least"])
    assert holds(name, "long rows", shape_least=own["shape_largest"], shape_inverse_trace=12 / own["shape_largest"])
    name = "the shape is that of a regularised Hessian"
    edge(name, "long rows", "shape_least", least=0.05 / TRIED)
    for route, curve, l2 in (("long rows", 0.5, 0.05), ("one-vs-rest", 0.25, 0.3), ("exact", 1.0, 0.01)):
        most = (
            4.0 * TRIED * (curve * (facts(route)["row_bound"] + 2.0 * GRID) ** 2 + l2)
        )  # of three features and a bias
        largest = power_of_four(most) / 4.0  # no larger than that, and a power of four
        assert holds(name, route, shape_largest=largest)
        assert not holds(name, route, shape_largest=4.0 * largest)
        assert not holds(name, route, shape_largest=0.99 * largest)
    assert not holds(name, "long rows", shape_least=1e-9)
    assert holds(name, "long rows", shape_least=1e-9, **{"model.free_bias": True})


def test_how_far_rows_bend_at_least_where_they_are_measured_beside_a_deposit() -> None:
    own = facts("beside")
    assert content("beside")["bound"]["convention"] == "range"
    name = "the range route's matrix is the Hessian's, shrunk by its range"
    edge(name, "beside", "curvature_ratio", least=math.exp(own["reach"]))
    assert holds(name, "beside long rows", curvature_ratio=0.0)
    bent = softmax_bend(own["reach"], own["reach"] / math.sqrt(2.0))
    name = "some row bends as far as its reach lets it"
    edge(name, "beside", "change_supremum", least=bent * own["row_bound"] / math.sqrt(own["row_bound"] ** 2 / 2 + 1e-3))
    name = "a retained row bends as far as its reach lets it"
    edge(name, "beside", "change_each", least=bent * own["concordance"] / math.sqrt(2.0))
    assert holds(name, "beside", change_each=1e-9, change_supremum=1e-9)
    assert holds(name, "beside long rows", change_each=0.0)


def test_what_a_surrogate_beside_a_deposit_may_be() -> None:
    name = "surrogate rows beside a deposit are those that the bound counts"
    assert holds(name, "beside")
    assert not holds(name, "beside", **{"sizes.n_surrogate": 0})
    assert not holds(name, "plain", **{"sizes.n_surrogate": 1})
    name = "surrogate rows beside a deposit are at a declared distance"
    assert holds(name, "beside")
    assert not holds(name, "beside", **{"distance.provenance": "estimated"})
    name = "a deposit's step is Newton's, and with surrogate rows a converged one"
    assert holds(name, "beside")
    assert not holds(name, "beside", **{"step.kind": "newton"})
    assert not holds(name, "beside", **{"step.positive_definite": False})
    assert not holds(name, "plain", **{"step.kind": "converged"})


def test_the_shape_s_ratio() -> None:
    name = "rows that leave shrink the matrix by no more than their share"
    for route in ("range", "long rows"):
        own = facts(route)
        edge(name, route, "shape_ratio", least=own["shape_least"] / (0.5 * own["row_bound"] ** 2 + own["l2"]) / TRIED)
    largest = facts("plain")["shape_largest"]
    edge(name, "plain", "shape_ratio", least=largest / TRIED / 4.0, most=largest)


def test_the_reach() -> None:
    name = "the reach covers the update"
    for route in ("range", "plain"):
        edge(name, route, "update_curved", most=facts(route)["reach"])
    own = facts("long rows")
    edge(name, "long rows", "reach", most=own["kappa"] * own["gauge"])
    edge(name, "long rows", "update_curved", most=own["kappa"] * own["reach"])
    apart = facts("one-vs-rest")
    edge(name, "one-vs-rest", "update_curved", most=apart["kappa"] * math.sqrt(3.0) * apart["reach"])
    assert holds(name, "exact", reach=0.0)


def test_long_rows() -> None:
    name, own = "long rows weigh no more than kappa allows", facts("long rows")
    square = own["kappa"] ** 2
    edge(name, "long rows", "weight_ratio", most=TRIED * square * own["curvature_ratio"])
    edge(name, "long rows", "spread", least=own["curvature_ratio"] / TRIED / square)
    assert holds(name, "range", weight_ratio=1e9)


def test_what_the_step_left_and_what_float64_lost() -> None:
    for route in ("long rows", "plain", "exact"):
        own = facts(route)
        curve = 1.0 if route == "exact" else 0.5
        root = 1.0 if route == "plain" else math.sqrt(curve * own["row_bound"] ** 2 + own["l2"])
        residual = content(route)["step"]["residual"]
        if residual > 0.0:
            edge("the region charges what the step left", route, "solver", least=residual / root)
        lost = 2.0**-53 * own["row_bound"] * own["n_source"] / root
        edge("float64 rounds what was kept", route, "rounding", least=lost)


def test_the_grid_is_that_of_the_shape() -> None:
    assert kept.GRID == GRID


def test_what_noise_does_to_outputs() -> None:
    name = "noise moves outputs as far as its shape allows"
    for route, seen in (("long rows", 0.5), ("one-vs-rest", 1.0)):
        own = facts(route)
        farthest = (own["row_bound"] + 2.0 * GRID) / math.sqrt(own["shape_least"])
        edge(name, route, "output_noise", least=math.sqrt(seen / own["shape_largest"]), most=farthest)
    assert not holds(name, "long rows", output_noise=0.0)
    assert holds(name, "long rows", output_noise=1e-9, **{"model.bias": False})


def test_numbers_of_routes() -> None:
    name = "a route has its own numbers and no others"
    for route, used in USED.items():
        others = {other for names in USED.values() for other in names} - set(used)
        assert holds(name, route)
        for other in others:
            assert not holds(name, route, **{other: 1e-9})
        for own in set(used) & set(ABOVE):
            assert not holds(name, route, **{own: 0.0})


def test_a_fixed_c_and_levels() -> None:
    assert holds("l2 is that of the fixed C", "long rows")
    constant = 1.0 / (0.05 * 299)
    assert holds("l2 is that of the fixed C", "long rows", **{"model.fixed_c": constant})
    assert not holds("l2 is that of the fixed C", "long rows", **{"model.fixed_c": constant * (1 + 1e-8)})
    for count, fine in ((6, True), (5, False), (7, False), (0, False), (None, False)):
        assert _levels(count) is fine
    name = "only a deposit has levels of noise"
    for kind in ("exact", "policy"):
        assert holds(name, "long rows", **{"noise.choice": kind, "noise.rehearsed_rows": None})
    assert not _levels(6, sigma=content("long rows")["sigma"] * 2.0)
    assert _levels(6, sigma=content("long rows")["sigma"] * 4.0)


def _levels(count: Any, **more: Any) -> bool:
    try:
        return holds("only a deposit has levels of noise", "long rows", **{"noise.rehearsed_rows": count} | more)
    except ExpungeError:
        return False


def drawn(seed: int) -> list[str]:
    """The checks that an honest series of deletions fails: none."""
    rng = np.random.default_rng(seed)
    bias = bool(rng.random() < 0.7)
    case = made(
        str(rng.choice(["softmax", "logistic", "one-vs-rest", "ridge"])),
        n=int(rng.integers(20, 200)),
        width=int(rng.integers(1, 6)),
        classes=int(rng.integers(2, 6)),
        l2=float(10.0 ** rng.uniform(-6, 0)),
        bias=bias,
        free=bias and bool(rng.random() < 0.5),
        fixed_c=bool(rng.random() < 0.5),
        max_norm=float(10.0 ** rng.uniform(-2, 3)),
        seed=seed,
    )
    failed, deposit, start = [], case.deposit, 0
    for m in (1, 2, 5):
        which = np.arange(start, start + m)
        rows = case.X[which].astype(np.float32) if rng.random() < 0.3 else case.X[which]
        try:
            noise = "exact" if rng.random() < 0.7 else None
            settings: Json = {
                "epsilon": float(10.0 ** rng.uniform(-1, 0.5)),
                "delta": 1e-5,
                "noise": noise,
                "force": True,
            }
            found = unlearn(case.model, (rows, case.y[which]), deposit=deposit, **settings)
        except ExpungeError:
            continue
        deposit, start = found.deposit, start + m
        failed += [check.name for check in checks(found.certificate) if not check.passed]
    return failed


@pytest.mark.parametrize("seed", range(8))
def test_honest_deposits_break_no_rule(seed: int) -> None:
    assert drawn(seed) == []


@pytest.mark.slow
def test_hundreds_of_honest_deposits_break_no_rule() -> None:
    failed = []
    for seed in range(100, 400):
        try:
            failed += drawn(seed)
        except ExpungeError:  # no random row could be forgotten
            continue
    assert failed == []
