"""Try to read a forgotten person back: `python tests/games/read_back.py` prints how far each attack gets.

Somebody rare leaves a deposit. The attacker has the file of what is left of it, the statement and the published model,
at first without and then with every retained row, and a list of 200 people of whom one has left, each as rare. An
attack gives each of them a score; what counts is how many of the others it puts below the right one: half of them where
it only guesses. Two parts of a deposit have noise that was drawn when it was made: those attacks are the likelihood
ratios of that noise, which nothing beats, and `deviations` says how far the right one moved them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sklearn.datasets import load_digits

from expunge.runtime import arrays as engine

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from expunge.deposit.file import Deposit, parse_deposit
from expunge.deposit.make import optimum
from expunge.deposit.matrices import UNIT_ROUNDOFF, Norm, gram_of, rested
from expunge.deposit.membership import remove_rows
from expunge.deposit.sums import CURVATURE_SIZE, GAUGE_MU, sums_of, threes
from expunge.door import ask
from expunge.heads import Ridge
from expunge.heads import Rows as HeadRows
from expunge.request.promise import Promise
from expunge.rows.hashes import hash_rows
from games.worlds import Rows, joined, kept_of

PEOPLE, ROWS = 200, 2_000
KINDS = ("one-hot", "TF-IDF", "outlier", "ridge outlier", "digits")
FAINT = ("faint column", "ridge faint column")  # besides these: what all others have there is nearly nothing
TINY = 2.0**-30  # of what its features have by themselves: an entry that is nothing but rounding
Array = np.ndarray


# Rare people -----------------------------------------------------------------------------------------------------------


def people_of(kind: str, seed: int, rows: int | None = None) -> tuple[str, Rows, Rows]:
    """The loss, the retained rows (so many, or a few), and the list of people."""
    generator, count = np.random.default_rng(seed), ROWS if rows is None else rows
    if kind == "digits" and rows is not None:
        return "softmax", *_coarse_digits(generator, count)
    if kind == "digits":
        features, labels = load_digits(return_X_y=True)
        features = features / np.linalg.norm(features, axis=1, keepdims=True)
        order = generator.permutation(len(features))
        first, rest = order[:1500], order[1500 : 1500 + PEOPLE]
        return "softmax", (features[first], labels[first]), (features[rest], labels[rest])
    make = {"one-hot": _one_hot, "TF-IDF": _words, **dict.fromkeys(FAINT, _faint)}.get(kind, _outliers)
    retained, people = make(generator, count)
    weights = generator.normal(size=retained.shape[1]) * (5.0 if kind == "TF-IDF" else 1.0)

    def labelled(features: Array) -> Rows:
        return features, (features @ weights + generator.logistic(size=len(features)) > 0.0).astype(np.int64)

    return "ridge" if kind.startswith("ridge") else "logistic", labelled(retained), labelled(people)


def _one_hot(generator: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Two categories that many share, one that is a person's own, and five numbers."""
    common, own = 10, 40

    def made(count: int, values: Array) -> Array:
        features = np.zeros((count, 2 * common + own + 15 + 5))
        features[np.arange(count), generator.integers(0, common, count)] = 1.0
        features[np.arange(count), common + generator.integers(0, common, count)] = 1.0
        features[np.arange(count), 2 * common + values] = 1.0
        features[:, -5:] = generator.normal(size=(count, 5))
        return features

    return made(rows, own + generator.integers(0, 15, rows)), made(PEOPLE, np.arange(PEOPLE) % own)


def _words(generator: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Fifteen words of a hundred (of forty in many rows), rare ones weighing more, and one that is a person's own."""
    words = 100 if rows <= ROWS else 40
    chances = 1.0 / np.arange(3, 3 + words)
    chances /= chances.sum()

    def made(count: int, *, own: bool) -> Array:
        features = np.zeros((count, words + 20))
        for row in features:
            np.add.at(row, generator.choice(words, size=15, p=chances), 1.0)
        features[:, :words] *= -np.log(chances)
        if own:
            features[np.arange(count), words + np.arange(count) % 20] = 8.0
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    return made(rows, own=False), made(PEOPLE, own=True)


def _outliers(generator: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Standardised rows, and people with one value far out."""
    retained, people = generator.normal(size=(rows, 12)), generator.normal(size=(PEOPLE, 12))
    people[np.arange(PEOPLE), generator.integers(0, 12, PEOPLE)] = generator.choice([-1, 1], PEOPLE) * 20.0
    return retained, people


def _faint(generator: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Five categories, and a column that is 1 for these people and next to nothing for all others."""

    def made(count: int) -> Array:
        features = np.zeros((count, 31))
        for first in range(0, 30, 6):
            features[np.arange(count), first + generator.integers(0, 6, count)] = 1.0
        features[:, 30] = 1e-7 * generator.normal(size=count)
        return features

    retained, people = made(rows), made(PEOPLE)
    people[:, 30] = 1.0
    return retained, people


def _coarse_digits(generator: np.random.Generator, rows: int) -> tuple[Rows, Rows]:
    """Any number of digits: those there are, moved by up to a pixel, with noise, of 4 x 4 pixels."""
    features, labels = load_digits(return_X_y=True)
    chosen, moved = generator.integers(0, len(labels), rows + PEOPLE), generator.integers(-1, 2, (rows + PEOPLE, 2))
    images = features.reshape(-1, 8, 8)[chosen]
    images = np.stack([np.roll(image, by, (0, 1)) for image, by in zip(images, moved, strict=True)])
    images += generator.normal(size=images.shape)
    features = images.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    features, labels = features / np.linalg.norm(features, axis=1, keepdims=True), labels[chosen]
    return (features[:rows], labels[:rows]), (features[rows:], labels[rows:])


# What the attacker has -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """`retained` is None at first."""

    deposit: Deposit
    model: Array
    retained: Rows | None

    @property
    def rows(self) -> HeadRows:
        assert self.retained is not None
        features, labels = self.retained
        return HeadRows(features, labels)

    @property
    def matrices(self) -> Iterator[Array]:
        """Every square one that is a sum over rows, features by features or classes and features by the same."""
        yield engine.to_numpy(self.deposit.gram.mean)
        for blocks in (self.deposit.sums.curvature, *self.deposit.sums.weighted):
            yield from engine.to_numpy(blocks.values)

    @property
    def moved(self) -> Array:
        """From where the weights of what is left would be to the anchor: by the retained rows, or by Newton's step."""
        kept = self.deposit
        penalty, setting = kept.penalty(kept.sums.count), kept.setting
        if self.retained is not None:
            best = optimum(replace(kept.head, l2=0.0), self.rows, replace(setting, gauges=()), penalty)
            return engine.to_numpy(kept.anchor - best)
        gradient = setting.centred(kept.sums.gradient + penalty.diagonal(kept.anchor) * kept.anchor)
        return engine.to_numpy(setting.centred(self.norm.solved(gradient)))

    @property
    def norm(self) -> Norm:
        setting = replace(self.deposit.setting, stiff=1.0)
        matrix = setting.penalised(
            setting.stiffened(self.deposit.sums.curvature), self.deposit.penalty(self.deposit.sums.count)
        )
        return Norm(matrix, np.linalg.cholesky(matrix.values))


Attack = Callable[[Seen, Rows], Array | None]


def cosines(people: Rows, *vectors: Array) -> Array:
    """The largest cosine, up to sign, with any of some vectors."""
    made, features = np.zeros(len(people[0])), people[0]
    for vector in vectors:
        size = np.linalg.norm(vector)
        if size > 0.0:
            made = np.maximum(made, np.abs(features @ vector) / (size * np.linalg.norm(features, axis=1)))
    return made


def foremost(matrix: Array) -> Array:
    """The direction in feature space that a matrix with a row for every class has most of."""
    vector: Array = np.linalg.svd(matrix)[2][0]
    return vector


def supports(people: Rows, features: Array) -> Array:
    """How many of these features somebody has, for their own number of them."""
    own = people[0] != 0.0
    scores: Array = (own @ features) / np.sqrt(own.sum(axis=1))
    return scores


# Attacks ---------------------------------------------------------------------------------------------------------------


def by_gradient(seen: Seen, people: Rows) -> Array:
    """At the exact optimum of the source, gradient and l2 w together are the row that left."""
    kept = seen.deposit
    penalty = kept.penalty(kept.sums.count).diagonal(kept.anchor)
    return cosines(people, foremost(engine.to_numpy(kept.sums.gradient + penalty * kept.anchor)))


def by_eigenvectors(seen: Seen, people: Rows) -> Array:
    """The first and the last direction of each matrix, and of its difference from what it should be by the moments."""
    width, found = people[0].shape[1], []
    for matrix in seen.matrices:
        values, vectors = np.linalg.eigh(matrix)
        rank = int(np.argmax(values > 1e-10 * values[-1]))
        for index in (0, rank, -1):
            found.append(foremost(vectors[:, index].reshape(-1, width)))
    return cosines(people, *found)


def by_rounding(seen: Seen, people: Rows) -> Array:
    """Entries that no retained row has a part in are nothing but rounding, and name what was together in one row."""
    width = people[0].shape[1]
    told = np.zeros(width)
    for matrix in seen.matrices:
        lengths = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        tiny = (matrix != 0.0) & (np.abs(matrix) < TINY * np.outer(lengths, lengths))
        told += tiny.sum(axis=0).reshape(-1, width).sum(axis=0)
    third = seen.deposit.sums.third
    if third is not None:
        sizes = np.sqrt(np.maximum(np.diag(engine.to_numpy(seen.deposit.gram.mean)), 0.0))
        parts = threes(width)
        few = sizes[parts[0]] * sizes[parts[1]] * sizes[parts[2]] * TINY
        tiny = ((engine.to_numpy(third) != 0.0) & (np.abs(engine.to_numpy(third)) < few)).sum(axis=0)
        for part in parts:
            np.add.at(told, part, tiny)
    return supports(people, told)


def by_errors(seen: Seen, people: Rows) -> Array:
    """The curvature's error has the mean square of the source's rows in it, and so the length of who left."""
    kept = seen.deposit
    count, left = kept.numbers.n_rows + kept.numbers.forgotten, kept.numbers.n_rows
    head, weights = kept.head, kept.anchor
    if isinstance(head, Ridge):
        each = UNIT_ROUNDOFF * head.moment_roundoffs(count)
    else:
        of_link = np.sqrt(len(weights)) * (weights.shape[1] + 64)
        each = UNIT_ROUNDOFF * (
            (count + len(weights) + 64) * CURVATURE_SIZE
            + of_link * (1.0 + float(engine.norm(weights)) * head.row_bound)
        )
    total = float(kept.gram.mean.trace()) * left
    if seen.retained is not None:
        total = float((seen.retained[0] ** 2).sum())
    added = np.append(2.0 ** np.arange(-70.0, -20.0), 0.0)
    squares = (kept.sums.curvature_error / (1.0 + 2.0**-40) - added) * left / each - total
    own = (people[0] ** 2).sum(axis=1)
    scores: Array = -np.abs(np.log(np.maximum(squares, 1e-300)[:, None] / own)).min(axis=0)
    return np.round(scores, 3)  # nearer than that is as good as found


def by_sizes(seen: Seen, people: Rows) -> Array:
    """The longest row by each gauge, and by itself, is known to a factor of two: who would have been that long?"""
    features = people[0]
    fits = np.zeros(len(features))
    for gauge in seen.deposit.gauges:
        fits += engine.to_numpy(gauge.squares(features) > gauge.kappa**2 / 2.0)
    return fits + engine.to_numpy(np.linalg.norm(features, axis=1) > seen.deposit.numbers.row_bound / 2.0)


def by_hashes(seen: Seen, people: Rows) -> Array:
    """The key is in the deposit: any row can be looked up."""
    kept = seen.deposit
    table = {digest.tobytes() for digest in kept.hashes.digests[0]}
    return np.array([float(each.tobytes() in table) for each in hash_rows(kept.key, *people).digests[0]])


def by_published(seen: Seen, people: Rows) -> Array:
    """The published weights, from where they would be without noise."""
    best = engine.to_numpy(seen.deposit.anchor) - seen.moved
    return cosines(people, foremost(seen.model - best))


def by_counts(seen: Seen, people: Rows) -> Array | None:
    """What moments, supports and counts have beyond the retained rows'."""
    if seen.retained is None:
        return None
    kept, own = seen.deposit, gram_of(seen.rows)
    beyond = sum(np.asarray(part) for part in engine.to_numpy(kept.gram.parts - own.parts))
    classes = np.array(kept.numbers.class_counts) - np.bincount(seen.retained[1], minlength=len(kept.record.classes))
    more = supports(people, engine.to_numpy(kept.gram.support - own.support))
    return np.einsum("pi,ij,pj->p", people[0], beyond, people[0]) / (people[0] ** 2).sum(axis=1) ** 2 + (
        1e-3 * classes[people[1]] + more
    )


def by_differences(seen: Seen, people: Rows) -> Array | None:
    """Every sum beside the same over the retained rows: what is beyond them, relative to each feature's own size."""
    if seen.retained is None:
        return None
    kept, width = seen.deposit, people[0].shape[1]
    own = sums_of(kept.head, kept.anchor, seen.rows, kept.gauges, third=kept.sums.third is not None)
    told = np.zeros(width)
    for one, other in zip((kept.sums.curvature, *kept.sums.weighted), (own.curvature, *own.weighted), strict=True):
        for mine, theirs in zip(engine.to_numpy(one.values), engine.to_numpy(other.values), strict=True):
            lengths = np.sqrt(np.maximum(np.diag(theirs), 1e-30))
            apart = np.abs(mine - theirs) / np.outer(lengths, lengths)
            told += np.sqrt((apart**2).mean(axis=0)).reshape(-1, width).sum(axis=0)
    sizes = np.sqrt(np.maximum((seen.retained[0] ** 2).mean(axis=0), 1e-30))
    return cosines((np.abs(people[0]) / sizes, people[1]), told)


def by_anchor(seen: Seen, people: Rows) -> Array:
    """The likelihood ratio of the anchor's noise: by how much each of them would have moved the optimum."""
    score, _ = anchor_moves(seen, people)
    return score


def anchor_moves(seen: Seen, people: Rows) -> tuple[Array, Array]:
    """That, and where each of them would have moved it to, in deviations of the noise."""
    kept, factor = seen.deposit, engine.to_numpy(seen.deposit.shape[0])
    plain, norm = replace(kept.head, l2=0.0), seen.norm
    scale, moves = max(kept.numbers.anchor_noise, 1e-12), []
    nowhere = in_no_row(kept)
    for features, label in zip(*people, strict=True):
        row = HeadRows(features[None], np.array([int(label)]))
        shift = kept.setting.centred(-norm.solved(plain.gradient(kept.anchor, row) / kept.sums.count))
        moves.append((engine.to_numpy(shift @ nowhere) @ factor).reshape(-1) / scale)
    made = np.array(moves)
    return made @ (seen.moved @ factor).reshape(-1) / scale - (made**2).sum(axis=1) / 2.0, made


def in_no_row(kept: Deposit) -> np.ndarray:
    """What a deposit does to weights, d x d, of features and directions that no row has: the attacker knows it."""
    penalty = kept.penalty(kept.sums.count).diagonal(kept.anchor)[0]
    return rested(np.eye(len(penalty), dtype=np.float64), kept.gram, penalty)[0]


def by_gauge(seen: Seen, people: Rows) -> Array | None:
    """The likelihood ratio of a gauge's noise; without the retained rows by their second moments, which are near."""
    kept = seen.deposit
    if not kept.gauges:
        return None
    gauge, width = kept.gauges[0], people[0].shape[1]
    matrix, square = (
        engine.to_numpy(gauge.factor @ gauge.factor.T),
        2.0 ** np.ceil(np.log2(float(kept.gram.mean.trace()))),
    )
    count = kept.numbers.n_rows + kept.numbers.forgotten

    def cut(features: Array) -> Array:
        return features * np.sqrt(square) / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), np.sqrt(square))

    moments = engine.to_numpy(kept.gram.mean) * kept.numbers.n_rows
    if seen.retained is not None:
        moments = cut(seen.retained[0]).T @ cut(seen.retained[0])
    deviation = square / (count * GAUGE_MU)
    beyond = matrix - moments / count - 2.2 * deviation * np.sqrt(width) * np.eye(width)
    own = cut(people[0])
    halves = np.tril(np.ones((width, width)))  # an entry and its mirror are one number
    scores = [
        float((halves * np.outer(x, x) * (beyond / count - np.outer(x, x) / (2.0 * count**2))).sum()) / deviation**2
        for x in own
    ]
    return np.array(scores)


def by_trained(seen: Seen, people: Rows, trained: Array) -> Array:
    """The gradient of what is left at the trained weights, by the deposit's own sums: there it is the row that left."""
    kept, weights = seen.deposit, trained
    away, values = weights - kept.anchor, kept.sums.curvature.values
    away[:, kept.gram.unseen] = 0.0
    if kept.sums.curvature.joint:
        bent = (values[0] @ away.reshape(-1)).reshape(away.shape)
    else:
        bent = (values @ away[..., None])[..., 0]  # one block may serve all classes
    gradient = kept.sums.gradient + bent + kept.penalty(kept.sums.count).diagonal(weights) * weights
    gradient[:, kept.gram.unseen] = 0.0
    return cosines(people, foremost(engine.to_numpy(gradient)))


EXACT: dict[str, Attack] = {
    "eigenvectors": by_eigenvectors,
    "rounding": by_rounding,
    "errors": by_errors,
    "sizes": by_sizes,
    "hashes": by_hashes,
    "published weights": by_published,
    "counts": by_counts,
    "differences": by_differences,
}
NOISY: dict[str, Attack] = {"gradient": by_gradient, "anchor": by_anchor, "gauge": by_gauge}
ATTACKS = EXACT | NOISY


# Playing ---------------------------------------------------------------------------------------------------------------

DESIGNS = {  # as it is, and each mistake that was made before
    "as it is": {},
    "an anchor without noise": {"make.anchor_scales": lambda *_, **__: (0.0,)},
    "all digits": {"sums._on_grid": lambda values, _: values, "sums._rounded_up": lambda error: error},
}


@dataclass(frozen=True)
class Round:
    """Somebody was in a source, and left: both deposits, read from their files, and who it was among the people."""

    who: int
    people: Rows
    retained: Rows
    before: Deposit
    after: Deposit
    model: Array

    @property
    def trained(self) -> Array:
        """The model as it was trained, with the person in it and no noise: no part of a deposit, but it was in use."""
        person = self.people[0][self.who : self.who + 1], self.people[1][self.who : self.who + 1]
        source, kept = joined(self.retained, person), self.before
        rows = HeadRows(source[0], source[1])
        plain, setting = replace(kept.head, l2=0.0), replace(kept.setting, gauges=())
        weights: Array = engine.to_numpy(optimum(plain, rows, setting, kept.penalty(len(source[1]))))
        return weights

    def rank(self, attack: Attack, *, known: bool, earlier: bool = False) -> float:
        """The share of the others that an attack puts below the one who left, ties by half; a half if it cannot say."""
        kept = self.before if earlier else self.after
        scores = attack(Seen(kept, self.model, self.retained if known else None), self.people)
        return 0.5 if scores is None else self.rank_by(scores)

    def rank_by(self, scores: Array) -> float:
        others = np.delete(scores, self.who)
        return float(((others < scores[self.who]).mean() + (others <= scores[self.who]).mean()) / 2.0)


def begun(kind: str, seed: int, design: str = "as it is", rows: int | None = None) -> Round:
    loss, retained, people = people_of(kind, seed, rows)
    who = int(np.random.default_rng([seed, 1]).integers(PEOPLE))
    person = people[0][who : who + 1], people[1][who : who + 1]
    with ExitStack() as stack:
        for name, replaced in DESIGNS[design].items():
            stack.enter_context(patch(f"expunge.deposit.{name}", replaced))
        before = kept_of(joined(retained, person), loss, seed=1000 + seed, n_rows=len(retained[0]))
        request = ask(None, person, None, Promise(1.0, 1e-3), deposit=before)
        after = remove_rows(before, request.forget, request.membership)
    read = [parse_deposit(each.to_bytes(), Path("deposit")) for each in (before, after)]
    moved = Seen(read[1], np.zeros(0), retained).moved
    noise = np.random.default_rng([seed, 2]).normal(size=moved.shape) @ np.linalg.inv(engine.to_numpy(after.shape[0]))
    return Round(who, people, retained, *read, engine.to_numpy(after.anchor) - moved + after.levels[0] * noise)


def main() -> None:
    """A line for each attack: the mean share of people that the right one is ranked above."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    for kind in KINDS:
        for design in DESIGNS:
            played = [begun(kind, seed, design) for seed in range(rounds)]
            for name, attack in ATTACKS.items():
                shares = [
                    float(np.mean([each.rank(attack, known=known, earlier=earlier) for each in played]))
                    for known, earlier in ((False, False), (True, False), (True, True))
                ]
                print(f"{kind:14}{design:25}{name:19}" + "".join(f"{share:8.2f}" for share in shares))


if __name__ == "__main__":
    main()
