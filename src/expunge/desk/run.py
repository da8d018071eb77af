"""Which requests are served together, and which cannot be: these are set aside, and the others go on."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.bounds.calibration import Composition, compose
from expunge.certificate.dossier import Certificate
from expunge.certificate.sign import keyid_of, seal
from expunge.certificate.statement import Statement, head_key
from expunge.data import EncodedRows, as_features, as_labels, encoder_of, names_of
from expunge.data.ordered import by_record
from expunge.desk.accept import WHAT, whole_rows
from expunge.desk.desk import Desk, Rows
from expunge.desk.layout import MODEL, REPORT, SIGNED, STATEMENT
from expunge.desk.ledger import (
    Accuracy,
    Aside,
    Head,
    Ledger,
    ModelPrepared,
    PublishedHead,
    RequestRow,
    RequestSetAside,
    RunRefused,
    file_digest,
    require_contains,
)
from expunge.desk.policy import Policy
from expunge.desk.publish import publish, require_free
from expunge.desk.state import (
    State,
    checked_surrogate,
    count_mus,
    current_state,
    in_fixed_order,
    mac,
    secret_of,
)
from expunge.errors import (
    BeyondPolicy,
    DataError,
    ExpungeError,
    FileError,
    InputError,
    Refused,
    RetrainNow,
    UselessModel,
    VacuousClaim,
)
from expunge.evidence.measured import Measured, foresee, handed_on
from expunge.mechanism import Unlearned, certify, judge, measure
from expunge.model import LinearModel, read_model
from expunge.report.page import statement_page
from expunge.request.door import Request, ask
from expunge.request.guarantee import Guarantee
from expunge.request.past import anchored_bytes
from expunge.runtime.progress import Progress, silent

OF_THESE_ROWS = (BeyondPolicy, VacuousClaim, UselessModel, InputError)  # refusals that say nothing of other rows
RETRAIN = "Retrain without the rows of all requests, and open a new desk."
AGAIN = "Retrain without its rows; or withdraw it, or let the next run try it again: expunge desk resume."
Trial = Callable[[Sequence[RequestRow]], float]


@dataclass(frozen=True)
class Apart:
    """A group that cannot be served as one: who can now, who perhaps after that, and who cannot, with the reason."""

    within: list[RequestRow]
    later: list[RequestRow]
    beyond: list[tuple[RequestRow, ExpungeError]]


def taken_apart(group: Sequence[RequestRow], trial: Trial) -> Apart | None:
    """Who of a group that was refused can be served; None where all can, so that the refusal is not about their rows.

    `trial` gives the size of the region of some requests together, or refuses them. Those who cannot be served alone
    are beyond; of the others as many as fit together are within, those with the smallest regions first.
    """
    sizes: dict[int, float] = {}
    beyond: list[tuple[RequestRow, ExpungeError]] = []
    for request in group:
        try:
            sizes[request.id] = trial([request])
        except OF_THESE_ROWS as error:
            beyond.append((request, error))
    order = sorted((request for request in group if request.id in sizes), key=lambda request: sizes[request.id])
    if not beyond and _fits(order, trial):
        return None
    fits, most = min(len(order), 1), len(order) if beyond else len(order) - 1
    while fits < most:
        tried = (fits + most + 1) // 2
        fits, most = (tried, most) if _fits(order[:tried], trial) else (fits, tried - 1)
    by_number = [sorted(part, key=lambda request: request.id) for part in (order[:fits], order[fits:])]
    return Apart(by_number[0], by_number[1], beyond)


def _fits(requests: Sequence[RequestRow], trial: Trial) -> bool:
    try:
        trial(sorted(requests, key=lambda request: request.id))
    except OF_THESE_ROWS:
        return False
    return True


def grouped(desk: Desk, ledger: Ledger, *, each: bool) -> tuple[list[list[RequestRow]], ExpungeError | None]:
    """What waits, in groups of one model each; a request whose file is damaged is set aside, and why is said.

    Rows whose columns have other names, where the model's record names none, are not put together.
    """
    groups: dict[object, list[RequestRow]] = {}
    damaged: ExpungeError | None = None
    unnamed: list[RequestRow] = []
    for request in ledger.requests("pending"):
        try:
            names = names_of(whole_rows(desk, ledger, request.id))
        except InputError as error:
            set_aside(ledger, request, error)
            damaged = damaged or error
            continue
        if each:
            groups[request.id] = [request]
        elif names is None or desk.policy.kept:  # in a deposit every row was found as it is
            unnamed.append(request)
        else:
            groups.setdefault(names, []).append(request)
    made = list(groups.values())
    if unnamed:
        together = sorted([*unnamed, *(made.pop(0) if made else [])], key=lambda request: request.id)
        made.insert(0, together)
    return made, damaged


def set_aside(ledger: Ledger, request: RequestRow, error: ExpungeError) -> None:
    """Set a request aside for what a run said of it."""
    remedy = AGAIN if isinstance(error, Refused) else error.remedy
    ledger.append(RequestSetAside(request.id, Aside(type(error).__name__, f"{error.found}; {error.required}", remedy)))


def retrain(error: ExpungeError) -> ExpungeError:
    """A refusal as a desk says it; anything else as it is."""
    if not isinstance(error, Refused) or isinstance(error, RetrainNow):
        return error
    return RetrainNow(f"retrain now: {error.found}", error.required, RETRAIN)


def declared_others(ledger: Ledger, group: Sequence[RequestRow]) -> int:
    """Rows forgotten once these requests are served that were declared another person's."""
    last = ledger.last_model()
    return (0 if last is None else last.facts.others) + sum(request.others for request in group)


def together(desk: Desk, ledger: Ledger, group: Sequence[RequestRow]) -> EncodedRows:
    """The rows of these requests; refuses a file that is not the one that was accepted."""
    parts = [whole_rows(desk, ledger, request.id) for request in group]
    encoders, names = {encoder_of(part) for part in parts}, {names_of(part) for part in parts}
    return EncodedRows(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([as_labels(labels, len(features), WHAT) for features, labels in parts]),
        encoders.pop() if len(encoders) == 1 else None,
        names.pop() if len(names) == 1 else None,  # all are in the model's order
    )


# Accuracy before and after a deletion, on test rows: that of models that were published, never of private
# weights.


TEST = "the test set"


@dataclass(frozen=True)
class LabelledRows:
    """Rows with the model's columns, checked before anything is done with a desk."""

    features: Any
    labels: Any

    def share_correct(self, model: LinearModel) -> float:
        """Of these rows, how many the model classifies as labelled."""
        return float(np.mean(model.predict(self.features) == self.labels))


def checked_test(model: LinearModel, test: Rows) -> LabelledRows:
    """The test rows in the order of the model's columns; refuses what nothing could be measured on."""
    features, labels = by_record(test, model.record, model.n_features, TEST)
    table = as_features(features, TEST)
    if table.shape[1] != model.n_features:
        raise DataError(
            f"{TEST} has {table.shape[1]} columns",
            f"the model takes {model.n_features}",
            "Give rows with the columns of training.",
        )
    known = np.asarray(as_labels(labels, table.shape[0], TEST))
    if not np.isin(known.astype(str), np.asarray(model.classes).astype(str)).any():
        raise DataError(
            f"{TEST} has no row of a class that the model knows",
            f"its classes are {', '.join(map(str, model.classes[:5]))}",
            "Check the labels.",
        )
    return LabelledRows(features, known)


def accuracies(desk: Desk, state: State, after: LinearModel, test: LabelledRows) -> Accuracy:
    """Of the model published before and of this one; the first one's before is the model the desk was opened with.

    Where the folder of the one before was taken away, nothing is said of it: the weights in private/ have no noise.
    """
    before = state.model if state.number == 0 else _published(desk, state)
    return Accuracy(
        before=None if before is None else test.share_correct(before),
        after=test.share_correct(after),
        rows=len(test.labels),
    )


def _published(desk: Desk, state: State) -> LinearModel | None:
    path = desk.layout.published_model(state.number) / MODEL
    if not path.is_file():
        return None
    if file_digest(path) != state.published_sha256:
        raise FileError(
            f"{path} is not the file that was published", "its digest is in the ledger", "Restore it from a copy."
        )
    return read_model(path)[0]


# Processing pending requests: intent first, ledger commit last (the order is in `recover.py`).


@dataclass(frozen=True)
class PublishedModel:
    """One model that was published, and the requests it answers. `certificate` is its dossier, which is private."""

    number: int
    requests: tuple[int, ...]
    statement: Statement
    certificate: Certificate
    composition: Composition


@dataclass(frozen=True)
class Outcome:
    """What a run did: models published, and the first reason why not all requests are done, if not all are.

    `pending` requests wait, `aside` ones were set aside, by this run or before it.
    """

    published: tuple[PublishedModel, ...]
    refused: ExpungeError | None
    pending: int
    aside: int


@dataclass(frozen=True)
class _Made:
    """Everything a run is to write, before a byte of it is written."""

    files: dict[str, bytes] = field(repr=False)
    state: bytes = field(repr=False)
    facts: ModelPrepared
    statement: Statement
    certificate: Certificate


def run(
    desk: Desk,
    *,
    each: bool = False,
    sign_key: Ed25519PrivateKey | None = None,
    test: Rows | None = None,
    heads: Items[Head | PublishedHead] = (),
    progress: Progress = silent,
) -> Outcome:
    """Forget the rows of all pending requests with one model for all of them, or one a request (`each`).

    A request that cannot be served is set aside with its reason, and the others go on. Where the desk itself has come
    to its end (all planned models are published, say) it stops; those that wait stay pending. `test` rows are only
    used to measure accuracy before and after. A ledger that is older than one of `heads`, saved earlier, is refused
    before anything is done.
    """
    published: list[PublishedModel] = []
    with desk.reading() as ledger:  # before anything is put right: what was prepared may be published by that
        for head in heads:
            require_contains(ledger, head)
    with desk.writing() as ledger:
        held = None if test is None else checked_test(current_state(desk, ledger).model, test)
        require_free(desk.layout, current_state(desk, ledger).number + 1)
        groups, refused = grouped(desk, ledger, each=each)
        surrogate = checked_surrogate(desk, ledger) if groups and not desk.policy.kept else None
        while groups:
            group, *groups = groups
            progress("Requests", len(published), len(published) + 1 + len(groups))
            state = current_state(desk, ledger)
            require_free(desk.layout, state.number + 1)
            try:
                made = _make(desk, ledger, state, group, surrogate, sign_key, held)
            except (Refused, InputError) as error:
                again, reason = _others(desk, ledger, state, group, surrogate, error)
                groups = [] if again is None else again + groups
                refused = refused or reason
                continue
            facts = made.facts
            publish(desk.layout, ledger, facts, made.state, made.certificate.to_json().encode(), made.files)
            published.append(
                PublishedModel(facts.model, facts.requests, made.statement, made.certificate, facts.composition)
            )
        counts = ledger.counts()
    return Outcome(tuple(published), refused, counts.get("pending", 0), counts.get("aside", 0))


def _others(
    desk: Desk, ledger: Ledger, state: State, group: list[RequestRow], surrogate: Rows | None, error: ExpungeError
) -> tuple[list[list[RequestRow]] | None, ExpungeError | None]:
    """What of a refused group is still to be served, None where nothing can be, and why what cannot be was refused."""
    policy = desk.policy
    guarantee = policy.guarantee(state.series(policy.planned, {})) if state.number < policy.planned else None

    def region(requests: Items[RequestRow]) -> float:
        assert guarantee is not None  # all is as when they are served, so that every copy of a desk chooses the same
        rows = in_fixed_order(desk.key, together(desk, ledger, requests))
        start = secret_of(desk.key, policy, state, ledger.created().surrogate_mac, rows).start
        asked = _asked(policy, state, rows, surrogate, guarantee)
        return judge(asked, measure(asked, seed=start))[1].region.radius

    apart = taken_apart(group, region) if guarantee is not None and isinstance(error, OF_THESE_ROWS) else None
    if apart is None:
        reason = retrain(error)
        ledger.append(RunRefused(tuple(request.id for request in group), type(reason).__name__, str(reason)))
        return None, reason
    for request, why in apart.beyond:
        set_aside(ledger, request, why)
    refused = [(request.id, retrain(why)) for request, why in apart.beyond if isinstance(why, Refused)]
    if refused:
        first = refused[0][1]
        ledger.append(RunRefused(tuple(number for number, _ in refused), type(first).__name__, str(first)))
    said = [retrain(why) for _, why in apart.beyond]
    return [part for part in (apart.within, apart.later) if part], said[0] if said else None


def _make(
    desk: Desk,
    ledger: Ledger,
    state: State,
    group: list[RequestRow],
    surrogate: Rows | None,
    sign_key: Ed25519PrivateKey | None,
    test: LabelledRows | None,
) -> _Made:
    """Compute everything; nothing is written."""
    policy = desk.policy
    if state.number >= policy.planned:
        raise RetrainNow(
            f"retrain now: all {policy.planned} planned models are published",
            "the probability set aside for bounds that fail was for so many",
            RETRAIN,
        )
    head = ledger.head()
    series = state.series(policy.planned, {"size": head.size, "hash": head.hash})
    series = replace(series, others=declared_others(ledger, group))
    rows = in_fixed_order(desk.key, together(desk, ledger, group))
    secret = secret_of(desk.key, policy, state, ledger.created().surrogate_mac, rows)
    request = _asked(policy, state, rows, surrogate, policy.guarantee(series))
    measured = measure(request, seed=secret.start)
    result = certify(request, measured, keyed=secret.bits)
    spent = count_mus(ledger) + Counter([result.statement.mu])
    composition = _composed(policy, spent, state, request, result)
    state_bytes = (
        anchored_bytes(state.model, handed_on(request)) if state.deposit is None else result.deposit.to_bytes()
    )
    accuracy = None if test is None else accuracies(desk, state, result.model, test)
    files = _files(state.number + 1, policy, result, composition, sign_key)
    certificate = result.certificate
    facts = ModelPrepared(
        model=state.number + 1,
        requests=tuple(row.id for row in group),
        n_rows=len(request.forget),
        n_left=request.n_source - request.n_forget,
        state_mac=mac(desk.key, "state", state_bytes),
        carried="measured" if request.record.provenance == "measured" else "declared",
        status=certificate.status,
        epsilon=policy.epsilon,
        delta=policy.delta,
        sigma=certificate.sigma,
        mu=result.statement.mu,
        total=certificate.total,
        terms=certificate.terms,
        failures=composition.failures,
        composition=composition,
        noise_share=noise_share(request, measured),
        accuracy=accuracy,
        keyid=None if sign_key is None else keyid_of(sign_key.public_key()),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        sizes={name: len(content) for name, content in files.items()},
        dossier=hashlib.sha256(certificate.to_json().encode()).hexdigest(),
        head_key=head_key(certificate.content["nonce"]),
        reach=_reach(policy, measured),
        forgotten=request.n_forget if policy.kept else None,
        others=series.others,
        spent={repr(mu): count for mu, count in sorted(spent.items())},
    )
    return _Made(files, state_bytes, facts, result.statement, certificate)


def _asked(policy: Policy, state: State, rows: EncodedRows, surrogate: Rows | None, guarantee: Guarantee) -> Request:
    """The request of a run, with what the desk knows of the source."""
    if state.deposit is not None:
        from expunge.desk.state import asked_of

        return asked_of(state.deposit, rows, guarantee, state.store, state.published_sha256, policy.device)
    assert surrogate is not None
    return ask(
        state.model,
        rows,
        surrogate,
        guarantee,
        execution=policy.execution(),
        model_sha256=state.published_sha256,
    )


def _composed(policy: Policy, spent: Counter[float], state: State, request: Request, result: Unlearned) -> Composition:
    """What all models say together once this one is published; refuses more than the desk was opened for.

    Each counts with the mu that its (epsilon, delta) allows, whatever it reached: the sum is published.
    """
    if state.deposit is None:
        composition = compose(spent, policy.delta, math.fsum(result.statement.content["noise"]["failures"].values()))
    else:
        from expunge.desk.state import composed

        composition = composed(request.weights.numel(), policy.delta, spent)
    if composition.epsilon > policy.limit:
        raise RetrainNow(
            f"retrain now: with this model all {composition.models} published models together would have epsilon "
            f"{composition.epsilon:.4g}",
            f"this desk was opened for at most {policy.limit:g}",
            RETRAIN,
        )
    return composition


def _reach(policy: Policy, measured: Measured) -> float | None:
    """How much of the deposit's reach is used; None without one."""
    if not policy.kept:
        return None
    from expunge.bounds.calibration import mu_for
    from expunge.evidence.deposit.evidence import reach_of

    assert policy.noise is not None
    return reach_of(measured.facts, str(measured.route), policy.noise * mu_for(policy.epsilon, policy.delta))


def noise_share(request: Request, measured: Measured) -> float:
    """The noise's expected length over the norm of the weights: at 1 the noise is as large as they are.

    With a deposit, of its deviation on outputs over theirs: where no output sees it, noise may be long.
    """
    noise = foresee(request, measured)[1].noise
    if noise is not None and request.deposit is not None:
        from expunge.desk.state import output_share

        return output_share(request, noise.scale)
    return math.inf if noise is None else noise.length / float(request.weights.norm())


def _files(
    number: int,
    policy: Policy,
    result: Unlearned,
    composition: Composition,
    sign_key: Ed25519PrivateKey | None,
) -> dict[str, bytes]:
    """What is published, by name: nothing in it, nor its size, may depend on who left."""
    files = {MODEL: result.model.to_bytes(), STATEMENT: result.statement.to_json().encode()}
    if sign_key is not None:
        files[SIGNED] = seal(result.statement, sign_key)
    files[REPORT] = statement_page(
        result.statement.content,
        number=number,
        composition=composition.to_json(),
        limit=policy.limit,
        keyid=None if sign_key is None else keyid_of(sign_key.public_key()),
    ).encode()
    return files
