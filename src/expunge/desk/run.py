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
    Aside,
    Ledger,
    ModelPrepared,
    RequestRow,
    RequestSetAside,
    RunRefused,
    SavedHead,
    require_contains,
)
from expunge.desk.policy import MODEL, REPORT, SIGNED, STATEMENT, Policy
from expunge.desk.state import Secret, State, derive_secret, load_state, mac, require_mac, sort_rows
from expunge.door import ask
from expunge.errors import BeyondPolicy, ExpungeError, InputError, Refused, RetrainNow, UselessModel, VacuousClaim
from expunge.evidence import Measurement, foresee
from expunge.mechanism import Unlearned, certify, judge, measure
from expunge.report.page import statement_page
from expunge.request.promise import Execution, Series
from expunge.request.request import Request, anchored_bytes
from expunge.rows import EncodedRows, as_labels, encoder_of, names_of
from expunge.runtime.arrays import norm, size
from expunge.runtime.progress import Progress, silent

OF_THESE_ROWS = (BeyondPolicy, VacuousClaim, UselessModel, InputError)  # refusals that say nothing of other rows
RETRAIN = "Retrain without the rows of all requests, and open a new desk."
AGAIN = "Retrain without its rows; or withdraw it, or let the next run try it again: expunge desk resume."


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
    heads: Sequence[SavedHead] = (),
    progress: Progress = silent,
) -> Outcome:
    """Forget the rows of all pending requests with one model for all of them, or one a request (`each`).

    A request that cannot be served is set aside with its reason, and the others go on. Where the desk itself has come
    to its end (all planned models are published, say) it stops; those that wait stay pending. A ledger that is older
    than one of `heads`, saved earlier, is refused before anything is done.
    """
    published: list[PublishedModel] = []
    with desk.reading() as ledger:  # before anything is put right: what was prepared may be published by that
        for head in heads:
            require_contains(ledger, head)
    with desk.writing() as ledger:
        state = load_state(desk, ledger)
        require_free(desk.layout, state.number + 1)
        groups, refused = _group_pending(desk, ledger, each=each)
        surrogate = None
        if groups and not desk.policy.with_deposit:
            require_mac(desk, desk.layout.surrogate, "surrogate", ledger.created().surrogate_mac)
            surrogate = desk.rows_in(desk.layout.surrogate)
        work = _Work(desk, ledger, surrogate, sign_key)
        while groups:
            group, *groups = groups
            progress("Requests", len(published), len(published) + 1 + len(groups))
            try:
                model, facts, state_bytes, files = work.compute(state, group)
            except (Refused, InputError) as error:
                again, reason = work.divide(state, group, error)
                groups, refused = [] if again is None else again + groups, refused or reason
                continue
            publish(desk.layout, ledger, facts, state_bytes, model.certificate.to_json().encode(), files)
            published.append(model)
            state = load_state(desk, ledger)
            require_free(desk.layout, state.number + 1)
        counts = ledger.counts()
    return Outcome(tuple(published), refused, counts["pending"], counts["aside"])


# One model ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """What is the same for all models of a run, and how each is made of it."""

    desk: Desk
    ledger: Ledger
    surrogate: Rows | None
    sign_key: Ed25519PrivateKey | None

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

    def compute(
        self, state: State, group: list[RequestRow]
    ) -> tuple[PublishedModel, ModelPrepared, bytes, dict[str, bytes]]:
        """Everything a run is to write, before a byte of it is: the model, its entry, the state, what is published."""
        desk, policy, number = self.desk, self.desk.policy, state.number + 1
        if number > policy.planned:
            raise RetrainNow(
                f"retrain now: all {policy.planned} planned models are published",
                "the probability set aside for bounds that fail was for so many",
                RETRAIN,
            )
        made = [model.facts for model in self.ledger.models()]
        others = (made[-1].others if made else 0) + sum(request.others for request in group)
        series = state.series(policy.planned, {**self.ledger.head().to_json()}, others)
        request, secret = self.request(state, group, series)
        measured = measure(request, seed=secret.start)
        result = certify(request, measured, keyed=secret.bits)
        certificate, statement = result.certificate, result.statement
        composition = _compose_within(policy, Counter([*(facts.mu for facts in made), statement.mu]), request, result)
        keyid = None if self.sign_key is None else keyid_of(self.sign_key.public_key())
        together = composition.to_json()
        page = statement_page(statement.content, number=number, composition=together, limit=policy.limit, keyid=keyid)
        # what is published: nothing in it, nor its size, may depend on who left
        files = {MODEL: result.model.to_bytes(), STATEMENT: statement.to_json().encode(), REPORT: page.encode()}
        if self.sign_key is not None:
            files[SIGNED] = seal(statement, self.sign_key)
        state_bytes = (
            anchored_bytes(state.model, request.next_past()) if state.deposit is None else result.deposit.to_bytes()
        )
        noise = foresee(request, measured)[1].noise
        assert noise is not None
        facts = ModelPrepared(
            model=number,
            requests=tuple(row.id for row in group),
            n_rows=len(request.forget),
            n_left=request.n_source - request.n_forget,
            state_mac=mac(desk.key, "state", state_bytes),
            status=certificate.status,
            epsilon=policy.epsilon,
            delta=policy.delta,
            sigma=certificate.sigma,
            mu=statement.mu,
            total=certificate.total,
            terms=certificate.terms,
            composition=composition,
            noise_share=None if policy.with_deposit else noise.length / norm(request.weights),
            keyid=keyid,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            sizes={name: len(content) for name, content in files.items()},
            dossier=hashlib.sha256(certificate.to_json().encode()).hexdigest(),
            head_key=head_key(certificate.content["nonce"]),
            reach=_reach(policy, measured) if policy.with_deposit else None,
            forgotten=request.n_forget,
            others=others,
        )
        return PublishedModel(number, facts.requests, statement, certificate, composition), facts, state_bytes, files

    def divide(
        self, state: State, group: list[RequestRow], error: ExpungeError
    ) -> tuple[list[list[RequestRow]] | None, ExpungeError | None]:
        """What of a refused group is still to be served, None where nobody can be, and why the rest was refused."""
        ledger, planned = self.ledger, self.desk.policy.planned

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
        within, later, beyond = division
        for request, why in beyond:
            _set_aside(ledger, request, why)
        refused = [(request.id, _as_retrain(why)) for request, why in beyond if isinstance(why, Refused)]
        if refused:
            numbers, reasons = zip(*refused, strict=True)
            ledger.append(RunRefused(numbers, type(reasons[0]).__name__, str(reasons[0])))
        return [part for part in (within, later) if part], _as_retrain(beyond[0][1]) if beyond else None


def _compose_within(policy: Policy, mus: Counter[float], request: Request, result: Unlearned) -> Composition:
    """What all models say together once this one is published; refuses more than the desk was opened for.

    Each counts with the mu that its (epsilon, delta) allows, whatever it reached: the sum is published.
    """
    if policy.with_deposit:
        composition = compose_drawn(size(request.weights), policy.delta, mus)
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


def _reach(policy: Policy, measured: Measurement) -> float:
    """How much of a deposit's reach a model uses."""
    from expunge.deposit.evidence import reach_of

    assert policy.noise is not None
    return reach_of(measured.facts, str(measured.retained.route), policy.noise * mu_for(policy.epsilon, policy.delta))


# Groups ---------------------------------------------------------------------------------------------------------------

Trial = Callable[[Sequence[RequestRow]], float]
Division = tuple[list[RequestRow], list[RequestRow], list[tuple[RequestRow, ExpungeError]]]


def divide_group(group: Sequence[RequestRow], trial: Trial) -> Division | None:
    """Who of a refused group can be served now, who perhaps after that, and who cannot, with the reason.

    `trial` gives the size of the region of some requests together, or refuses them. Those who cannot be served alone
    are the last; of the others as many as fit together are the first, those with the smallest regions before others.
    None where all fit: then the refusal is not about their rows.
    """
    alone: list[tuple[float, RequestRow]] = []
    beyond: list[tuple[RequestRow, ExpungeError]] = []
    for request in group:
        try:
            alone.append((trial([request]), request))
        except OF_THESE_ROWS as error:
            beyond.append((request, error))
    order = [request for _, request in sorted(alone, key=lambda one: one[0])]

    def by_number(some: list[RequestRow]) -> list[RequestRow]:
        return sorted(some, key=lambda request: request.id)

    def fit(count: int) -> bool:
        try:
            trial(by_number(order[:count]))
        except OF_THESE_ROWS:
            return False
        return True

    most = len(order)
    if not beyond:
        if fit(most):
            return None
        most -= 1
    fits = min(len(order), 1)
    while fits < most:
        tried = (fits + most + 1) // 2
        fits, most = (tried, most) if fit(tried) else (fits, tried - 1)
    return by_number(order[:fits]), by_number(order[fits:]), beyond


def _group_pending(desk: Desk, ledger: Ledger, *, each: bool) -> tuple[list[list[RequestRow]], ExpungeError | None]:
    """What waits, in groups of one model each; a request whose file is damaged is set aside, and why is said.

    Rows whose columns have other names, where the model's record names none, are not put together.
    """
    groups: dict[object, list[RequestRow]] = {}
    damaged: ExpungeError | None = None
    for request in ledger.requests("pending"):
        try:
            names = names_of(read_request_rows(desk, ledger, request.id))
        except InputError as error:
            _set_aside(ledger, request, error)
            damaged = damaged or error
            continue
        of = request.id if each else None if desk.policy.with_deposit else names  # a deposit's rows were found as is
        groups.setdefault(of, []).append(request)
    unnamed = groups.pop(None, [])
    if unnamed and groups:
        first = min(groups.values(), key=lambda group: group[0].id)
        first[:] = sorted(first + unnamed, key=lambda request: request.id)
        unnamed = []
    return [group for group in (unnamed, *groups.values()) if group], damaged


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
