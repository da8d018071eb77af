"""Expunge: remove people's data from a trained classifier when the training data no longer exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from expunge.errors import (
    BeyondPolicy,
    DataError,
    ExpungeError,
    FileError,
    GroupError,
    InputError,
    ModelError,
    OptionError,
    OutOfMemory,
    Refused,
    RetrainNow,
    UselessModel,
    VacuousClaim,
    VerificationFailed,
)
from expunge.runtime import load_lazily

if TYPE_CHECKING:
    from expunge.bounds import PaperConstants, Region, paper_bound
    from expunge.certificate.dossier import Certificate
    from expunge.certificate.sign import verify_file
    from expunge.certificate.statement import Statement, read_certificate, read_statement
    from expunge.certificate.verify import verify, verify_statement
    from expunge.deposit.file import Deposit, read_deposit
    from expunge.distance import Distance, parse_distance
    from expunge.mechanism import Unlearned
    from expunge.model import LinearModel, read_model
    from expunge.record import TrainingRecord
    from expunge.rows import open_data, read_data, stream
    from expunge.train import train
    from expunge.unlearn import deposit, unlearn

__version__ = "0.1.0"

__all__ = [
    "BeyondPolicy",
    "Certificate",
    "DataError",
    "Deposit",
    "Distance",
    "ExpungeError",
    "FileError",
    "GroupError",
    "InputError",
    "LinearModel",
    "ModelError",
    "OptionError",
    "OutOfMemory",
    "PaperConstants",
    "Refused",
    "Region",
    "RetrainNow",
    "Statement",
    "TrainingRecord",
    "Unlearned",
    "UselessModel",
    "VacuousClaim",
    "VerificationFailed",
    "__version__",
    "deposit",
    "open_data",
    "paper_bound",
    "parse_distance",
    "read_certificate",
    "read_data",
    "read_deposit",
    "read_model",
    "read_statement",
    "stream",
    "train",
    "unlearn",
    "verify",
    "verify_file",
    "verify_statement",
]

load_lazily(
    __name__,
    {
        "Certificate": "certificate.dossier",
        "Deposit": "deposit.file",
        "Distance": "distance",
        "LinearModel": "model",
        "PaperConstants": "bounds",
        "Region": "bounds",
        "Statement": "certificate.statement",
        "TrainingRecord": "record",
        "Unlearned": "mechanism",
        "deposit": "unlearn",
        "open_data": "rows",
        "paper_bound": "bounds",
        "parse_distance": "distance",
        "read_certificate": "certificate.statement",
        "read_data": "rows",
        "read_deposit": "deposit.file",
        "read_model": "model",
        "read_statement": "certificate.statement",
        "stream": "rows",
        "train": "train",
        "unlearn": "unlearn",
        "verify": "certificate.verify",
        "verify_file": "certificate.sign",
        "verify_statement": "certificate.verify",
    },
)
