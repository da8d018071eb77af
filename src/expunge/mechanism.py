"""Read this file first: unlearning without the source, Algorithm 1 for every model, with a bound that holds.

    Algorithm 1                                          here
    input: w, forget set U, surrogate S, epsilon, delta  `Request` (request/), checked at the door
    Delta <- bound on ||w_R - w - u||                    `derive`: the region, term by term (bounds/)
    sigma <- noise for (epsilon, delta) and Delta        `derive`: noise that hides where in it w_R is (noise.py)
    u <- m (n H_S - m H_U)^-1 g_U                        `weigh`: evidence's own step, a(u) = 0 (surrogate.py, deposit/)
    return w + u + N(0, sigma^2 I)                       `certify`: the noised model, its statement, its dossier

The paper has Delta before u, from declared constants; here it comes after, since it charges what the step really left.
Every kind of head (heads/) and of evidence (surrogate.py, deposit/) goes this one way; none has a field for the source.
`ask` (door.py) makes the request, `expunge.unlearn` (unlearn.py) and every command call `ask` and then `carry_out`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from expunge.certificate.claim import GENERATORS, INSECURE, KEYED, Claim
from expunge.certificate.derive import Conclusion, derive
from expunge.certificate.dossier import Certificate, build
from expunge.certificate.statement import Statement, statement_of
from expunge.curvature import CurvedEvidence
from expunge.deposit.evidence import DepositEvidence
from expunge.errors import ExpungeError
from expunge.evidence import Evidence, Measurement, build_claim, collect_notes
from expunge.noise import KeyedSource, RandomBytes, bits_for
from expunge.request.promise import refuse_unsound
from expunge.request.request import (
    Request,
    describe_data,
    describe_sizes,
    describe_software,
    record_after,
    timestamp,
)
from expunge.rows.features import to_engine
from expunge.rows.output import Result
from expunge.runtime.arrays import Array, few_threads, to_numpy
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent
from expunge.surrogate import SourceEvidence, SurrogateEvidence, set_noise

NONCE_BYTES = 32  # of the secret key of the statement's digests


@dataclass(frozen=True)
class Unlearned(Result):
    """`model` and `statement` may be published; `certificate`, the dossier, and `deposit`, that of what is retained,
    are PRIVATE: they tell who left."""

    model: Any
    statement: Statement
    certificate: Certificate
    deposit: Any = None


def carry_out(
    request: Request, *, group: Group = ALONE, progress: Progress = silent, insecure_test_seed: int | None = None
) -> Unlearned | None:
    """Algorithm 1. In a group None but in the first process, which alone draws noise and has something to publish."""
    with few_threads(request.n_surrogate, request.head.n_parameters):
        request = set_noise(request, measure, progress=progress, seed=insecure_test_seed)  # noise as for so many rows
        measured = measure(request, progress=progress, seed=insecure_test_seed)
    result, refusal = None, None
    if group.first:
        try:
            result = certify(request, measured, insecure_test_seed=insecure_test_seed)
        except ExpungeError as error:
            refusal = error
    group.total(np.ones(1))  # nothing is handed over unless every process came to the end
    if refusal is not None:
        raise refusal
    return result


def gather(request: Request, *, seed: int | None = None, progress: Progress = silent) -> Evidence:
    """What the request gives to go by: a deposit, the source itself, or rows that resemble it."""
    if request.deposit is not None:
        return DepositEvidence.gather(request, progress=progress)
    kind = SourceEvidence if request.distance.is_source else SurrogateEvidence
    if request.promise.curvature is not None:
        kind = CurvedEvidence
    return kind.gather(request, seed=seed, progress=progress)


def measure(request: Request, *, progress: Progress = silent, seed: int | None = None) -> Measurement:
    """The step, and what the region needs to know of it. `seed` fixes Lanczos' start."""
    return weigh(gather(request, seed=seed, progress=progress))


def weigh(evidence: Evidence) -> Measurement:
    """The answers to the four questions that evidence of every kind is asked (evidence.py)."""
    step = evidence.step()
    return Measurement(step, evidence.facts(step), evidence.failures(), evidence.retained())


def certify(
    request: Request, measured: Measurement, *, insecure_test_seed: int | None = None, keyed: KeyedSource | None = None
) -> Unlearned:
    """Region, noise, model, certificate; refuses a claim that says nothing and a model that is of no use."""
    judged = judge(request, measured, insecure=insecure_test_seed is not None, keyed=keyed is not None)
    return hand_over(request, measured, *judged, insecure_test_seed=insecure_test_seed, keyed=keyed)


def judge(
    request: Request, measured: Measurement, *, insecure: bool = False, keyed: bool = False
) -> tuple[Claim, Conclusion]:
    """What is claimed and what follows from it, or a refusal; nothing is drawn yet."""
    claim = build_claim(request, measured, INSECURE if insecure else KEYED if keyed else GENERATORS[0])
    derived = derive(claim)  # derived.region is Delta, derived.noise is sigma
    refuse_unsound(claim, derived, request.weights, request.promise.force)
    return claim, derived


def draw(
    request: Request,
    measured: Measurement,
    derived: Conclusion,
    *,
    insecure_test_seed: int | None = None,
    keyed: KeyedSource | None = None,
) -> tuple[Array, RandomBytes]:
    """The updated weights with fresh noise, and where further random bytes of this run come from."""
    assert derived.noise is not None
    updated, noise = to_numpy(request.weights + measured.step.update), measured.shaped(derived.noise)
    random_bytes = bits_for(noise.centre(updated), keyed, insecure_test_seed)
    return to_engine(noise.added_to(updated, random_bytes)), random_bytes


def hand_over(
    request: Request,
    measured: Measurement,
    claim: Claim,
    derived: Conclusion,
    *,
    insecure_test_seed: int | None = None,
    keyed: KeyedSource | None = None,
) -> Unlearned:
    """The model with noise that is drawn here, and the certificate of it."""
    subject, step = request.subject, measured.step
    noised, random_bytes = draw(request, measured, derived, insecure_test_seed=insecure_test_seed, keyed=keyed)
    published = subject.published(noised, record_after(request))
    certificate = build(
        claim,
        derived,
        model=subject.describe(published),
        sizes=describe_sizes(request),
        step=subject.describe_step(step, str(request.promise.step)),
        data=describe_data(request, measured.retained.distance),
        estimate=measured.retained.estimate,
        notes=collect_notes(request, measured),
        software=describe_software(),
        created=timestamp(),
        nonce=random_bytes(NONCE_BYTES).hex(),
    )
    return Unlearned(published, statement_of(certificate), certificate, measured.retained.deposit)
