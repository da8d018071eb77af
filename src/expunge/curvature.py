"""Evidence from a surrogate whose own curvature stands in the place of l2 (bounds/curvature.py has the formulas).

Lengths are measured by `M <= kappa (E_S[e^(-t_i) h_i] + l2 I)`, h_i a row's Hessian at the updated weights, t_i an
exponent that covers how far self-concordance lets the row flatten within the reach x: `t_i >= c_i x`, with c_i its
largest range of outputs for an e of length 1 in M. M and c_i hang on one another, so both are found by trying, and in
the end every row is checked: the reach is what the exponents allow, the least `t_i / c_i`.

M is made of the very rows whose changes of gradient it then measures, which makes them look shorter than new ones. So
each is measured by the M of the others.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from expunge.bounds.curvature import (
    EVIDENCE_SHARE,
    MOST_TRIES,
    CurvatureFacts,
    declared_by,
    gradient_bound,
    ratio_of_halves,
)
from expunge.bounds.ellipsoid import Ellipsoid
from expunge.certificate.claim import Fact, curvature_failures, retained_facts
from expunge.deposit.file import KNOWN_HEADS
from expunge.deposit.matrices import (
    UNIT_ROUNDOFF,
    Blocks,
    Norm,
    cholesky_error,
    ellipsoid_by,
    factored,
    inverse_of,
)
from expunge.deposit.sums import is_joint, means_of
from expunge.errors import OptionError, VacuousClaim
from expunge.evidence import Retained
from expunge.heads import LinearHead, Ridge, Rows
from expunge.heads.rows import in_memory
from expunge.request.promise import AUTO
from expunge.runtime.arrays import Array, add_to_diagonal, double, namespace, norm, put, zeros
from expunge.solve.linear import EIGENVALUE_SLACK, SAMPLING_SLACK, Step, lanczos, largest_eigenvalue_upper
from expunge.surrogate import ONE_HALF, Moments, SurrogateEvidence, require_seen
from expunge.train import minimise

SPLITS = 20  # of the surrogate into halves, whose curvatures are compared
HALVES_STEPS = 24  # of Lanczos' iteration for each
GROWTH = 1.2  # exponents beyond what the last radius needed
FAR = 50.0  # the mean exponent from which no region will be found
BEYOND = 0.05  # of delta: how often a deviation may be beyond the reach
MOST_WEIGHTS = 6_000  # rows of a block: matrices of this size are formed and factorised many times
SHAPE_TOLERANCE = 1e-6  # of the training that the noise's shape is taken at: any shape is sound
UP = 1.0 + 2.0**-20  # for the float64 arithmetic of one number
LARGEST_REACH = 1e100  # of rows that do not flatten
AT_ONCE = 1 << 22  # numbers in memory while rows are gone over


@dataclass(frozen=True)
class RowForms:
    """`(a outer x)' M^-1 (b outer x)` of rows x: K x K numbers a row where classes compete, else one for each block.

    `slack` bounds what float64 made of their roots.
    """

    inverse: Array
    joint: bool
    slack: float

    @classmethod
    def of(cls, by: Norm) -> RowForms | None:
        """None where the inverse is too far off to tell."""
        xp = namespace(by.factor)
        factors = [inverse_of(each) for each in by.factor]
        off = max(norm(one @ other - xp.eye(len(one))) for one, other in zip(factors, by.factor, strict=True))
        off += 4.0 * (by.matrix.size + 4) * UNIT_ROUNDOFF * max(norm(each) ** 2 for each in factors) * by.matrix.trace
        off += cholesky_error(by.matrix) / max(by.least, 1e-300)
        if not off < 1e-2:
            return None
        return cls(xp.stack([each.T @ each for each in factors]), by.matrix.joint, (1.0 + off) ** 2 * UP)

    def __call__(self, features: Array) -> Array:
        xp, width = namespace(features), features.shape[1]
        if not self.joint:
            return xp.stack([((features @ each) * features).sum(axis=1) for each in self.inverse], axis=1)
        classes = self.inverse.shape[1] // width
        made = zeros(features, (len(features), classes, classes))
        blocks = self.inverse[0].reshape(classes, width, classes, width)
        for one in range(classes):
            for other in range(one, classes):
                values = ((features @ blocks[one, :, other, :]) * features).sum(axis=1)
                made[:, one, other] = made[:, other, one] = values
        return made


@dataclass(frozen=True)
class RowLengths:
    """Rows in a norm: c_i, how long their changes of gradient are, and how many times as long by the other rows' M."""

    concordance: Array
    lengths: Array
    longer: Array


@dataclass(frozen=True)
class CurvedRows:
    """Rows in memory at weights w and an update u of them: predictions after it, and changes of gradient."""

    head: LinearHead
    weights: Array
    update: Array
    rows: Rows

    @cached_property
    def updated(self) -> Array:
        return self.weights + self.update

    @cached_property
    def features(self) -> Array:
        return double(self.rows.features)

    @cached_property
    def shares(self) -> Array:
        """How much each row counts; 1 in the mean."""
        weights = self.rows.weights
        return zeros(self.features, (len(self.rows),)) + 1.0 if weights is None else double(weights)

    @cached_property
    def predicted(self) -> Array:
        """Predictions after the update, rows x K, from which each row's C(p) follows."""
        return self.head.predictions(self.features @ self.updated.T)

    @cached_property
    def changes(self) -> Array:
        """`link((W+U) x) - link(W x)`, rows x K."""
        return self.head.change(self.weights, self.update, self.features)

    def norm(self, kappa: float, exponents: Array | None = None) -> Norm | None:
        """M, rounded down; what is common to classes that compete, along which nothing moves, is made stiff."""
        head, xp, count = self.head, namespace(self.features), len(self.rows)
        shares = self.shares if exponents is None else self.shares * xp.exp(-exponents)
        matrix = means_of(head, self.updated, Rows(self.features, self.rows.labels, shares)).curvatures[0]
        squares = float((xp.square(self.features).sum(axis=1) * self.shares).sum()) / count
        lost = 2.0 * UNIT_ROUNDOFF * (count + head.n_features + 64) * squares
        lost *= 1.0 + norm(self.updated) * head.row_bound
        return Norm.of(stiffened(matrix.plus(head.l2 / UP - lost).times(kappa / UP), head))

    def lengths(self, by: Norm, kappa: float, exponents: Array) -> RowLengths | None:
        """Each row in a norm that was made with these exponents; None where float64 does not tell."""
        forms, xp = RowForms.of(by), namespace(self.features)
        if forms is None:
            return None
        step = max(16, AT_ONCE // max(self.features.shape[1], len(self.updated) ** 2))
        starts = range(0, len(self.rows), step)
        parts = [self._lengths(slice(start, start + step), forms, kappa, exponents) for start in starts]
        return RowLengths(*map(xp.concat, zip(*parts, strict=True)))

    def _lengths(self, part: slice, forms: RowForms, kappa: float, exponents: Array) -> tuple[Array, Array, Array]:
        xp, head, values = namespace(self.features), self.head, forms(self.features[part])
        changes, predicted = self.changes[part], self.predicted[part]
        own = kappa * self.shares[part] * xp.exp(-exponents[part]) / len(self.rows)  # what M has of the row itself
        if is_joint(head):
            diagonal = xp.linalg.diagonal(values)
            widest = (diagonal[:, :, None] + diagonal[:, None, :] - 2.0 * values).max(axis=(1, 2))
            bent = predicted[:, :, None] * values - predicted[:, :, None] * (predicted[:, None, :] @ values)
            without = add_to_diagonal(-own[:, None, None] * bent, 1.0)
            images = values @ changes[:, :, None], values @ xp.linalg.solve(without, changes[:, :, None])
            squares, others = ((changes[:, :, None] * each).sum(axis=(1, 2)) for each in images)
        else:
            slopes = 1.0 if isinstance(head, Ridge) else predicted * (1.0 - predicted)
            widest = values.max(axis=1)
            each = xp.square(changes) * values
            squares = each.sum(axis=1)
            others = (each / xp.clip(1.0 - own[:, None] * slopes * values, min=1e-12)).sum(axis=1)
        squares = xp.clip(squares, min=0.0)
        longer = xp.sqrt(xp.clip(others / xp.clip(squares, min=1e-300), min=1.0))
        return xp.sqrt(xp.clip(widest, min=0.0)) * forms.slack, xp.sqrt(squares) * forms.slack, longer

    def moments(
        self, by: Norm, lengths: RowLengths, failure: float | None, slack: float, generator: np.random.Generator
    ) -> Moments:
        """All that the bound needs of the changes of gradient, in `M^-1`, each as long as by the M of the others.

        The largest eigenvalue exceeds its bound with probability at most `failure`; None where it is not needed.
        """
        xp, head, least, count = namespace(self.features), self.head, by.least, len(self.rows)
        error = 2.0 * math.sqrt(head.n_classes) * (head.n_features + 64) * UNIT_ROUNDOFF * head.row_bound
        error *= (1.0 + norm(self.updated) * head.row_bound) / math.sqrt(least)  # what float64 made of a row's
        supremum = head.change_sup(self.update) / math.sqrt(least) * UP + error
        longest = xp.clip(lengths.lengths * lengths.longer * UP + error, max=supremum)
        squares = xp.square(longest) * self.shares
        trace, sampled = (float((squares * each).sum()) / count * UP for each in (1.0, self.shares))
        mean = (self.changes * self.shares[:, None]).T @ self.features / count
        off, most = by.dual(mean) + error, float(longest.max())
        trace = max(0.0, trace - max(0.0, off / UP - 2.0 * error) ** 2)  # about the mean
        eigenvalue = trace
        if failure is not None and trace > 0.0:
            heavy = (self.shares * xp.square(lengths.longer))[:, None]

            def product(columns: Array) -> Array:
                along = by.matrix.from_columns(by.other_half(columns), self.updated)
                each = ((self.features @ along.T) * self.changes).sum(axis=1)[:, None]
                image = (self.changes * (each * heavy)).T @ self.features / count
                return by.half(by.matrix.columns(image - mean * float((mean * along).sum())))

            start = put(generator.standard_normal(self.updated.shape), self.updated)
            found = largest_eigenvalue_upper(product, by.matrix.columns(start), failure, None, slack)
            eigenvalue = min(trace, (math.sqrt(found * UP) + error) ** 2)
        about, weight = most + off, self.rows.largest_weight
        return Moments(
            change_mean=off,
            change_eigenvalue=eigenvalue,
            change_trace=trace,
            change_fourth=about**2 * trace,
            change_fourth_eigenvalue=about**2 * eigenvalue,
            change_largest=about,
            change_longest=most,
            change_supremum=supremum,
            longest_row=math.sqrt(float(xp.square(self.features).sum(axis=1).max())),
            sampled_trace=sampled,
            sampled_eigenvalue=min(sampled, weight * (eigenvalue + off**2)),
            sampled_largest=weight * about,
        )

    def ratio_of_halves(self, generator: np.random.Generator) -> float:
        """The smallest ratio of the Hessians of two random halves, regulariser included, over `SPLITS` splits.

        With H that of all rows, halves have `H^(1/2) (1 +- E) H^(1/2)`. It is evidence and no bound: the eigenvalues
        are Lanczos' own.
        """
        whole, count, widest = self.norm(1.0), len(self.rows), 0.0
        if whole is None:
            return 0.0
        for _ in range(SPLITS):
            signs = np.ones(count)
            signs[generator.permutation(count)[: count // 2]] = -1.0
            shares = (put(signs, self.features) * self.shares)[:, None]

            def product(columns: Array, shares: Array = shares) -> Array:
                along = whole.matrix.from_columns(whole.other_half(columns), self.updated)
                curved = self.head.curve(self.predicted.T, along @ self.features.T).T * shares
                return whole.half(whole.matrix.columns(curved.T @ self.features / count))

            start = whole.matrix.columns(put(generator.standard_normal(self.updated.shape), self.updated))
            steps = min(HALVES_STEPS, self.head.n_parameters)
            square, _ = lanczos(lambda columns: product(product(columns)), start, steps)
            widest = max(widest, math.sqrt(max(0.0, square)))
        return ratio_of_halves(widest)


def stiffened(matrix: Blocks, head: LinearHead) -> Blocks:
    """With what is common to all classes made as stiff as the rest is in the mean, where classes compete."""
    if not is_joint(head):
        return matrix
    classes, width = head.n_classes, head.n_features
    xp, stiff = namespace(matrix.values), float(matrix.diagonal.mean())
    pairs = xp.permute_dims(matrix.values.reshape(classes, width, classes, width), (0, 2, 1, 3))
    add_to_diagonal(pairs, stiff / classes)
    return matrix


def centred(weights: Array, head: LinearHead) -> Array:
    """Weights without what is common to all classes, where these compete: the loss does not see it."""
    return weights - weights.mean(axis=0) if is_joint(head) else weights


@dataclass(frozen=True)
class CurvedNorm:
    """M, the rows' lengths in it, and the reach that the exponents it was made with allow."""

    by: Norm
    lengths: RowLengths
    reach: float


def closed_norm(rows: CurvedRows, kappa: float, radius: Callable[[CurvedNorm], float]) -> CurvedNorm | None:
    """An M whose reach is at least the radius that follows from it; None where none was found."""
    exponents = zeros(rows.shares)
    for _ in range(MOST_TRIES):
        by = rows.norm(kappa, exponents)
        lengths = None if by is None or by.least <= 0.0 else rows.lengths(by, kappa, exponents)
        if by is None or lengths is None:
            return None
        found = CurvedNorm(by, lengths, reach_of(rows.head, exponents, lengths.concordance))
        needed = radius(found)
        if needed <= found.reach:
            return found
        exponents = lengths.concordance * (GROWTH * min(needed, LARGEST_REACH))
        if not float(exponents.mean()) < FAR:
            return None
    return None


def reach_of(head: LinearHead, exponents: Array, concordance: Array) -> float:
    """x: the least `t_i / c_i`, rounded down; of least squares, which do not flatten, any."""
    if isinstance(head, Ridge):
        return LARGEST_REACH
    ratios = namespace(exponents).where(concordance > 0.0, exponents, LARGEST_REACH)
    ratios = ratios / namespace(exponents).where(concordance > 0.0, concordance, 1.0)
    return min(LARGEST_REACH, float(ratios.min()) / UP)


class CurvedEvidence(SurrogateEvidence):
    """Rows that resemble the source, which is gone, and whose curvature the retained rows are declared to share."""

    def step(self) -> Step:
        """As with any surrogate; where classes compete, the weights that it leads to are centred."""
        return self._centred

    def facts(self, step: Step, *, quick: bool = False) -> dict[str, Fact]:
        """The residual bound's numbers with the changes of gradient in `M^-1`, M's own, and those of the noise's
        shape."""
        (found, moments, known), shape, rows = self._closed, self._shape, self._rows
        if self._distance.samples_rows:
            self._require_seen(found)
        facts = self._residual_facts(step, moments, self.failures().get("sampling", 0.0) / MOST_TRIES)
        numbers = {
            "curvature_seen": self._ratio,
            "curvature_least": known.least,
            "curvature_reach": known.reach,
            "shape_ratio": known.shape_ratio,
            "shape_largest": shape.largest,
            "shape_least": shape.least,
            "shape_inverse_trace": shape.inverse_trace,
            "weights_length": known.weights,
            "output_noise": self._output_noise,
            "output_spread": norm(rows.features @ centred(rows.updated, rows.head).T)
            / math.sqrt(rows.head.n_classes * len(rows.rows)),
        }
        measured = {name: Fact(value, "measured") for name, value in numbers.items()}
        return facts | {"curvature": Fact(self._kappa, "declared")} | measured

    def failures(self) -> dict[str, float]:
        promise = self.request.promise
        planned = 1 if promise.series is None else promise.series.planned
        return curvature_failures(promise.delta, self._distance, averaged=promise.averaged, planned=planned)

    def retained(self) -> Retained:
        """The rows given stand for the retained ones, and the noise has its shape from them."""
        return Retained(self._distance, shape=self._shape)

    @cached_property
    def _generator(self) -> np.random.Generator:
        """What splits and Lanczos' starts are drawn by."""
        return np.random.default_rng(secrets.randbits(63) if self.seed is None else self.seed)

    @cached_property
    def _centred(self) -> Step:
        request, step = self.request, self._step
        update = centred(request.weights + step.update, request.head) - request.weights
        left = centred(self.retained_equation.residual(update), request.head)
        return replace(step, update=update, residual=norm(left))

    @cached_property
    def _rows(self) -> CurvedRows:
        request = self.request
        rows = in_memory(request.surrogate, "lengths measured by a surrogate's curvature")
        return CurvedRows(request.head, request.weights, self._centred.update, rows)

    @cached_property
    def _ratio(self) -> float:
        return self._rows.ratio_of_halves(self._generator)

    @cached_property
    def _kappa(self) -> float:
        """What is declared; refuses a number that the surrogate itself speaks against."""
        wanted, most = self.request.promise.curvature, declared_by(self._ratio)
        declared = most if wanted == AUTO or wanted is None else float(wanted)
        if 0.0 < declared <= EVIDENCE_SHARE * self._ratio:
            return declared
        raise VacuousClaim(
            f"curvature {wanted}, and halves of the surrogate of which one curves the loss {self._ratio:.2g} times as "
            "much as the other",
            "half of that is the most that can be declared of the retained rows",
            f"Use --curvature {most:g} (curvature={most:g}) or a larger surrogate."
            if most > 0.0
            else "Use a larger surrogate, a larger l2 next time, or --curvature none (curvature='none').",
        )

    @cached_property
    def _shape(self) -> Ellipsoid:
        """The shape of the noise: the Hessian of a model trained on the surrogate alone, which knows of nobody who
        left."""
        head, rows = self.request.head, replace(self._rows.rows, weights=None)  # weights know who left
        start = zeros(self.request.weights)
        optimum = start if isinstance(head, Ridge) else minimise(head, rows, tolerance=SHAPE_TOLERANCE)
        matrix = means_of(head, optimum, Rows(self._rows.features, rows.labels)).curvatures[0].plus(head.l2)
        factor = factored(stiffened(matrix, head))
        made = None if factor is None else ellipsoid_by(factor, head.n_parameters)
        if made is None:
            raise VacuousClaim(
                "the surrogate's curvature is not positive definite, as far as float64 can tell",
                "the noise takes its shape from it",
                "Use --curvature none (curvature='none'), or a larger l2 next time.",
            )
        return replace(made, weights=norm(self._rows.updated) * UP)

    @property
    def _output_noise(self) -> float:
        """The deviation that noise of scale 1 has on an output of a typical row."""
        rows, shape = self._rows, self._shape
        assert shape.factors is not None
        inverses = [inverse_of(factor) for factor in shape.factors]
        forms = RowForms(put(np.stack([each.T @ each for each in inverses]), rows.features), is_joint(rows.head), 1.0)
        values = forms(rows.features)
        squares = namespace(values).linalg.diagonal(values) if is_joint(rows.head) else values
        return math.sqrt(float(squares.mean()))

    @cached_property
    def _closed(self) -> tuple[CurvedNorm, Moments, CurvatureFacts]:
        """M with its reach, and the moments measured in it; refuses where none was found."""
        rows, failures, distance, promise = self._rows, self.failures(), self._distance, self.request.promise
        slack = EIGENVALUE_SLACK if distance.law.uses_deviation else SAMPLING_SLACK
        each = failures["eigenvalue"] / MOST_TRIES if "eigenvalue" in failures else None
        made: list[tuple[Moments, CurvatureFacts]] = []

        def radius(found: CurvedNorm) -> float:
            moments = rows.moments(found.by, found.lengths, each, slack, self._generator)
            known = retained_facts(
                self._residual_facts(self._centred, moments, failures.get("sampling", 0.0) / MOST_TRIES)
            )
            shape = self._shape
            facts = CurvatureFacts(known, found.by.least, found.reach, 1.0, shape.largest, shape.weights)
            made.append((moments, facts))
            return gradient_bound(facts, distance, averaged=promise.averaged).held(BEYOND * promise.delta).radius

        found = closed_norm(rows, self._kappa, radius)
        if found is not None:
            moments, facts = made[-1]
            return found, moments, replace(facts, shape_ratio=self._shape_ratio(found.by))
        raise VacuousClaim(
            "no region is finite: the rows could flatten within the distance that the gradient allows",
            "the surrogate's curvature has to hold as far as the retrained weights can be",
            "Forget fewer rows at once, use a larger surrogate, --sampling within:2 if it is true, or train with a "
            "larger l2 next time.",
        )

    def _shape_ratio(self, by: Norm) -> float:
        """`lambda_max(M^-1 M_0)`, rounded up."""
        factor = put(self._shape.factors, by.factor)
        square = factor @ factor.mT
        return by.most(Blocks(square, by.matrix.joint), cholesky_error(Blocks(square, by.matrix.joint)))

    def _require_seen(self, found: CurvedNorm) -> None:
        """Refuse `seen` and `within` where the rows at hand break it, lengths being those in `M^-1`."""
        distance, request, xp = self._distance, self.request, namespace(self._rows.features)
        if distance.counts_unlike and not distance.within:
            return
        forget = CurvedRows(request.head, request.weights, self._centred.update, request.forget)
        gone = forget.lengths(found.by, 0.0, zeros(forget.shares))
        assert gone is not None  # as the surrogate's own were
        longest = xp.sort(found.lengths.lengths * found.lengths.longer)[-ONE_HALF:].tolist()[::-1]
        require_seen(distance, float(gone.lengths.max()), longest if distance.within else longest[:1])


def require_curved(head: Any, rows: Any, labelled: bool) -> None:
    """Refuse losses from outside, whose rows may flatten otherwise, heads too large to factorise, and rows without
    labels or not in memory."""
    if type(head) not in KNOWN_HEADS:
        raise OptionError(
            f"curvature with loss {head.about.name!r}",
            f"how fast rows flatten is known of {', '.join(sorted(known.about.name for known in KNOWN_HEADS))}",
            "Use --curvature none (curvature='none').",
        )
    size = head.n_parameters if is_joint(head) else head.n_features
    if size > MOST_WEIGHTS:
        raise OptionError(
            f"curvature of {size:,} weights that hang together",
            f"up to {MOST_WEIGHTS:,} are factorised",
            "Use --curvature none (curvature='none'), or fewer features.",
        )
    in_memory(rows, "lengths measured by a surrogate's curvature")
    if not labelled:
        raise OptionError(
            "curvature with a surrogate that has no labels",
            "the noise takes its shape from a model that is trained on the surrogate",
            "Give labels, or use --curvature none (curvature='none').",
        )
