"""Processing pending requests: intent first, ledger commit last (the order is in `recover.py`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from expunge.certificate.compose import Composition, compose
from expunge.certificate.content import Certificate
from expunge.certificate.sign import keyid_of, seal
from expunge.certificate.statement import Statement
from expunge.data import EncodedRows, encoder_of, in_order, names_of
from expunge.desk.desk import Desk, Rows
from expunge.desk.digests import mac
from expunge.desk.entries import Accuracy, ModelPrepared, RunRefused, RunStarted
from expunge.desk.layout import MODEL, REPORT, SIGNED, STATEMENT
from expunge.desk.ledger import Ledger, RequestRow
from expunge.desk.policy import Policy
from expunge.desk.recover import DOSSIER, PUBLIC, STATE, finish, tidy
from expunge.desk.state import State, checked_surrogate, current_state
from expunge.errors import DataError, ExpungeError, InputError, Refused, RetrainNow
from expunge.evidence.measured import Measured, foresee, handed_on
from expunge.mechanism import Unlearned, certify, measure
from expunge.model import LinearModel
from expunge.report.page import statement_page
from expunge.request.door import Request, ask
from expunge.request.guarantee import Guarantee
from expunge.request.past import anchored_bytes
from expunge.runtime.durable import PRIVATE, PRIVATE_FOLDER, make_folder, sync_folder, write_synced
from expunge.runtime.progress import Progress, silent


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
    """What a run did: models published, and why it stopped, if it did before all pending requests were done."""

    published: tuple[PublishedModel, ...]
    refused: ExpungeError | None
    pending: int


@dataclass(frozen=True)
class _Made:
    """Everything a run is to write, before a byte of it is written."""

    files: dict[str, bytes]
    state: bytes
    facts: ModelPrepared
    statement: Statement
    certificate: Certificate


def run(
    desk: Desk,
    *,
    batch: bool = False,
    sign_key: Ed25519PrivateKey | None = None,
    test: Rows | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Forget the rows of all pending requests, one model a request or one for all of them (`batch`).

    Stops at the first request that cannot be certified and says why; it and those after it stay pending. With a
    deposit, requests that are beyond its reach are left out, and the others are served: one very influential person
    must not keep everybody waiting. `test` rows are only used to measure accuracy before and after.
    """
    published: list[PublishedModel] = []
    refused: ExpungeError | None = None
    with desk.writing() as ledger:
        pending = ledger.requests("pending")
        groups = [pending] if batch and pending else [[request] for request in pending]
        surrogate = checked_surrogate(desk, ledger) if groups and not desk.policy.kept else None
        while groups:
            group, *groups = groups
            progress("Requests", len(published), len(published) + 1 + len(groups))
            state = current_state(desk, ledger)
            try:
                made = _make(desk, ledger, state, group, surrogate, sign_key, test)
            except (Refused, InputError) as error:
                reason = _retrain(error) if isinstance(error, Refused) else error
                within, groups = _others(desk, ledger, state, group, groups, error)
                asked = tuple(request.id for request in group if request not in within)
                ledger.append(RunRefused(asked, type(reason).__name__, str(reason)))
                refused = refused or reason
                continue
            _write(desk, ledger, made)
            facts = made.facts
            published.append(
                PublishedModel(facts.model, facts.requests, made.statement, made.certificate, facts.composition)
            )
        left = ledger.counts().get("pending", 0)
    return Outcome(tuple(published), refused, left)


def _others(
    desk: Desk,
    ledger: Ledger,
    state: State,
    group: list[RequestRow],
    groups: list[list[RequestRow]],
    error: ExpungeError,
) -> tuple[list[RequestRow], list[list[RequestRow]]]:
    """Those of a refused group that can be served together all the same, and the groups that are still to be served."""
    policy = desk.policy
    if not policy.kept:
        return [], []
    from expunge.desk.deposited import OF_THESE_ROWS, within_reach

    if not isinstance(error, OF_THESE_ROWS):
        return [], []
    guarantee = policy.guarantee(state.series(policy.planned, {}))

    def measured(numbers: Items[int]) -> Measured:
        chosen = _together(desk, ledger, [group[number] for number in numbers])
        return measure(_asked(policy, state, chosen, None, guarantee))

    within = [group[number] for number in within_reach(len(group), measured)]
    return within, [within, *groups] if within else groups


def _retrain(error: Refused) -> Refused:
    if isinstance(error, RetrainNow):
        return error
    return RetrainNow(
        f"retrain now: {error.found}", error.required, "Retrain without the rows of all requests, and open a new desk."
    )


def _make(
    desk: Desk,
    ledger: Ledger,
    state: State,
    group: list[RequestRow],
    surrogate: Rows | None,
    sign_key: Ed25519PrivateKey | None,
    test: Rows | None,
) -> _Made:
    """Compute everything; nothing is written."""
    policy = desk.policy
    if state.number >= policy.planned:
        raise RetrainNow(
            f"retrain now: all {policy.planned} planned models are published",
            "the probability set aside for bounds that fail was for so many",
            "Retrain without the rows of all requests, and open a new desk.",
        )
    head = ledger.head()
    series = state.series(policy.planned, {"size": head.size, "root": head.root})
    request = _asked(policy, state, _together(desk, ledger, group), surrogate, policy.guarantee(series))
    measured = measure(request)
    result = certify(request, measured)
    composition = _composed(policy, ledger, state, request, result)
    state_bytes = (
        anchored_bytes(state.model, handed_on(request)) if state.deposit is None else result.deposit.to_bytes()
    )
    accuracy = None if test is None else _accuracies(state.model, result.model, test)
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
        reach=_reach(policy, measured),
        forgotten=request.n_forget if policy.kept else None,
    )
    return _Made(files, state_bytes, facts, result.statement, certificate)


def _asked(policy: Policy, state: State, rows: EncodedRows, surrogate: Rows | None, guarantee: Guarantee) -> Request:
    """The request of a run, with what the desk knows of the source."""
    if state.deposit is not None:
        from expunge.desk.deposited import asked_of

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


def _composed(policy: Policy, ledger: Ledger, state: State, request: Request, result: Unlearned) -> Composition:
    """What all models say together once this one is published; refuses more than the desk was opened for.

    Each counts with the mu that its (epsilon, delta) allows, whatever it reached: the sum is published.
    """
    statement, models = result.statement, ledger.models()
    mus = [model.facts.mu for model in models] + [statement.mu]
    if state.deposit is None:
        composition = compose(mus, policy.delta, math.fsum(statement.content["noise"]["failures"].values()))
    else:
        from expunge.desk.deposited import composed

        composition = composed(request.weights.numel(), policy.delta, mus)
    if composition.epsilon > policy.limit:
        raise RetrainNow(
            f"retrain now: with this model all {len(mus)} published models together would have epsilon "
            f"{composition.epsilon:.4g}",
            f"this desk was opened for at most {policy.limit:g}",
            "Retrain without the rows of all requests, and open a new desk.",
        )
    return composition


def _reach(policy: Policy, measured: Measured) -> float | None:
    """How much of the deposit's reach is used; None without one."""
    if not policy.kept:
        return None
    from expunge.evidence.deposit.evidence import reach_of

    return reach_of(measured.facts, str(measured.route), policy.radii[-1])


def noise_share(request: Request, measured: Measured) -> float:
    """The noise's expected length over the norm of the weights: at 1 the noise is as large as they are.

    With a deposit, of its deviation on outputs over theirs: where no output sees it, noise may be long.
    """
    noise = foresee(request, measured)[1].noise
    if noise is not None and request.deposit is not None:
        from expunge.desk.deposited import output_share

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


def _together(desk: Desk, ledger: Ledger, group: Items[RequestRow]) -> EncodedRows:
    """The rows of these requests; refuses a file that is not the one that was accepted."""
    parts = []
    for request in group:
        path = desk.layout.rows_of(request.id)
        if not path.exists() or mac(desk.key, "rows", path.read_bytes()) != ledger.accepted_mac(request.id):
            raise DataError(
                f"the rows of request {request.id} are not those that were accepted",
                "its private file must be whole",
                "Restore the file, or withdraw the request and ask again.",
            )
        parts.append(desk.pending_rows(request.id))
    encoders, names = {encoder_of(part) for part in parts}, {names_of(part) for part in parts}
    if len(names - {None}) > 1 and not desk.policy.kept:  # in a deposit every row was found as it is
        raise DataError(
            f"the rows of {len(parts)} requests have other columns, or the same in another order",
            "the model's record names no columns, so nobody can say which are right",
            "Withdraw the requests, and ask with the columns of training in the order of training.",
        )
    return EncodedRows(
        np.concatenate([features for features, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        encoders.pop() if len(encoders) == 1 else None,
        names.pop() if len(names) == 1 else None,  # all are in the model's order
    )


def _accuracies(before: LinearModel, after: LinearModel, test: Rows) -> Accuracy:
    record, width = before.record, before.n_features
    features, labels = in_order(test, None if record is None else record.features, width, "the test set")
    return Accuracy(
        before=float(np.mean(before.predict(features) == np.asarray(labels))),
        after=float(np.mean(after.predict(features) == np.asarray(labels))),
        rows=len(np.asarray(labels)),
    )


def _write(desk: Desk, ledger: Ledger, made: _Made) -> None:
    """Intent, staged files, their digests, names, commit; then what must not stay is removed."""
    layout, number = desk.layout, made.facts.model
    ledger.append(RunStarted(number, made.facts.requests))
    layout.staging.mkdir(mode=PRIVATE_FOLDER)
    write_synced(layout.staging / STATE, made.state, PRIVATE)
    write_synced(layout.staging / DOSSIER, made.certificate.to_json().encode(), PRIVATE)
    make_folder(layout.staging / PUBLIC, made.files, private=False)
    sync_folder(layout.staging)
    sync_folder(layout.private)
    ledger.append(made.facts)
    finish(layout, ledger, number)
    tidy(layout, ledger)
