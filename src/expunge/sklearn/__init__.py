"""scikit-learn models: deposits of them, and rows deleted from them.

While the source is there, `deposit` stores what later deletions need of it, and `unlearn` hands back an estimator of
the same kind: of a classifier or of a Pipeline that ends in one, as people write them; `coarsen` fits it anew with
steps that values of single rows cannot be read off. `ForgettingClassifier` does both in one estimator.
"""

from expunge.deposit.forecast import ServesFew
from expunge.sklearn.deletion import (
    Deletion,
    ExactPreparation,
    ForgettingClassifier,
    NotAtOptimum,
    deposit,
    unlearn,
)
from expunge.sklearn.pipelines import coarsen

__all__ = [
    "Deletion",
    "ExactPreparation",
    "ForgettingClassifier",
    "NotAtOptimum",
    "ServesFew",
    "coarsen",
    "deposit",
    "unlearn",
]
