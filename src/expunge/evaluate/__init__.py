"""Did it forget, and is the certificate true? Metrics, methods side by side, and audits. May see the source."""

from __future__ import annotations

from expunge.evaluate.accuracy import accuracies
from expunge.evaluate.audit import Audit, audit
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import MethodScores, evaluate
from expunge.evaluate.forget_score import forget_score
from expunge.evaluate.likelihood_ratio import likelihood_ratio
from expunge.evaluate.membership import membership
from expunge.evaluate.methods import (
    CertifiedNoise,
    Given,
    Method,
    Original,
    Outcome,
    Retrain,
    UnlearnMinus,
    UnlearnPlus,
)
from expunge.evaluate.relearn import relearn_time
from expunge.evaluate.score import Score
from expunge.evaluate.source_free import source_free
from expunge.evaluate.table import Table, summarise

__all__ = [
    "Audit",
    "Case",
    "CertifiedNoise",
    "Given",
    "Method",
    "MethodScores",
    "Original",
    "Outcome",
    "Retrain",
    "Score",
    "Splits",
    "Table",
    "UnlearnMinus",
    "UnlearnPlus",
    "accuracies",
    "audit",
    "evaluate",
    "forget_score",
    "likelihood_ratio",
    "make_case",
    "membership",
    "relearn_time",
    "source_free",
    "summarise",
]
