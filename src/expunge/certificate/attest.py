"""What was verified or audited, for other tools: in-toto statements in the words of in-toto alone.

    verification_result   Simple Verification Result, https://in-toto.io/attestation/svr/v0.1
    audit_result          Test Result, https://in-toto.io/attestation/test-result/v0.1

Both are made from the public statement, from digests and from verdicts, never from a number of the dossier: they may be
handed out. They have the fields that in-toto defines and no others, since readers of some languages refuse unknown
ones. A verification result lists what holds; there is none of a statement that failed. Signed, they are in the same
envelope as statements (`seal_in_toto` in sign.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from expunge import __version__
from expunge.certificate.check import verdict_sentence
from expunge.certificate.facts import Json
from expunge.certificate.statement import Statement

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SVR_TYPE = "https://in-toto.io/attestation/svr/v0.1"
TEST_RESULT_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
VERIFIER = f"https://expunge.invalid/verify/{__version__}"  # names, not places: nothing is fetched
AUDITOR = f"https://expunge.invalid/audit/{__version__}"
PREFIX = "EXPUNGE_"
MODEL_NAME, STATEMENT_NAME, SIGNED_NAME = "model.safetensors", "statement.json", "statement.signed.json"
AUTHENTICATED, NOT_AUTHENTICATED = "VERDICT_AUTHENTICATED", "VERDICT_CONSISTENT_NOT_AUTHENTICATED"
PASSED, WARNED, FAILED = "PASSED", "WARNED", "FAILED"


@dataclass(frozen=True)
class Subject:
    """A file that is spoken of. Its name is what Expunge calls it: the name it was given may say whose it is."""

    name: str
    sha256: str

    def to_json(self) -> Json:
        return {"name": self.name, "digest": {"sha256": self.sha256}}


def subjects_of(statement: Statement, file_sha256: str, *, signed: bool = False) -> tuple[Subject, Subject]:
    """The published model and the statement's file."""
    name = SIGNED_NAME if signed else STATEMENT_NAME
    return Subject(MODEL_NAME, statement.model_sha256), Subject(name, file_sha256)


def now() -> str:
    """This moment as in-toto writes it: UTC, with a Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def verification_result(
    statement: Statement,
    file_sha256: str,
    *,
    signed_by: str | None = None,
    dossier: bool = False,
    deposits: bool = False,
    forgotten: bool = False,
    time: str | None = None,
) -> Json:
    """That a statement and its model were checked just now, and what else was; only for what passed.

    The verdict comes first: authenticated where a signature was checked, by the key `signed_by`, else consistent, not
    authenticated. The status is the certificate's own.
    """
    beyond = {"DOSSIER_CONSISTENT": dossier, "DEPOSITS_CONSISTENT": deposits, "FORGOTTEN_ROWS_LEFT": forgotten}
    held = [NOT_AUTHENTICATED if signed_by is None else AUTHENTICATED, "STATEMENT_CONSISTENT", "MODEL_IS_THE_ONE"]
    held += [name for name, checked in beyond.items() if checked]
    held.append(f"STATUS_{statement.status.upper()}")
    model, document = subjects_of(statement, file_sha256, signed=signed_by is not None)
    said = {"verdict": verdict_sentence(signed_by), "status": statement.status}
    promised = said | {"epsilon": statement.epsilon, "delta": statement.delta}
    return _in_toto(
        [model.to_json(), document.to_json() | {"annotations": promised}],
        SVR_TYPE,
        {
            "verifier": {"id": VERIFIER},
            "timeCreated": time or now(),
            "properties": [PREFIX + name for name in held],
        },
    )


def audit_result(subjects: Sequence[Subject], outcomes: dict[str, str], setting: Json) -> Json:
    """How audits of a model ended, by name; `setting` is how they were run, of which everybody may know."""
    worst = next((kind for kind in (FAILED, WARNED) if kind in outcomes.values()), PASSED)
    named = {
        f"{kind.lower()}Tests": [f"{PREFIX}AUDIT_{name.upper()}" for name, ended in outcomes.items() if ended == kind]
        for kind in (PASSED, WARNED, FAILED)
    }
    configuration = [{"name": "expunge audit", "uri": AUDITOR, "annotations": setting}]
    return _in_toto(
        [subject.to_json() for subject in subjects],
        TEST_RESULT_TYPE,
        {"result": worst, "configuration": configuration, **named},
    )


def _in_toto(subjects: list[Json], kind: str, predicate: Json) -> Json:
    return {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate}


def as_file(content: Json) -> bytes:
    """An in-toto statement as an unsigned file."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
