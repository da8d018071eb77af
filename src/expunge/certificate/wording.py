"""What a certificate does not prove, in words: the limits that go with every guarantee."""

from __future__ import annotations

from expunge.bounds.scale import EXACT, LADDER, LEVELS, POLICY
from expunge.certificate.claim import MEANINGFUL_EPSILON, NOISE_LIMITS, OLD_SCHEMAS, Claim, Json
from expunge.record import CLASS_WEIGHT, LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE, prepared_by
from expunge.runtime.rounding import up

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
    LEARNT_FROM_SOURCE: "It speaks of the weights alone, on rows as they were prepared. Preparation (what fills, "
    "scales, encodes or selects columns, or chose the penalty) was learnt from the source: what it learnt from the "
    "forgotten rows stays in it.",
    LEARNT_COARSE: "It speaks of the weights alone, on rows as they were prepared. Preparation was learnt from the "
    "source, forgotten rows included, and is coarse: numbers rounded by chance, values of few rows taken together. "
    "That values of the forgotten rows cannot be read off it, and that hardly anything shows whether they were there, "
    "is a practice and no proof. Preparation learnt from public rows would prove both.",
    LEARNT_ELSEWHERE: "It speaks of the weights alone, on rows as they were prepared. That their preparation was "
    "learnt elsewhere, from no row of the source, was stated when the model was trained; it was not checked.",
}
COARSE = (
    "Preparation was learnt from the source, forgotten rows included, and made coarse: values of theirs are not to be "
    "read off it, and that they were there hardly shows. It is a practice and no proof."
)
COARSE_WEIGHTS = (
    "Balanced class weights are among it: the counts of rows that they come from, forgotten ones included, were "
    "rounded by chance."
)
OF_A_TABLE = (
    "Preparation of the table was learnt with the forgotten rows and is unchanged: from its means and scales, and the "
    "retained rows, a forgotten one can be worked out, and its categories list what only few had."
)
SUMS = "give the forgotten rows' sums to whoever has the retained ones"
ENDS = "are the largest and the smallest value that anybody had"
READ = {  # what can be read from a step of a pipeline that was learnt exactly, by its class
    "StandardScaler": f"mean_ and scale_ {SUMS}",
    "RobustScaler": "center_ and scale_ are values between rows",
    "MinMaxScaler": f"min_ and scale_ {ENDS}",
    "MaxAbsScaler": "scale_ is the largest value that anybody had",
    "PowerTransformer": f"lambdas_, means and scales {SUMS}",
    "SimpleImputer": f"statistics_ {SUMS}",
    "IterativeImputer": "its regressions are functions of every row",
    "OneHotEncoder": "categories_ lists every value that anybody had",
    "OrdinalEncoder": "categories_ lists every value that anybody had",
    "CountVectorizer": "vocabulary_ has every word that anybody used",
    "TfidfVectorizer": "vocabulary_ has every word that anybody used, idf_ how many used it",
    "TfidfTransformer": "idf_ tells how many rows use each word",
    "DictVectorizer": "vocabulary_ has every name and value that anybody had",
    "KBinsDiscretizer": f"the outermost of bin_edges_ {ENDS}",
    "SplineTransformer": f"the outermost knots {ENDS}",
    "PCA": f"mean_ and components_ {SUMS}",
    "TruncatedSVD": f"components_ {SUMS}",
    "SelectKBest": "scores_ are functions of every row",
    "VarianceThreshold": f"variances_ {SUMS}",
    "KMeans": f"cluster_centers_ {SUMS}, and those of a single row are that row",
    "MiniBatchKMeans": f"cluster_centers_ {SUMS}, and those of a single row are that row",
    "LogisticRegressionCV": "its C was chosen on every row",
    "RidgeClassifierCV": "its alpha was chosen on every row",
    CLASS_WEIGHT: "balanced weights count the rows of each class, so that the model shows of which the forgotten were",
}
UNKNOWN_STEP = "whatever it learnt"


def outside(preparation: str | None) -> str:
    """What a guarantee says first that it does not cover: what prepared the rows, where that knows the forgotten."""
    word, steps = prepared_by(preparation) or (None, ())
    if word == LEARNT_COARSE:
        return f"{COARSE} {COARSE_WEIGHTS}" if steps else COARSE
    if word != LEARNT_FROM_SOURCE:
        return ""
    if not steps:
        return OF_A_TABLE
    were, are = ("were", "are") if len(steps) > 1 else ("was", "is")
    read = "; ".join(f"{step}: {READ.get(step, UNKNOWN_STEP)}" for step in steps)
    return f"{', '.join(steps)} {were} learnt with the forgotten rows and {are} unchanged ({read})."


def headline(content: Json) -> str:
    """The status of a dossier or a statement, with what it is not of.

    >>> headline({"status": "proven", "model": {}})
    'proven'
    >>> headline({"status": "proven", "model": {"preparation": "learnt from the source: MaxAbsScaler"}})[:72]
    'PROVEN for the weights. MaxAbsScaler was learnt with the forgotten rows '
    """
    status, beyond = str(content["status"]), outside(content["model"].get("preparation"))
    return f"{status.upper()} for the weights. {beyond}" if beyond else status


GIVEN_ROWS = (
    "It does not prove that the rows given were in the training set, or that they are all that the person contributed."
)
KEPT_ROWS = (
    "The rows given were looked up in the deposit by their keyed hashes; that they are all that the person contributed "
    "is not proved."
)
KEPT = (
    "The noise takes its shape from the retained rows alone, and so does that of the retrained model it is "
    "compared with. "
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
        word, _ = prepared_by(claim.preparation) or (claim.preparation, ())
        sentences.append(PREPARATIONS[word])
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
    LEVELS: "The noise is the smallest of six levels, powers of four, that covers the request: which one it is depends "
    "on who left. Noise set beforehand (--noise, or a desk's) would not.",
    EXACT: "The noise was chosen for this request and not rounded: it tells who left, and must not be published.",
}


def _about_itself(claim: Claim) -> str:
    """What the file itself gives away."""
    if claim.schema in OLD_SCHEMAS:
        return OWN_NUMBERS
    return CHOSEN[claim.scale.kind] if claim.public else DOSSIER


def next_to_nothing(epsilon: float) -> str:
    """What is said first of a certificate whose epsilon is so large that it means nothing; empty for others.

    >>> next_to_nothing(10.0), next_to_nothing(30.0)[:30]
    ('', 'NEXT TO NOTHING IS PROMISED: a')
    """
    if epsilon <= MEANINGFUL_EPSILON:
        return ""
    return (
        f"NEXT TO NOTHING IS PROMISED: at epsilon {up(epsilon)} whoever tries to tell the two models apart may be "
        "right more than 99.99 % of the time."
    )
