"""Did it forget, and is the certificate true? Metrics, methods side by side, and audits. May see the source."""

from __future__ import annotations

from expunge.evaluate.audit import Audit, source_free
from expunge.evaluate.case import Case, Splits, make_case
from expunge.evaluate.evaluation import MethodScores, Table, evaluate, summarise
from expunge.evaluate.methods import (
    CertifiedNoise,
    GivenModel,
    Method,
    Original,
    Outcome,
    Retrain,
    UnlearnMinus,
    UnlearnPlus,
)
from expunge.evaluate.metrics import Score, accuracies, forget_score, likelihood_ratio, membership, relearn_time

__all__ = [
    "Audit",
    "Case",
    "CertifiedNoise",
    "GivenModel",
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
    "evaluate",
    "forget_score",
    "likelihood_ratio",
    "make_case",
    "membership",
    "relearn_time",
    "source_free",
    "summarise",
]
