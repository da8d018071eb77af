"""A certificate in words: what is promised, what is assumed for it, and what it does not prove."""

from __future__ import annotations

from expunge.bounds.calibration import EXACT, LADDER, LEVELS, POLICY
from expunge.certificate.claim import INSECURE, KEYED, MEANINGFUL_EPSILON, Claim, Json
from expunge.record import CLASS_WEIGHT, LEARNT_COARSE, LEARNT_ELSEWHERE, LEARNT_FROM_SOURCE, prepared_by
from expunge.runtime.values import up

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
    "KBinsDiscretizer": f"the outermost of bin_edges_ {ENDS}; by quantiles the others are values that somebody had too",
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


# The guarantee.


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


def guarantee(claim: Claim, sigma: float, *, kept: bool) -> str:
    """The promise in one sentence; `kept` where it was issued with a deposit."""
    shaped = kept or claim.curvature is not None
    noise = (
        "(the minimiser of the same objective on the retained rows), with Gaussian noise added whose covariance is "
        f"made from the {'retained' if kept else 'surrogate'} rows alone, rounded to the same grid and stored in the "
        "same type."
        if shaped
        else f"with Gaussian noise of the same standard deviation {up(sigma)} added to each, rounded to the same grid "
        "and stored in the same type."
    )
    promise = (
        f"The published weights are ({up(claim.epsilon)}, {up(claim.delta)})-indistinguishable from the weights that "
        f"retraining without the forgotten rows would have given{'' if shaped else ','} {noise}"
    )
    return f"{next_to_nothing(claim.epsilon)} {promise} {outside(claim.preparation)}".strip()


# What is assumed.

SEEN = (
    "What was seen on the surrogate (spread and largest size of the gradient's change) stands for its population. This "
    "was asked for (sampling seen); it fails for categorical rows, rare groups and heavy tails, and then the guarantee "
    "does."
)
WITHIN = (
    "No retained row's gradient changes more than {0} times as much as that of the surrogate row that changes most. "
    "This was asked for (sampling within:{0}), and no forgotten row, nor one half of the surrogate beside the other, "
    "speaks against it; it fails for rare groups and categories that the surrogate lacks, and then the guarantee does."
)
FALSE_CONSTANTS = (
    "FALSE for this model: the constants given are smaller than this loss can have, so the bound may be exceeded."
)
MATCHED_TO = (
    "Surrogate rows are weighted by class to the class counts of the retained rows, and are labelled the way the "
    "source was."
)
INDEPENDENT = (
    "Given the forgotten rows and everything published, the retained rows are independent draws of the declared law, "
    "and surrogate rows of theirs; trained weights and update are treated as fixed (they are not quite: the weights "
    "depend on the source, the update on the surrogate)."
)
NOT_CHOSEN = (
    "The forgotten rows were not chosen by somebody who looked at source and surrogate: rows picked along the "
    "direction in which the two differ most can exceed the bound."
)
OWN_MEASURE = (
    "Lengths are measured by the surrogate rows' own Hessian, each row by that of the others; it is treated as fixed "
    "where rows are taken for draws."
)
AVERAGED = (
    "delta is an average over the drawing of the data sets: given the data at hand, the probability exceeds k delta "
    "for at most one drawing in k."
)
OWN_ROWS = (
    "The rows given are the source's own. Their number, their class counts, the gradient on them and that the "
    "forgotten rows are among them were checked; rows that were made to pass these checks would pass."
)
OPTIMUM = "Training reached its optimum exactly, and the Hessians of finite sets equal those of their populations."
CONSTANTS = "The constants alpha, beta, L and gamma hold for every example."


def declared_curvature(claim: Claim) -> str:
    """What is declared of the retained rows' curvature, in a dossier with what speaks for it; empty if nothing is."""
    if claim.curvature is None:
        return ""
    seen = "" if claim.public else f" (random halves of the surrogate: {claim.facts['curvature_seen'].value:.2g} times)"
    return (
        f"Declared: in every direction the retained rows curve the loss at least {claim.curvature:g} times as much as "
        "the surrogate rows do, the regulariser included, at the new weights and as far around them as the bound "
        f"goes{seen}. "
        "A group that the surrogate has and the retained rows lack makes it false, and then the guarantee is."
    )


def assumptions(claim: Claim, *, provable: bool) -> tuple[str, ...]:
    """What has to be true for the guarantee, in plain words, the most doubtful first; empty for a proven one."""
    distance = claim.distance
    declared = sorted(name for name, fact in claim.facts.items() if fact.provenance == "declared")
    declared = [name for name in declared if name != "curvature"]  # which has a sentence of its own
    sampled = distance.samples_rows and provable
    said = {
        declared_curvature(claim): claim.curvature is not None,
        SEEN: sampled and not distance.counts_unlike,
        WITHIN.format(distance.sampling.partition(":")[2]): sampled and distance.within is not None,
        FALSE_CONSTANTS: claim.tuned,
        f"NOT KNOWN, ESTIMATED: {distance.kind if claim.public else distance} ({distance.meaning}). Nothing is "
        "guaranteed about the error of this estimate; the true distance may be larger, and then the guarantee does "
        "not hold.": distance.provenance == "estimated",
        f"Declared: {distance} between {distance.between} ({distance.meaning}); for the source's rows read the rows "
        "that are retained.": distance.provenance == "declared",
        "These facts were declared, not checked: " + ", ".join(declared) + ".": bool(declared),
        f"Declared: {claim.others} of the forgotten rows equal rows that were asked for before, and are another "
        "person's, which were trained on as often; if they were one person's, the bound counts rows that were not "
        "there.": claim.others > 0,
        MATCHED_TO: distance.matched,
        str(distance.law.assumption): distance.law.assumption is not None,
        INDEPENDENT: sampled,
        NOT_CHOSEN: sampled,
        OWN_MEASURE: sampled and claim.curvature is not None,
        AVERAGED: sampled and claim.averaged and distance.counts_unlike,
        OWN_ROWS: distance.is_source,
        OPTIMUM: not provable,
        CONSTANTS: not provable,
    }
    return tuple(sentence for sentence, applies in said.items() if applies)


# What is not proved.

NOISE_LIMITS = {  # what is said first, where the noise is not fresh from the operating system
    INSECURE: f"{INSECURE}: the noise was made from a seed for a test; this model protects nobody.",
    KEYED: "The noise is made under the desk's secret key, so that one deletion is published in one way however often "
    "it is run; it hides nothing from somebody who has that key.",
}
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


def limits(claim: Claim, *, kept: bool) -> tuple[str, ...]:
    """What the certificate does not prove; `kept` where it was issued with a deposit."""
    word, _ = prepared_by(claim.preparation) or (claim.preparation, ())
    said = {
        NOISE_LIMITS.get(claim.generator, ""): claim.generator in NOISE_LIMITS,
        KEPT_ROWS if kept else GIVEN_ROWS: True,
        "It does not protect against somebody who holds the model from before as well as this one.": True,
        "It does not prove that no copy of the earlier model or of the data exists elsewhere.": True,
        CHOSEN[claim.scale.kind] if claim.public else DOSSIER: True,
        "It speaks of this one published model; several published models compose to a weaker guarantee.": True,
        "It cannot show from the weights alone that the noise was drawn as stated; it binds digests, it is not a "
        "proof of execution.": True,
        KEPT: kept,
        WEIGHTED: kept and claim.weighted,
        ENCODERS.get(claim.encoder or "", ""): claim.encoder is not None,
        PREPARATIONS.get(word or "", ""): claim.preparation is not None,
    }
    return tuple(sentence for sentence, applies in said.items() if applies)
