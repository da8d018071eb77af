"""Expunge: remove people's data from a trained classifier when the training data no longer exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge._lazy import load_lazily
from expunge._version import __version__
from expunge.errors import (
    DataError,
    ExpungeError,
    FileError,
    InputError,
    ModelError,
    OptionError,
    Refused,
    RetrainNow,
    UselessModel,
    VacuousClaim,
    VerificationFailed,
)

if TYPE_CHECKING:
    from expunge.bounds import ErrorBound, PaperConstants, ResidualFacts, paper_bound, residual_bound
    from expunge.certificate import Certificate, read_certificate
    from expunge.data import open_data, read_data, stream
    from expunge.distance import Distance, parse_distance
    from expunge.mechanism import Unlearned, unlearn
    from expunge.model import LinearModel, TrainingRecord, read_model
    from expunge.train import train
    from expunge.verification import verify

__all__ = [
    "Certificate",
    "DataError",
    "Distance",
    "ErrorBound",
    "ExpungeError",
    "FileError",
    "InputError",
    "LinearModel",
    "ModelError",
    "OptionError",
    "PaperConstants",
    "Refused",
    "ResidualFacts",
    "RetrainNow",
    "TrainingRecord",
    "Unlearned",
    "UselessModel",
    "VacuousClaim",
    "VerificationFailed",
    "__version__",
    "open_data",
    "paper_bound",
    "parse_distance",
    "read_certificate",
    "read_data",
    "read_model",
    "residual_bound",
    "stream",
    "train",
    "unlearn",
    "verify",
]

load_lazily(
    __name__,
    {
        "Certificate": "certificate",
        "Distance": "distance",
        "ErrorBound": "bounds",
        "LinearModel": "model",
        "PaperConstants": "bounds",
        "ResidualFacts": "bounds",
        "TrainingRecord": "model",
        "Unlearned": "mechanism",
        "open_data": "data",
        "paper_bound": "bounds",
        "parse_distance": "distance",
        "read_certificate": "certificate",
        "read_data": "data",
        "read_model": "model",
        "residual_bound": "bounds",
        "stream": "data",
        "train": "train",
        "unlearn": "mechanism",
        "verify": "verification",
    },
)
