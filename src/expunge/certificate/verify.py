"""Checking a certificate: read it strictly, hold its facts against each other, recompute what follows, compare.

What is checked is the table of `rules.py`, after `read_claim` (`dossier.py`) has read every fact strictly; here is in
which order. A certificate is hostile until checked: whatever cannot be read is a `VerificationFailed`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from expunge.certificate.dossier import Certificate, digest_of, read_claim
from expunge.certificate.rules import (
    FACTS,
    FOLLOWING,
    FOLLOWS,
    LINKS,
    OF_MODEL,
    POSSIBLE,
    PUBLISHED_MODEL,
    STATEMENT,
    UNREADABLE,
    Check,
    Inspection,
    require_passed,
    run,
)
from expunge.certificate.statement import Statement, statement_of
from expunge.errors import InputError, VerificationFailed
from expunge.record import loss_named, parse_published, published_bytes

CONSISTENT, AUTHENTICATED, FAILED = "consistent", "authenticated", "failed"  # what checking can come to
UNSIGNED = "nobody has signed this"
Reading = TypeVar("Reading")


class Verdict(list[Check]):
    """What checking came to: every check, all of them passed; a check that does not pass raises.

    `status` is the certificate's own word for its claim (proven, conditional, estimated), and says nothing of whether
    the certificate is genuine: that is `word`, authenticated only where a signature was checked, by the key whose id is
    `signed_by`.
    """

    def __init__(self, checks: Iterable[Check], status: str, signed_by: str | None = None) -> None:
        super().__init__(checks)
        self.status, self.signed_by = status, signed_by

    @property
    def word(self) -> str:
        return CONSISTENT if self.signed_by is None else AUTHENTICATED

    @property
    def sentence(self) -> str:
        """The verdict as every command and page says it."""
        return verdict_sentence(self.signed_by)

    def __repr__(self) -> str:
        return f"Verdict({self.sentence!r}, status {self.status!r}, {len(self)} checks)"


def verdict_sentence(signed_by: str | None) -> str:
    """What is to be said of a certificate whose checks all passed.

    >>> verdict_sentence(None)
    'consistent, not authenticated: nobody has signed this'
    """
    if signed_by is None:
        return f"{CONSISTENT}, not authenticated: {UNSIGNED}"
    return f"{AUTHENTICATED}: signed by {signed_by}"


def verify(certificate: Certificate, model: str | Path | None = None) -> Verdict:
    """Check all that a dossier shows, with the published model where its file is given; raises if anything is wrong."""
    compared = checks(certificate)
    if model is not None and all(check.passed for check in compared):
        compared += model_checks(read("certificate", lambda: statement_of(certificate)), model)
    require_passed(compared)
    return Verdict(compared, certificate.status)


def verify_statement(
    statement: Statement, model: str | Path | None = None, dossier: Certificate | None = None
) -> Verdict:
    """Check a statement, with the model and the dossier where they are at hand; raises if anything differs.

    The verdict is at best consistent: whether the issuer wrote the statement only `expunge.verify_file` can tell, from
    the signed file and the issuer's public key.
    """
    compared = statement_checks(statement)
    if model is not None:
        compared += model_checks(statement, model)
    if dossier is not None:
        compared += dossier_checks(statement, dossier)
    require_passed(compared)
    return Verdict(compared, statement.status)


def checks(dossier: Certificate, prefix: str = "") -> list[Check]:
    """Everything that can be checked from a dossier alone; what follows is recomputed only from possible facts."""
    content = dossier.content

    def check() -> list[Check]:
        compared = [Check(prefix + "digest", content["digest"], digest_of(content))]
        seen = Inspection(content, read_claim(content))
        facts = run(FACTS, seen, POSSIBLE, prefix)
        possible = all(check.passed for check in facts)
        return compared + facts + (run(FOLLOWING, seen, FOLLOWS, prefix) if possible else [])

    return read("certificate", check)


def statement_checks(statement: Statement) -> list[Check]:
    """Everything that can be recomputed from the statement alone."""
    content = statement.content
    digest = read("statement", lambda: Check("digest", content["digest"], digest_of(content)))
    return [digest, *run(STATEMENT, _seen(statement), FOLLOWS)]


def model_checks(statement: Statement, path: str | Path) -> list[Check]:
    """What a statement and a published model must agree on.

    A file that is not there was named by mistake; one that is there and is damaged is not the model.
    """
    content, location = statement.content, Path(path)
    loss = read("statement", lambda: loss_named(content["model"]["loss"]))
    found = published_bytes(location, loss)
    name = "the model is the one of the certificate (model.sha256)"
    digest, why = hashlib.sha256(found).hexdigest(), "its file has another digest"
    compared = [Check(name, content["model"]["sha256"], digest, why, OF_MODEL)]
    try:
        model = parse_published(found, location, loss)
    except InputError as damaged:
        return [*compared, Check("the model's file is whole", False, True, damaged.found, OF_MODEL)]
    return compared + run(PUBLISHED_MODEL, _seen(statement, model=model), OF_MODEL)


def dossier_checks(statement: Statement, dossier: Certificate) -> list[Check]:
    """For the auditor: the dossier itself, and that the statement is its public part, keyed digests included."""
    compared, seen = checks(dossier, "dossier: "), _seen(statement, dossier=dossier)
    read("dossier", lambda: seen.made)
    return compared + run(LINKS, seen, FOLLOWS)


def _seen(statement: Statement, **beside: Any) -> Inspection:
    content = statement.content
    return read("statement", lambda: Inspection(content, read_claim(content, public=True), **beside))


def read(what: str, reading: Callable[[], Reading]) -> Reading:
    """What a reading gives; whatever cannot be read fails the check."""
    try:
        return reading()
    except VerificationFailed:
        raise
    except UNREADABLE as error:
        raise VerificationFailed(
            f"the {what} cannot be recomputed ({type(error).__name__}: {error})",
            "everything it says must be there and possible",
            "Do not rely on it.",
        ) from error
