"""What a certificate does not prove, in words: the limits that go with every guarantee."""

from __future__ import annotations

from expunge.bounds.scale import EXACT, LADDER, POLICY, RADII
from expunge.certificate.facts import NOISE_LIMITS, OLD_SCHEMAS, Claim
from expunge.record import LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE

HEAD_ALONE = "It speaks of the linear head alone, on features that an encoder made."
ENCODERS = {
    "yes": f"{HEAD_ALONE} That encoder was trained on rows of the source: what it learnt from the forgotten ones stays "
    "in it, and with it in every model that uses it.",
    "no": f"{HEAD_ALONE} That the encoder was not trained on rows of the source was stated when the features were "
    "made; it was not checked.",
    "unknown": f"{HEAD_ALONE} Whether the encoder was trained on rows of the source is not known; if it was, what it "
    "learnt from the forgotten ones stays in it.",
}
PREPARATIONS = {
    LEARNT_FROM_SOURCE: "It speaks of the classifier alone, on rows as they were prepared. Preparation (what fills, "
    "scales, encodes or selects columns, or chose the penalty) was learnt from the source: what it learnt from the "
    "forgotten rows stays in it.",
    LEARNT_ELSEWHERE: "It speaks of the classifier alone, on rows as they were prepared. That their preparation was "
    "learnt elsewhere, from no row of the source, was stated when the model was trained; it was not checked.",
}

GIVEN_ROWS = (
    "It does not prove that the rows given were in the training set, or that they are all that the person contributed."
)
KEPT_ROWS = (
    "The rows given were looked up in the deposit by their keyed hashes; that they are all that the person contributed "
    "is not proved."
)
KEPT = (
    "Rows are taken as they were prepared at training: what scaling, encoding and row weights learnt from the "
    "forgotten rows stays. The deposit from before tells who left, and must be destroyed."
)
WEIGHTED = (
    "Rows count by their class, with weights fixed at training: retraining means the same weights, not ones worked out "
    "anew from the retained rows."
)
BESIDE = "That by the deposit alone this request would have needed more noise is known to whoever reads this."


def limits_of(claim: Claim, *, kept: bool) -> tuple[str, ...]:
    """What the certificate does not prove; `kept` where it was issued with a deposit."""
    sentences = [
        KEPT_ROWS if kept else GIVEN_ROWS,
        "It does not protect against somebody who holds the model from before as well as this one.",
        "It does not prove that no copy of the earlier model or of the data exists elsewhere.",
        _about_itself(claim),
        "It speaks of this one published model; several published models compose to a weaker guarantee.",
        "It cannot show from the weights alone that the noise was drawn as stated; it binds digests, it is not a "
        "proof of execution.",
    ]
    if kept:
        sentences.append(KEPT)
        if claim.weighted:
            sentences.append(WEIGHTED)
        if claim.distance.law.stands_in:
            sentences.append(BESIDE)
    if claim.encoder is not None and claim.schema not in OLD_SCHEMAS:
        sentences.append(ENCODERS[claim.encoder])
    if claim.preparation is not None:
        sentences.append(PREPARATIONS[claim.preparation])
    of_noise = NOISE_LIMITS.get(claim.generator)
    return tuple(sentences) if of_noise is None else (of_noise, *sentences)


OWN_NUMBERS = (
    "Its own numbers (sigma, the bound and what entered it) depend on the forgotten rows and carry no noise; share it "
    "with those who must check it."
)
DOSSIER = (
    "This dossier tells who left: the bound and what entered it depend on the forgotten rows and carry no noise. It is "
    "for the auditor; what may be handed out is the statement."
)
CHOSEN = {
    POLICY: "That the noise set beforehand was enough for this request is known to whoever reads this.",
    LADDER: "The noise was chosen for this request, rounded up to a power of two: which one it is depends on who left. "
    "Noise set beforehand (--noise) would not.",
    RADII: "The noise is the smallest of a deposit's few radii, set before anybody asked, that covers the request: "
    "which one it is, and that there was one, is known to whoever reads this.",
    EXACT: "The noise was chosen for this request and not rounded: it tells who left, and must not be published.",
}


def _about_itself(claim: Claim) -> str:
    """What the file itself gives away."""
    if claim.schema in OLD_SCHEMAS:
        return OWN_NUMBERS
    return CHOSEN[claim.scale.kind] if claim.public else DOSSIER
