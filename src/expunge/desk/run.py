"""Serving what waits: forget, publish, certify. What is written, and in which order, is in `desk.py`.

Requests that wait are served together, with one model. Those that cannot be are set aside, each with its reason, and
the others go on.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.bounds.calibration import Composition, Mus, closed_form, compose, mu_for
from expunge.bounds.ellipsoid import drawing_delta
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.certificate.dossier import Certificate
from expunge.certificate.sign import keyid_of, seal
from expunge.certificate.statement import Statement, head_key
from expunge.desk.accept import FORGET, read_request_rows
from expunge.desk.desk import Desk, Rows, publish, require_free
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
    require_contains,
)
from expunge.desk.policy import MODEL, REPORT, SIGNED, STATEMENT, Policy
from expunge.desk.state import Secret, State, count_mus, derive_secret, load_state, mac, require_mac, sort_rows
from expunge.door import ask
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
from expunge.evidence import Measurement, foresee
from expunge.mechanism import Unlearned, certify, judge, measure
from expunge.model import LinearModel, read_model
from expunge.report.page import statement_page
from expunge.request.promise import Execution, Series
from expunge.request.request import Request, anchored_bytes
from expunge.rows import EncodedRows, as_features, as_labels, encoder_of, names_of
from expunge.rows.columns import match_record
from expunge.runtime.progress import Progress, silent

TEST = "the test set"
OF_THESE_ROWS = (BeyondPolicy, VacuousClaim, UselessModel, InputError)  # refusals that say nothing of other rows
RETRAIN = "Retrain without the rows of all requests, and open a new desk."
AGAIN = "Retrain without its rows; or withdraw it, or let the next run try it again: expunge desk resume."
Trial = Callable[[Sequence[RequestRow]], float]


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


def run(
    desk: Desk,
    *,
    each: bool = False,
    sign_key: Ed25519PrivateKey | None = None,
    test: Rows | None = None,
    heads: Sequence[Head | PublishedHead] = (),
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
        state = load_state(desk, ledger)
        labelled = None if test is None else check_test_rows(state.model, test)
        require_free(desk.layout, state.number + 1)
        groups, refused = _group_pending(desk, ledger, each=each)
        surrogate = None
        if groups and not desk.policy.with_deposit:
            require_mac(desk, desk.layout.surrogate, "surrogate", ledger.created().surrogate_mac)
            surrogate = desk.rows_in(desk.layout.surrogate)
        work = _Work(desk, ledger, surrogate, sign_key, labelled)
        while groups:
            group, *groups = groups
            progress("Requests", len(published), len(published) + 1 + len(groups))
            state = load_state(desk, ledger)
            require_free(desk.layout, state.number + 1)
            try:
                release = work.compute(state, group)
            except (Refused, InputError) as error:
                again, reason = work.divide(state, group, error)
                groups = [] if again is None else again + groups
                refused = refused or reason
                continue
            facts, dossier = release.facts, release.certificate.to_json().encode()
            publish(desk.layout, ledger, facts, release.state, dossier, release.files)
            published.append(
                PublishedModel(facts.model, facts.requests, release.statement, release.certificate, facts.composition)
            )
        counts = ledger.counts()
    return Outcome(tuple(published), refused, counts.get("pending", 0), counts.get("aside", 0))


# One model ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class _Release:
    """Everything a run is to write, before a byte of it is written."""

    files: dict[str, bytes]
    state: bytes
    facts: ModelPrepared
    statement: Statement
    certificate: Certificate


@dataclass(frozen=True)
class _Work:
    """What is the same for all models of a run, and how each is made of it."""

    desk: Desk
    ledger: Ledger
    surrogate: Rows | None
    sign_key: Ed25519PrivateKey | None
    test: LabelledRows | None

    def request(self, state: State, group: Sequence[RequestRow], series: Series) -> tuple[Request, Secret]:
        """The request of these rows, in an order and with a secret that follow from them and the state alone."""
        desk, policy = self.desk, self.desk.policy
        rows = sort_rows(desk.key, _join_rows(desk, self.ledger, group))
        secret = derive_secret(desk.key, policy, state, self.ledger.created().surrogate_mac, rows)
        promise, digest = policy.promise(series), state.published_sha256
        if state.deposit is None:
            execution = policy.execution()
            return ask(state.model, rows, self.surrogate, promise, execution=execution, model_sha256=digest), secret
        here = Execution(device=policy.device)
        return ask(None, rows, None, promise, deposit=state.deposit, execution=here, model_sha256=digest), secret

    def compute(self, state: State, group: list[RequestRow]) -> _Release:
        """Compute everything; nothing is written."""
        desk, ledger, policy = self.desk, self.ledger, self.desk.policy
        if state.number >= policy.planned:
            raise RetrainNow(
                f"retrain now: all {policy.planned} planned models are published",
                "the probability set aside for bounds that fail was for so many",
                RETRAIN,
            )
        last = ledger.last_model()
        others = (0 if last is None else last.facts.others) + sum(request.others for request in group)
        request, secret = self.request(state, group, state.series(policy.planned, {**ledger.head().to_json()}, others))
        measured = measure(request, seed=secret.start)
        result = certify(request, measured, keyed=secret.bits)
        spent = count_mus(ledger) + Counter([result.statement.mu])
        composition = _compose_within(policy, spent, request, result)
        state_bytes = (
            anchored_bytes(state.model, request.next_past()) if state.deposit is None else result.deposit.to_bytes()
        )
        certificate, statement = result.certificate, result.statement
        keyid = None if self.sign_key is None else keyid_of(self.sign_key.public_key())
        number, together = state.number + 1, composition.to_json()
        page = statement_page(statement.content, number=number, composition=together, limit=policy.limit, keyid=keyid)
        # what is published: nothing in it, nor its size, may depend on who left
        files = {MODEL: result.model.to_bytes(), STATEMENT: statement.to_json().encode(), REPORT: page.encode()}
        if self.sign_key is not None:
            files[SIGNED] = seal(statement, self.sign_key)
        reach, noise_share = _shares(policy, request, measured)
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
            mu=statement.mu,
            total=certificate.total,
            terms=certificate.terms,
            failures=composition.failures,
            composition=composition,
            noise_share=noise_share,
            accuracy=None if self.test is None else _measure_accuracy(desk, state, result.model, self.test),
            keyid=keyid,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            sizes={name: len(content) for name, content in files.items()},
            dossier=hashlib.sha256(certificate.to_json().encode()).hexdigest(),
            head_key=head_key(certificate.content["nonce"]),
            reach=reach,
            forgotten=request.n_forget if policy.with_deposit else None,
            others=others,
            spent={repr(mu): count for mu, count in sorted(spent.items())},
        )
        return _Release(files, state_bytes, facts, statement, certificate)

    def divide(
        self, state: State, group: list[RequestRow], error: ExpungeError
    ) -> tuple[list[list[RequestRow]] | None, ExpungeError | None]:
        """What of a refused group is still to be served, None where nothing can be, and why the rest was refused."""
        planned, ledger = self.desk.policy.planned, self.ledger

        def region(requests: Sequence[RequestRow]) -> float:
            """All is as when they are served, so that every copy of a desk chooses the same."""
            asked, secret = self.request(state, requests, state.series(planned, {}))
            return judge(asked, measure(asked, seed=secret.start))[1].region.radius

        about_rows = state.number < planned and isinstance(error, OF_THESE_ROWS)
        division = divide_group(group, region) if about_rows else None
        if division is None:
            reason = _as_retrain(error)
            ledger.append(RunRefused(tuple(request.id for request in group), type(reason).__name__, str(reason)))
            return None, reason
        reasons = [_as_retrain(why) for _, why in division.beyond]
        for request, why in division.beyond:
            _set_aside(ledger, request, why)
        refused = [request.id for request, why in division.beyond if isinstance(why, Refused)]
        if refused:
            first = next(reason for reason in reasons if isinstance(reason, Refused))
            ledger.append(RunRefused(tuple(refused), type(first).__name__, str(first)))
        return [part for part in (division.within, division.later) if part], reasons[0] if reasons else None


def _compose_within(policy: Policy, mus: Counter[float], request: Request, result: Unlearned) -> Composition:
    """What all models say together once this one is published; refuses more than the desk was opened for.

    Each counts with the mu that its (epsilon, delta) allows, whatever it reached: the sum is published.
    """
    if policy.with_deposit:
        composition = compose_drawn(request.weights.numel(), policy.delta, mus)
    else:
        composition = compose(mus, policy.delta, math.fsum(result.statement.content["noise"]["failures"].values()))
    if composition.epsilon > policy.limit:
        raise RetrainNow(
            f"retrain now: with this model all {composition.models} published models together would have epsilon "
            f"{composition.epsilon:.4g}",
            f"this desk was opened for at most {policy.limit:g}",
            RETRAIN,
        )
    return composition


def compose_drawn(n_parameters: int, delta: float, mus: Mus) -> Composition:
    """All models with a deposit. Draws that are worse than counted are charged to delta, `1 + e^epsilon` times."""
    spent, models = ARITHMETIC_SHARE * delta, Counter(mus).total()
    lost = drawing_delta(n_parameters, closed_form(mus, delta - spent), models)
    if lost <= spent:
        return compose(mus, delta, spent)
    raise RetrainNow(
        f"retrain now: with {models} models float64 may make {lost:.3g} of delta {delta:g}",
        f"at most {spent:.3g} is set aside for what is lost when noise with a shape is drawn",
        "Retrain without the rows of all requests, and open a new desk with a larger delta or a smaller epsilon.",
    )


def _shares(policy: Policy, request: Request, measured: Measurement) -> tuple[float | None, float]:
    """How much of a deposit's reach is used, None without one; and how large the noise is.

    That is its expected length over the norm of the weights; with a deposit its deviation on outputs over theirs: where
    no output sees it, noise may be long.
    """
    noise, deposit, reach = foresee(request, measured)[1].noise, request.deposit, None
    if deposit is not None:
        from expunge.deposit.evidence import reach_of

        assert policy.noise is not None
        level = policy.noise * mu_for(policy.epsilon, policy.delta)
        reach = reach_of(measured.facts, str(measured.retained.route), level)
    if noise is None:
        return reach, math.inf
    if deposit is not None:
        return reach, noise.scale * float(deposit.output_noise) / max(float(deposit.output_spread), 1e-300)
    return reach, noise.length / float(request.weights.norm())


# Groups ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Division:
    """A group that cannot be served as one: who can now, who perhaps after that, and who cannot, with the reason."""

    within: list[RequestRow]
    later: list[RequestRow]
    beyond: list[tuple[RequestRow, ExpungeError]]


def divide_group(group: Sequence[RequestRow], trial: Trial) -> Division | None:
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
    within, later = (sorted(part, key=lambda request: request.id) for part in (order[:fits], order[fits:]))
    return Division(within, later, beyond)


def _fits(requests: Sequence[RequestRow], trial: Trial) -> bool:
    try:
        trial(sorted(requests, key=lambda request: request.id))
    except OF_THESE_ROWS:
        return False
    return True


def _group_pending(desk: Desk, ledger: Ledger, *, each: bool) -> tuple[list[list[RequestRow]], ExpungeError | None]:
    """What waits, in groups of one model each; a request whose file is damaged is set aside, and why is said.

    Rows whose columns have other names, where the model's record names none, are not put together.
    """
    groups: dict[object, list[RequestRow]] = {}
    damaged: ExpungeError | None = None
    unnamed: list[RequestRow] = []
    for request in ledger.requests("pending"):
        try:
            names = names_of(read_request_rows(desk, ledger, request.id))
        except InputError as error:
            _set_aside(ledger, request, error)
            damaged = damaged or error
            continue
        if each:
            groups[request.id] = [request]
        elif names is None or desk.policy.with_deposit:  # in a deposit every row was found as it is
            unnamed.append(request)
        else:
            groups.setdefault(names, []).append(request)
    made = list(groups.values())
    if unnamed:
        first = sorted([*unnamed, *(made.pop(0) if made else [])], key=lambda request: request.id)
        made.insert(0, first)
    return made, damaged


def _join_rows(desk: Desk, ledger: Ledger, group: Sequence[RequestRow]) -> EncodedRows:
    """The rows of these requests; refuses a file that is not the one that was accepted."""
    parts = [read_request_rows(desk, ledger, request.id) for request in group]
    encoders, names = {encoder_of(part) for part in parts}, {names_of(part) for part in parts}
    return EncodedRows(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([as_labels(labels, len(features), FORGET) for features, labels in parts]),
        encoders.pop() if len(encoders) == 1 else None,
        names.pop() if len(names) == 1 else None,  # all are in the model's order
    )


def _set_aside(ledger: Ledger, request: RequestRow, error: ExpungeError) -> None:
    """Set a request aside for what a run said of it."""
    remedy = AGAIN if isinstance(error, Refused) else error.remedy
    ledger.append(RequestSetAside(request.id, Aside(type(error).__name__, f"{error.found}; {error.required}", remedy)))


def _as_retrain(error: ExpungeError) -> ExpungeError:
    """A refusal as a desk says it; anything else as it is."""
    plain = not isinstance(error, Refused) or isinstance(error, RetrainNow)
    return error if plain else RetrainNow(f"retrain now: {error.found}", error.required, RETRAIN)


# Accuracy, of models that were published, never of private weights ----------------------------------------------------


class LabelledRows(NamedTuple):
    """Rows with the model's columns, checked before anything is done with a desk."""

    features: Any
    labels: Any

    def share_correct(self, model: LinearModel) -> float:
        """Of these rows, how many the model classifies as labelled."""
        return float(np.mean(model.predict(self.features) == self.labels))


def check_test_rows(model: LinearModel, test: Rows) -> LabelledRows:
    """The test rows in the order of the model's columns; refuses what nothing could be measured on."""
    features, labels = match_record(test, model.record, model.n_features, TEST)
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


def _measure_accuracy(desk: Desk, state: State, after: LinearModel, test: LabelledRows) -> Accuracy:
    """Of the model published before and of this one; the first one's before is the model the desk was opened with.

    Where the folder of the one before was taken away, nothing is said of it: the weights in private/ have no noise.
    """
    before: LinearModel | None = state.model
    if state.number > 0:
        path = desk.layout.published_model(state.number) / MODEL
        before = None
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != state.published_sha256:
            raise FileError(
                f"{path} is not the file that was published", "its digest is in the ledger", "Restore it from a copy."
            )
        if path.is_file():
            before = read_model(path)[0]
    return Accuracy(None if before is None else test.share_correct(before), test.share_correct(after), len(test.labels))
