"""The paper's real-data task: one data set parted by class into source and surrogate, in Dirichlet proportions.

Source and surrogate are mixtures of the same classes, `sum_k p_k f_k` and `sum_k q_k f_k`, and share no row. What they
are apart follows in closed form from the proportions: the divergences of (row, label) pairs are those of p and q, and
no divergence of rows alone is larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.folder import DataSet
from experiments.datasets.splits import dirichlet_split, random_split
from experiments.shared.checks import checked
from experiments.shared.closed_forms import discrete_chi_square, discrete_kl, discrete_tv
from experiments.shared.comparison import scores_of
from experiments.shared.paper_noise import PaperNoise
from expunge.distance import Distance
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import evaluate
from expunge.evaluate.methods import Method, Original, Retrain, UnlearnMinus, UnlearnPlus
from expunge.evaluate.metrics import attack_membership, row_losses
from expunge.heads import Rows
from expunge.runtime.arrays import Array, to_numpy
from expunge.runtime.progress import Progress, silent

AS_THEY_COME = 0.0  # a row length that leaves rows alone
LONGEST = 100.0  # of feature rows as they come
ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True)
class Mixture:
    """The parts, and how far apart: chi2 and tv of source from surrogate, kl of surrogate from source, all exact."""

    splits: Splits
    chi2: float
    tv: float
    kl: float


def of_length(rows: NDArray[Any], length: float) -> NDArray[np.float64]:
    """Rows in float64, each scaled to this length; 0 leaves them as they come.

    >>> of_length(np.array([[3.0, 4.0]]), 10.0).tolist(), of_length(np.array([[3.0, 4.0]]), 0.0).tolist()
    ([[6.0, 8.0]], [[3.0, 4.0]])
    """
    values = rows.astype(np.float64)
    if length == AS_THEY_COME:
        return values
    scaled: NDArray[np.float64] = values * (length / np.linalg.norm(values, axis=1, keepdims=True))
    return scaled


def mixture(
    data: DataSet, concentration: float, forget_ratio: float, length: float, generator: np.random.Generator
) -> Mixture:
    """Source and surrogate of two Dirichlet draws, a random part of the source to forget, the own test rows."""
    labels = data.y.astype(np.int64)
    source, surrogate, _ = dirichlet_split(labels, concentration, generator)
    retain, forget = random_split(len(source), forget_ratio, generator)
    parts = [(of_length(data.X[index], length), labels[index]) for index in (source[retain], source[forget], surrogate)]
    test = (of_length(data.X_test, length), data.y_test.astype(np.int64))
    width = int(labels.max()) + 1
    shares = [np.bincount(labels[index], minlength=width) / len(index) for index in (source, surrogate)]
    return Mixture(
        Splits(parts[0], parts[1], test, parts[2]),
        discrete_chi_square(*shares),
        discrete_tv(*shares),
        discrete_kl(shares[1], shares[0]),
    )


def trained(parts: Mixture, l2: float, length: float, progress: Progress = silent) -> Case:
    """The model of the source, to the optimum."""
    longest = LONGEST if length == AS_THEY_COME else length * ROUNDING
    return make_case(parts.splits, l2=l2, max_norm=longest, progress=progress)


def paper_scores(
    case: Case, kl: float, seed: int, n_models: int, progress: Progress = silent
) -> dict[str, dict[str, float | None]]:
    """The paper's columns for the three methods and the original model, under the noise of its theorem."""
    methods: list[Method] = [Retrain(), UnlearnPlus(PaperNoise()), UnlearnMinus(PaperNoise(kl=kl))]
    rows = evaluate(case, [Original()], seed, n_models=0, progress=progress)
    rows += evaluate(case, methods, seed, n_models=n_models, progress=progress)
    scores = scores_of(rows)
    for number, method in enumerate(methods):
        weights = method.run(case).published(np.random.default_rng([seed, number]))
        scores[method.name]["mia"] = attack_within_classes(weights, case, seed)
    scores["Original"]["mia"] = attack_within_classes(case.weights, case, seed)
    return scores


def attack_within_classes(weights: Array, case: Case, seed: int) -> float | None:
    """The membership attack on as many forget as test rows of every class.

    Forget rows have the source's class proportions and test rows the data set's: without this the attack would tell
    classes.
    """
    generator = np.random.default_rng([seed, 2])
    forget, test = case.rows["forget"], case.rows["test"]
    chosen: tuple[list[int], list[int]] = ([], [])
    for label in range(case.trained.n_classes):
        of_class = [np.flatnonzero(to_numpy(rows.labels) == label) for rows in (forget, test)]
        count = min(len(one) for one in of_class)
        for part, one in zip(chosen, of_class, strict=True):
            part.extend(generator.permutation(one)[:count].tolist())

    def losses(rows: Rows, index: list[int]) -> NDArray[np.float64]:
        return row_losses(
            case.objective, weights, replace(rows, features=rows.features[index], labels=rows.labels[index])
        )

    return attack_membership(losses(forget, chosen[0]), losses(test, chosen[1]), seed).value


def distance_checks(case: Case, parts: Mixture) -> list[dict[str, Any]]:
    """True distance and Deltas: the paper's step with source and with surrogate, ours with matched classes."""
    exact = Distance("chi2", parts.chi2)
    return [
        checked("Unlearn (+)", case, distance="source", with_source=True),
        checked("Unlearn (-)", case, distance=exact, kl=parts.kl),
        checked("ours, classes matched", case, distance="same", step="converged", match_classes=True),
    ]


def sizes(case: Case, parts: Mixture) -> dict[str, Any]:
    """How many rows, how far apart."""
    return {
        "n_source": len(case.rows["train"]),
        "n_forget": len(case.rows["forget"]),
        "n_surrogate": len(case.rows["surrogate"]),
        "chi2": parts.chi2,
        "tv": parts.tv,
        "kl": parts.kl,
    }
