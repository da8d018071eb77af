"""Tasks to audit on: the retrained weights are known, and each part of the bound is needed on some task.

`tight_task` has a bound that equals the true distance. A feature that no row uses has no curvature but the
regulariser's, so what training left undone there, e, stays: with the source at hand the update solves a(u) = 0, hence
`(n-m) g_R(v) = n g_D(w) = n l2 e` and `||w_R - v|| = n/(n-m) ||e||`, which is the training term. Any noise below what
is due shows. `sampled_task` has a surrogate of the same distribution: its bound is nearly all sampling term.
`single_step_task` stops after one Newton step of a softmax problem, so that its bound is nearly all solver term.
`deposit_task` has a deposit and a class so rare that curvature grows along the update as fast as self-concordance
allows: its bound is all second order, and not far from tight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from expunge.bounds import PaperConstants
from expunge.bounds.scale import EXACT
from expunge.certificate.content import Certificate
from expunge.certificate.derive import bound_named
from expunge.distance import Distance
from expunge.errors import DataError, ModelError, OptionError
from expunge.evaluate.case import Labelled, Splits, prepared_rows
from expunge.evidence.deposit.adding import with_surrogate
from expunge.evidence.deposit.asking import ask_deposit, deposit_guarantee
from expunge.evidence.deposit.contents import Deposit
from expunge.evidence.deposit.keeping import keep
from expunge.evidence.deposit.making import optimum
from expunge.evidence.measured import Measured
from expunge.mechanism import measure
from expunge.model import LinearModel, checked_model
from expunge.request.declared import Declared
from expunge.request.door import Request, ask
from expunge.request.execution import Execution
from expunge.request.guarantee import Guarantee
from expunge.request.subject import LinearSubject
from expunge.train import minimise, train

TASKS = ("tight", "sampled", "single-step", "deposit")


@dataclass(frozen=True)
class AuditTask:
    """A request, its step and bound, and the retrained weights, which only an audit has."""

    name: str
    request: Request
    measured: Measured
    retrained: Tensor


def make_task(name: str, epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """The task of that name (`tight`, `sampled`, `single-step`, `deposit`)."""
    makers = {
        "tight": tight_task,
        "sampled": sampled_task,
        "single-step": single_step_task,
        "deposit": deposit_task,
    }
    if name not in makers:
        raise OptionError(f"task {name!r}", f"it must be one of {', '.join(TASKS)}", "Choose one of them.")
    return makers[name](epsilon, delta, seed)


def tight_task(
    epsilon: float, delta: float, seed: int = 0, *, n_source: int = 60, n_forget: int = 20, left: float = 0.05
) -> AuditTask:
    """Least squares with an unused last feature, on which training stopped `left` short of the optimum."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, n_source, 6, 2)
    features[:, -1] = 0.0
    model = train(features, labels, l2=0.1, max_norm=1.0, loss="ridge")
    weights = model.matrix().numpy().copy()
    weights[:, -1] += left * np.array([0.6, -0.8])
    request = ask(
        checked_model(weights),
        (features[:n_forget], labels[:n_forget]),
        (features, labels),
        Guarantee(epsilon, delta, Distance("source", 0.0), force=True, noise=EXACT),
        declared=Declared(n_source, l2=0.1, loss="ridge", max_norm=1.0, training_residual=0.1 * left),
    )
    return _task("tight", request, (features[n_forget:], labels[n_forget:]), seed)


def sampled_task(epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """Softmax with a surrogate of the same distribution."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, 500, 5, 3)
    surrogate = _clusters(generator, 500, 5, 3)
    model = train(features[:300], labels[:300], l2=0.05, max_norm=1.0)
    guarantee = Guarantee(epsilon, delta, Distance("same", 0.0), force=True, noise=EXACT)
    request = ask(model, (features[:30], labels[:30]), surrogate, guarantee)
    return _task("sampled", request, (features[30:300], labels[30:300]), seed)


def single_step_task(epsilon: float, delta: float, seed: int = 0) -> AuditTask:
    """Softmax, the source at hand, one Newton step only, a third of the rows forgotten."""
    generator = np.random.default_rng(seed)
    features, labels = _clusters(generator, 150, 5, 3)
    model = train(features, labels, l2=0.02, max_norm=1.0)
    guarantee = Guarantee(epsilon, delta, Distance("source", 0.0), step="newton", force=True, noise=EXACT)
    request = ask(model, (features[:50], labels[:50]), (features, labels), guarantee)
    return _task("single-step", request, (features[50:], labels[50:]), seed)


def deposit_task(
    epsilon: float, delta: float, seed: int = 0, *, n_source: int = 200, one_in: int = 20, n_forget: int = 3
) -> AuditTask:
    """Rows that are all alike, of which few are of the second class, and some of those few are forgotten."""
    features, labels = np.ones((n_source, 1)), (np.arange(n_source) % one_in == 0).astype(int)
    gone = np.flatnonzero(labels == 1)[:n_forget]
    stays = np.setdiff1d(np.arange(n_source), gone)
    kept = keep(train(features, labels, l2=1e-4, max_norm=1.0), (features, labels), seed=seed).deposit
    kept = replace(kept, sums=replace(kept.sums, third=None))  # with third derivatives the bound would be less tight
    guarantee = deposit_guarantee(epsilon, delta, force=True, noise=EXACT)
    request = ask_deposit(kept, (features[gone], labels[gone]), guarantee)
    return _kept_task("deposit", request, (features[stays], labels[stays]), seed)


def certificate_task(
    certificate: Certificate,
    model: LinearModel,
    digest: str,
    retain: Labelled,
    forget: Labelled,
    surrogate: Labelled | None,
    deposit: Deposit | None = None,
) -> AuditTask:
    """A certificate's own setting run again, for somebody who still has the retain set.

    `model` is the one from BEFORE, and so is the `deposit`, where there was one.
    """
    content = certificate.content
    if digest != content["model"]["before"]["sha256"]:
        raise ModelError(
            "the model is not the one the certificate was made from",
            "their digests must agree",
            "Give the model from before.",
        )
    if bound_named(content["bound"]["kind"]).kept:
        return _deposit_certificate(certificate, model, digest, retain, forget, surrogate, deposit)
    if len(retain[0]) + len(forget[0]) != content["sizes"]["n_source"]:
        raise DataError(
            f"{len(retain[0]):,} rows to retain and {len(forget[0]):,} to forget",
            f"the certificate is about a source of {content['sizes']['n_source']:,}",
            "Give the rows the model was trained on, parted in two.",
        )
    distance = _distance(content)
    if distance.is_source:
        names, splits = None, Splits(retain, forget, forget)
        if model.record is not None:
            names, splits = model.record.features, splits.prepared(model.record)
        surrogate = splits.ordered(names, model.n_features).source
    if surrogate is None:
        raise DataError(
            "no surrogate", f"the certificate's distance is {distance}", "Give the surrogate it was made with."
        )
    guarantee = Guarantee(
        certificate.epsilon,
        certificate.delta,
        distance,
        step=content["step"]["kind"],
        bound=content["bound"]["kind"],
        constants=_constants(content),
        sizes=content["bound"].get("convention", "source"),
        force=True,
        noise=EXACT if content["noise"].get("choice", EXACT) == EXACT else certificate.sigma,
    )
    request = ask(
        model,
        forget,
        surrogate,
        guarantee,
        declared=Declared() if model.record is not None else _declared(content),
        execution=Execution(content["data"]["surrogate_dtype"]),
    )
    return _task("certificate", request, retain, 0)


def _distance(content: dict[str, Any]) -> Distance:
    """The certificate's."""
    return Distance(
        **{key: content["distance"][key] for key in Distance.__dataclass_fields__ if key in content["distance"]}
    )


def _deposit_certificate(
    certificate: Certificate,
    model: LinearModel,
    digest: str,
    retain: Labelled,
    forget: Labelled,
    surrogate: Labelled | None,
    deposit: Deposit | None,
) -> AuditTask:
    """The same for a certificate that was issued with a deposit, which is to be the one from before too."""
    sizes = certificate.content["sizes"]
    if deposit is None or deposit.numbers.forgotten + len(forget[0]) != sizes["n_forget"]:
        raise DataError(
            "no deposit, or not the one from before",
            f"the certificate is about {sizes['n_forget']:,} rows that left a deposit, those to forget included",
            "Give the deposit that the rows were taken out of.",
        )
    if len(retain[0]) != sizes["n_retain"]:
        raise DataError(
            f"{len(retain[0]):,} rows to retain",
            f"the certificate is about {sizes['n_retain']:,}",
            "Give the rows the model was trained on without all that were forgotten.",
        )
    guarantee = deposit_guarantee(certificate.epsilon, certificate.delta, force=True)
    request = ask_deposit(deposit, forget, guarantee, model=model, model_sha256=digest)
    distance = _distance(certificate.content)
    if distance.law.stands_in:
        request = with_surrogate(request, forget, surrogate, distance)
    return _kept_task("certificate", request, retain, 0)


def _kept_task(name: str, request: Request, retain: Labelled, seed: int) -> AuditTask:
    """Retraining is what the deposit's own objective says: a fixed C is shared by fewer, an intercept may be free."""
    deposit = request.deposit
    rows = prepared_rows(retain, deposit.model, deposit.record, "the retain set")
    head = replace(deposit.head, l2=0.0)
    retrained = optimum(head, rows, deposit.setting, deposit.penalty(len(rows)))
    return AuditTask(name, request, measure(request, seed=seed), retrained)


def _constants(content: dict[str, Any]) -> PaperConstants | None:
    if bound_named(content["bound"]["kind"]).provable:
        return None
    values = {name: fact["value"] for name, fact in content["bound"]["inputs"].items()}
    return PaperConstants(
        values["alpha"], values["beta"], values["lipschitz"], values["gamma"], int(values["lipschitz_power"])
    )


def _declared(content: dict[str, Any]) -> Declared:
    """The facts of a model without a record, as they were declared."""
    model, inputs = content["model"], content["bound"]["inputs"]
    return Declared(
        n_source=int(content["sizes"]["n_source"]),
        l2=model["l2"],
        loss=model["loss"],
        max_norm=model["max_norm"],
        training_residual=inputs["training_residual"]["value"] if "training_residual" in inputs else 0.0,
    )


def _clusters(
    generator: np.random.Generator, rows: int, width: int, classes: int
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Noisy clusters on the unit sphere, one a class."""
    labels = np.arange(rows) % classes
    features = np.eye(classes, width)[labels] + 0.7 * generator.standard_normal((rows, width))
    return features / np.linalg.norm(features, axis=1, keepdims=True), labels


def _task(name: str, request: Request, retain: Labelled, seed: int) -> AuditTask:
    assert isinstance(request.subject, LinearSubject)
    rows = prepared_rows(retain, request.subject.model, request.record, "the retain set")
    retrained = minimise(request.head, rows, start=request.weights)
    return AuditTask(name, request, measure(request, seed=seed), retrained)
