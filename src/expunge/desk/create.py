"""Opening a desk: everything is checked, what its noise costs is told, then the folder appears whole."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from expunge.bounds import Ball
from expunge.bounds.calibration import LADDER, LOWEST_LEVEL, POLICY, REHEARSAL, Scale, asked_scale, mu_for
from expunge.certificate.claim import ARITHMETIC_SHARE
from expunge.deposit.file import HARMLESS
from expunge.deposit.matrices import gram_share
from expunge.desk.desk import Desk, Rows, open_desk
from expunge.desk.ledger import DeskCreated, Ledger, write_seal
from expunge.desk.policy import DEPOSIT, Layout, Policy
from expunge.desk.state import mac, npz_bytes
from expunge.door import ONE_VECTOR, ask, require_its_model
from expunge.errors import ModelError, OptionError, UselessModel
from expunge.heads.rows import evenly
from expunge.mechanism import measure
from expunge.model import LinearModel, one_row_a_class
from expunge.request.promise import NOTHING_DECLARED, Declared, Series, budget_notes, require_none_with_deposit
from expunge.request.request import Request, anchored_bytes, nothing_forgotten, record_for
from expunge.request.sets import FORCED, column_notes, is_labelled, refuse_squashed
from expunge.rows import EncodedRows, encoder_of, names_of
from expunge.rows.columns import match_record, to_arrays
from expunge.rows.hashes import KEY_BYTES
from expunge.rows.output import build_folder, require_absent
from expunge.runtime.arrays import double, dtype_name, norm, to_numpy
from expunge.runtime.files import PRIVATE_FOLDER, PUBLIC_FOLDER, sync_folder, write_whole
from expunge.surrogate import rehearsed_scale

if TYPE_CHECKING:
    from expunge.deposit.file import Deposit

DEFAULT_NOISE = "rows:1"  # a model
# the defaults; a deposit has its own
WITH_SURROGATE = {"step": "converged", "match_classes": False, "between": "populations", "sampling": "strict"}
DRAWS = 20  # of noise
MOST_TIMES = 16.0  # a hundredth of an output that noise is by default with a deposit, where epsilon is small
MOST_ROWS = 5_000  # of the surrogate, to measure accuracy on


@dataclass(frozen=True, repr=False)
class _NewDesk:
    """What a desk begins with, checked; a surrogate where there is no deposit."""

    policy: Policy
    model: LinearModel
    state: bytes
    surrogate: bytes | None
    notes: tuple[str, ...]
    digest: str  # of the model as it was given


def new_key() -> bytes:
    """A fresh key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def create_desk(
    folder: str | Path,
    model: LinearModel | None,
    surrogate: Rows | None,
    policy: Policy,
    digest: str | None = None,
    declared: Declared = NOTHING_DECLARED,
    say: Callable[[str], None] = lambda _: None,
    *,
    noise: float | str | Scale | None = DEFAULT_NOISE,
    deposit: Deposit | None = None,
) -> Desk:
    """Open a desk in a new folder; `digest` is the model file's SHA-256, where it came from a file.

    `noise` is what the noise of every model is set to, now, before anybody asks: a number, or `rows:10`, as for so many
    rows a model, rehearsed on surrogate rows for all planned models; `request`: each request chooses a power of two. A
    policy that has its noise already keeps it. `say` is told what every certificate will note, how a model of
    one vector was taken, and what noise costs.

    `declared` are the facts of a model without a record. The model becomes the first private state: from now on the
    desk answers for it, and the file it came from should go. With a `deposit`, and a policy whose distance is
    `deposit`, that is the state: no surrogate is given, the model only where it is not the deposit's own (one that was
    published, or is stored in another type), and noise is a number, or else `default_noise`.
    """
    policy.check()
    layout = Layout(Path(folder))
    require_absent(layout.folder)
    if deposit is None:
        if model is None or surrogate is None or policy.with_deposit:
            raise OptionError(
                "no model, no surrogate, or a policy for a deposit",
                "without a deposit a desk needs a model and a surrogate with its distance",
                "Give both, or the deposit.",
            )
        start = _start_with_surrogate(model, surrogate, policy, declared, asked_scale(noise))
    else:
        chosen = {
            name: getattr(policy, name) for name, usual in WITH_SURROGATE.items() if getattr(policy, name) != usual
        }
        require_none_with_deposit(chosen | vars(declared))
        start = _start_with_deposit(deposit, model, surrogate, policy, asked_scale(noise))
    key = new_key()
    first = DeskCreated(
        policy=start.policy,
        model_sha256=digest or start.digest,
        surrogate_mac="" if start.surrogate is None else mac(key, "surrogate", start.surrogate),
        state_mac=mac(key, "state", start.state),
        store=dtype_name(start.model.weight.dtype),
    )
    build_folder(layout.folder, lambda made: _fill(Layout(made), start, key, first))  # and removes what a kill left
    for note in start.notes:
        say(note)
    return open_desk(layout.folder)


def _fill(layout: Layout, start: _NewDesk, key: bytes, first: DeskCreated) -> None:
    """Every file of a new desk."""
    for private in (layout.private, layout.rows, layout.states, layout.dossiers):
        private.mkdir(mode=PRIVATE_FOLDER)
    layout.published.mkdir(mode=PUBLIC_FOLDER)
    write_whole(layout.key, key)
    write_whole(layout.lock, b"")
    if start.surrogate is not None:
        write_whole(layout.surrogate, start.surrogate)
    write_whole(layout.state_of(0), start.state)
    Ledger.create(layout.ledger)
    with Ledger.open(layout.ledger) as ledger:
        ledger.append(first)
        write_seal(layout, ledger)
    sync_folder(layout.private)


# With a deposit -------------------------------------------------------------------------------------------------------


def _start_with_deposit(
    deposit: Deposit, model: LinearModel | None, surrogate: Rows | None, policy: Policy, noise: Scale
) -> _NewDesk:
    if surrogate is not None or not policy.with_deposit:
        raise OptionError(
            "a deposit with a surrogate, or with a distance",
            "with a deposit nothing stands in for the source",
            "Leave surrogate and distance out (Policy: distance='deposit').",
        )
    if noise.kind == REHEARSAL and noise != asked_scale(DEFAULT_NOISE):
        raise OptionError(
            f"noise as for {noise.rows} rows with a deposit",
            "there are no rows to rehearse with",
            "Give a number, or leave --noise (noise) out for noise that hardly moves outputs.",
        )
    require_its_model(model, deposit)
    scale = policy.noise if policy.noise is not None else noise.value
    scale = default_noise(deposit, policy.epsilon, policy.delta) if scale is None else scale
    policy = replace(policy, distance=DEPOSIT, step="newton", noise=scale)
    moved, spread, numbers = scale * deposit.output_noise, deposit.output_spread, deposit.numbers
    if moved > spread and not policy.force:
        raise UselessModel(
            f"the noise would move a typical output by {moved:.3g}, and the outputs themselves are about {spread:.3g}",
            "every run of this desk would be refused",
            "Set less noise (--noise), or insist with --force (force=True).",
        )
    before = (
        f"{numbers.forgotten:,} rows had left the deposit before; what was published of that is not counted in what "
        "all models of this desk say together"
    )
    hidden = scale * mu_for(policy.epsilon, policy.delta * (1.0 - ARITHMETIC_SHARE))
    cost = (
        f"the noise of every model moves a typical output by {moved:.3g}; the outputs themselves are about "
        f"{spread:.3g}. Requests that change the model by more than {hidden:.3g} in the noise's measure are refused "
        "(expunge plan tells)"
    )
    notes = (*budget_notes(policy.delta, deposit.record.n_source), *((before,) if numbers.generation else ()), cost)
    first = deposit.model if model is None else model
    return _NewDesk(policy, first, deposit.to_bytes(), None, notes, first.sha256())


def default_noise(deposit: Deposit, epsilon: float, delta: float) -> float:
    """Noise that moves a typical output by at most a hundredth, from public numbers alone: it is in every statement.

    At an epsilon below 1 it is as much larger as it takes to hide what it would hide at epsilon 1, up to 16 times: on
    Adult a hundredth let no ten random people leave at epsilon 0.1.

    With `M_0 = c tau (G/tau)^t + reg` noise of scale 1 moves a typical output by the root of
    `tr(M_0^-1 G) <= sum_i (lambda_i/tau)^(1-t) / c <= d/c`, whatever the rows are (`tau` is the mean eigenvalue of
    their second moments G, and a power below 1 is concave). So `0.01 sqrt(c/d)` needs the loss, the number of classes
    and the number of features, and nobody's row. The deposit's own first level, made of all rows of the source, would
    tell whether somebody was there who has a column to themselves.
    """
    features = deposit.anchor.shape[1]
    times = min(max(1.0, mu_for(1.0, delta) / mu_for(epsilon, delta)), MOST_TIMES)
    return max(times * HARMLESS * math.sqrt(gram_share(deposit.head) / features), LOWEST_LEVEL)


# With a surrogate -----------------------------------------------------------------------------------------------------


def _start_with_surrogate(
    model: LinearModel, surrogate: Rows, policy: Policy, declared: Declared, noise: Scale
) -> _NewDesk:
    """Refuses a model and a surrogate that could never be used together, before anything is promised."""
    record, name = record_for(model, declared), "the surrogate set"
    if record.noised:
        raise ModelError(
            "the model is an unlearned, noised one",
            "a desk needs a model as it was trained",
            "Open the desk with the model before noise, or retrain.",
        )
    given = model if model.record is not None else model.with_record(record)
    model = one_row_a_class(given)
    matched = match_record(surrogate, record, model.n_features, name)
    features, labels = map(np.asarray, to_arrays(EncodedRows(*matched), name))
    known = encoder_of(surrogate), names_of(matched)
    rows, first = EncodedRows(features, labels, *known), EncodedRows(features[:1], labels[:1], *known)
    promise = replace(policy.promise(Series(policy.planned)), force=True)
    request = ask(model, first, rows, promise, execution=policy.execution())  # to look at
    forced = tuple(note for note in request.notes if note.startswith(FORCED))
    if forced and not policy.force:
        raise UselessModel(
            forced[0].removeprefix(FORCED),
            "every run of this desk would be refused",
            "Give a surrogate, and features, as the model was trained on; or insist with --force (force=True).",
        )
    policy = _set_noise(request, policy, noise)
    notes = [
        *budget_notes(policy.delta, record.n_source),
        *column_notes(request.record, {name: rows}),
        *forced,
        *refuse_squashed(request.surrogate.scaling, name, record.max_norm, force=True),
        *(() if model is given else (ONE_VECTOR,)),
        *([_describe_cost(request, policy.noise)] if policy.noise is not None and is_labelled(matched) else ()),
    ]
    state = anchored_bytes(model, nothing_forgotten(model))
    return _NewDesk(
        policy, model, state, npz_bytes(features, labels, *known), tuple(dict.fromkeys(notes)), given.sha256()
    )


def _set_noise(request: Request, policy: Policy, noise: Scale) -> Policy:
    """The policy with its noise; a rehearsal is for the rows of all planned models, at most half of what there is."""
    if policy.noise is not None or noise.kind == LADDER:
        return policy
    if noise.kind == POLICY:
        policy = replace(policy, noise=noise.value)
    else:
        assert noise.rows is not None
        rows = max(1, min(noise.rows * policy.planned, min(request.n_source, request.n_surrogate) // 2))
        policy = replace(policy, noise=rehearsed_scale(request, rows, measure), noise_rows=rows)
    assert policy.noise is not None
    length, size = Ball(request.head.n_parameters).length(policy.noise), norm(request.weights)
    if length > size and not policy.force:
        raise UselessModel(
            f"the noise (norm {length:.3g}) would swamp the weights (norm {size:.3g}) of every model",
            f"at most {size / length * policy.noise:.3g} is of use",
            "Set less noise or plan fewer models (expunge plan shows what that costs), use a larger surrogate, train "
            "with a larger l2, or raise an epsilon that is small; or insist with --force (force=True).",
        )
    return policy


def _describe_cost(request: Request, scale: float) -> str:
    """How many surrogate rows are right without the noise and with it."""
    shown = evenly(request.surrogate, MOST_ROWS)
    features, labels = to_numpy(double(shown.features)), to_numpy(shown.labels)
    weights, generator = to_numpy(request.weights), np.random.default_rng(1)  # nothing of this is published

    def right(at: NDArray[np.float64]) -> float:
        return 100.0 * float(np.mean((features @ at.T).argmax(axis=1) == labels))

    noise = Ball(weights.size)
    drawn = [noise.sample(scale, generator).reshape(tuple(weights.shape)) for _ in range(DRAWS)]
    after = float(np.mean([right(weights + each) for each in drawn]))
    return f"of the surrogate's rows {right(weights):.1f} % are right before, and with this noise {after:.1f} %"
