"""Did it forget, and is the certificate true? Metrics, methods side by side, and audits. May see the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge.runtime import load_lazily

if TYPE_CHECKING:
    from expunge.evaluate.audit import Audit
    from expunge.evaluate.case import Case, Splits, make_case
    from expunge.evaluate.evaluation import MethodScores, ScoreTable, evaluate, summarise
    from expunge.evaluate.methods import (
        CertifiedNoise,
        GivenModel,
        Method,
        MethodResult,
        Original,
        Retrain,
        UnlearnMinus,
        UnlearnPlus,
    )
    from expunge.evaluate.metrics import Score, accuracies, forget_score, membership, relearn_time

__all__ = [
    "Audit",
    "Case",
    "CertifiedNoise",
    "GivenModel",
    "Method",
    "MethodResult",
    "MethodScores",
    "Original",
    "Retrain",
    "Score",
    "ScoreTable",
    "Splits",
    "UnlearnMinus",
    "UnlearnPlus",
    "accuracies",
    "evaluate",
    "forget_score",
    "make_case",
    "membership",
    "relearn_time",
    "summarise",
]

_HOMES = {
    "audit": "Audit",
    "case": "Case Splits make_case",
    "evaluation": "MethodScores ScoreTable evaluate summarise",
    "methods": "CertifiedNoise GivenModel Method MethodResult Original Retrain UnlearnMinus UnlearnPlus",
    "metrics": "Score accuracies forget_score membership relearn_time",
}
load_lazily(__name__, {name: module for module, names in _HOMES.items() for name in names.split()})
