"""scikit-learn models: deposits of them, rows that leave them, and weights both ways.

While the source is there, `deposit` keeps what later deletions need of it, and `unlearn` hands back an estimator of the
same kind: of a classifier or of a Pipeline that ends in one, as people write them. `ForgettingClassifier` does both in
one estimator. `from_sklearn` and `to_sklearn` are for models of whose source nothing was kept.
"""

from expunge.sklearn.estimator import ForgettingClassifier, NoDeposit
from expunge.sklearn.keeping import NotAtOptimum, Unlearned, deposit, unlearn
from expunge.sklearn.plain import from_sklearn, to_sklearn

__all__ = [
    "ForgettingClassifier",
    "NoDeposit",
    "NotAtOptimum",
    "Unlearned",
    "deposit",
    "from_sklearn",
    "to_sklearn",
    "unlearn",
]
