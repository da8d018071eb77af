"""scikit-learn models: deposits of them, rows that leave them, and weights both ways.

While the source is there, `deposit` keeps what later deletions need of it, and `unlearn` hands back an estimator of the
same kind: of a classifier or of a Pipeline that ends in one, as people write them; `coarsen` fits it anew with steps
that values of single rows cannot be read off. `ForgettingClassifier` does both in
one estimator. `from_sklearn` and `to_sklearn` are for models of whose source nothing was kept.
"""

from expunge.deposit.forecast import ServesFew
from expunge.sklearn.estimator import ForgettingClassifier, NoDeposit
from expunge.sklearn.keeping import ExactPreparation, NotAtOptimum, Unlearned, deposit, unlearn
from expunge.sklearn.plain import from_sklearn, to_sklearn
from expunge.sklearn.steps import coarsen

__all__ = [
    "ExactPreparation",
    "ForgettingClassifier",
    "NoDeposit",
    "NotAtOptimum",
    "ServesFew",
    "Unlearned",
    "coarsen",
    "deposit",
    "from_sklearn",
    "to_sklearn",
    "unlearn",
]
