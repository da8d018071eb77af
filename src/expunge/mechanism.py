"""Read this file first: unlearning without the source, Algorithm 1 for every model, with a bound that holds.

    Algorithm 1                                          here
    input: w, forget set U, surrogate S, epsilon, delta  `Request` (request/), checked at the door
    Delta <- bound on ||w_R - w - u||                    `derive`: the region, term by term (bounds/)
    sigma <- noise for (epsilon, delta) and Delta        `derive`: noise that hides where in it w_R is (noise.py)
    u <- m (n H_S - m H_U)^-1 g_U                        `step_of`: Newton's method on a(u) = 0 (surrogate/, solve/)
    return w + u + N(0, sigma^2 I)                       `certify`: the noised model, its statement, its dossier

The paper has Delta before u, from declared constants; here it comes after, since it charges what the step really left.
Every kind of head (heads/) and of evidence (surrogate/, deposit/) goes this one way; none has a field for the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from expunge.certificate.claim import GENERATORS, INSECURE, KEYED, Claim
from expunge.certificate.derive import Derived, derive, rank_of
from expunge.certificate.dossier import Certificate, build
from expunge.certificate.statement import Statement, statement_of
from expunge.deposit.evidence import DepositEvidence
from expunge.errors import ExpungeError
from expunge.noise import KeyedSource, bits_for
from expunge.request.description import described_data, described_sizes, described_software, record_after, timestamp
from expunge.request.door import Request
from expunge.request.refusals import refuse_unsound
from expunge.rows.results import Result
from expunge.runtime.group import ALONE, Group
from expunge.runtime.progress import Progress, silent
from expunge.solve.balanced import balanced_step
from expunge.solve.iterated import iterated_step
from expunge.solve.newton import newton_step
from expunge.solve.outcome import Step
from expunge.surrogate.evidence import SurrogateEvidence
from expunge.surrogate.measured import Measured, claim_of, notes_of, step_kind
from expunge.surrogate.rehearsal import settled
from expunge.surrogate.source import SourceEvidence

NONCE_BYTES = 32  # of the secret key of the statement's digests
KINDS_OF_EVIDENCE: list[type[SurrogateEvidence]] = [DepositEvidence, SourceEvidence, SurrogateEvidence]


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
    request = settled(request, measure, progress=progress, seed=insecure_test_seed)  # noise as for so many rows
    measured = measure(request, progress=progress, seed=insecure_test_seed)
    result, refusal = None, None
    if group.first:
        try:
            result = certify(request, measured, insecure_test_seed=insecure_test_seed)
        except ExpungeError as error:
            refusal = error
    group.total(torch.ones(1))  # nothing is handed over unless every process came to the end
    if refusal is not None:
        raise refusal
    return result


def gather(request: Request, *, seed: int | None = None, progress: Progress = silent) -> SurrogateEvidence:
    """What the request gives to go by. `seed` fixes Lanczos' start."""
    kind = next(kind for kind in KINDS_OF_EVIDENCE if kind.is_given(request))
    return kind.gathered(request, seed=seed, progress=progress)


def measure(request: Request, *, progress: Progress = silent, seed: int | None = None) -> Measured:
    """The step, and what the region needs to know of it. `seed` fixes Lanczos' start."""
    return measured_by(gather(request, seed=seed, progress=progress))


def measured_by(evidence: SurrogateEvidence) -> Measured:
    """The same for evidence that is at hand, and for the request that it was gathered for."""
    step = evidence.own_step() or step_of(evidence.request, evidence, evidence.progress)
    distance = evidence.distance_at(step.update)
    facts, failures = evidence.facts(step, distance), evidence.failures(distance)
    return Measured(step, facts, failures, distance, evidence.described(), *evidence.kept())


def step_of(request: Request, evidence: SurrogateEvidence, progress: Progress = silent) -> Step:
    """u: the paper's is one Newton step on a(u) = 0; `converged` goes on, `balanced` seeks the smallest bound."""

    def rank(step: Step) -> float:
        distance = evidence.distance_at(step.update)
        facts, failures = evidence.facts(step, distance, quick=True), evidence.failures(distance)
        return rank_of(claim_of(request, Measured(step, facts, failures, distance)))

    if not request.head.about.convex:
        if request.head.damping is None:
            return iterated_step(evidence.retained, progress=progress)
        return newton_step(evidence.equation, single=True, pull=request.head.damping, safeguarded=False)
    if request.promise.step == "balanced":
        return balanced_step(evidence.equation, rank, request.record.l2, progress)
    return newton_step(evidence.equation, single=request.promise.step == "newton", progress=progress)


def certify(
    request: Request, measured: Measured, *, insecure_test_seed: int | None = None, keyed: KeyedSource | None = None
) -> Unlearned:
    """Region, noise, model, certificate; refuses a claim that says nothing and a model that is of no use."""
    judged = judge(request, measured, insecure=insecure_test_seed is not None, keyed=keyed is not None)
    return hand_over(request, measured, *judged, insecure_test_seed=insecure_test_seed, keyed=keyed)


def judge(
    request: Request, measured: Measured, *, insecure: bool = False, keyed: bool = False
) -> tuple[Claim, Derived]:
    """What is claimed and what follows from it, or a refusal; nothing is drawn yet."""
    claim = claim_of(request, measured, INSECURE if insecure else KEYED if keyed else GENERATORS[0])
    derived = derive(claim)  # derived.region is Delta, derived.noise is sigma
    refuse_unsound(claim, derived, request.weights, request.promise.force)
    return claim, derived


def hand_over(
    request: Request,
    measured: Measured,
    claim: Claim,
    derived: Derived,
    *,
    insecure_test_seed: int | None = None,
    keyed: KeyedSource | None = None,
) -> Unlearned:
    """The model with noise that is drawn here, and the certificate of it."""
    subject, step = request.subject, measured.step
    assert derived.noise is not None
    updated, noise = (request.weights + step.update).cpu().numpy(), measured.shaped(derived.noise)
    random_bytes = bits_for(noise.centre(updated), keyed, insecure_test_seed)
    noised = torch.from_numpy(noise.added_to(updated, random_bytes))
    published = subject.published(noised, record_after(request))
    certificate = build(
        claim,
        derived,
        model=subject.described(published),
        sizes=described_sizes(request, measured.distance),
        step=subject.described_step(step, step_kind(request, measured)),
        data=described_data(request, measured.distance),
        estimate=measured.estimate,
        notes=notes_of(request, measured),
        software=described_software(),
        created=timestamp(),
        nonce=random_bytes(NONCE_BYTES).hex(),
    )
    return Unlearned(published, statement_of(certificate), certificate, measured.kept)
