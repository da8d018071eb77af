"""Opening a desk: everything is checked, then the folder appears whole."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from expunge.data import EncodedRows, encoder_of
from expunge.data.output import require_absent
from expunge.desk.desk import Desk, Rows, open_desk, storing
from expunge.desk.digests import arrays_bytes, mac, new_key
from expunge.desk.entries import DeskCreated
from expunge.desk.layout import Layout
from expunge.desk.ledger import Ledger
from expunge.desk.policy import Policy
from expunge.desk.seal import write_seal
from expunge.errors import ModelError
from expunge.model import LinearModel
from expunge.request.declared import NOTHING_DECLARED, Declared, record_for
from expunge.request.door import ask
from expunge.request.series import Series
from expunge.runtime.durable import PRIVATE_FOLDER, PUBLIC_FOLDER, sync_folder, write_whole


def create_desk(
    folder: str | Path,
    model: LinearModel,
    surrogate: Rows,
    policy: Policy,
    digest: str | None = None,
    declared: Declared = NOTHING_DECLARED,
) -> Desk:
    """Open a desk in a new folder; `digest` is the model file's SHA-256, where it came from a file.

    `declared` are the facts of a model without a record. The model becomes the first private state: from now on the
    desk answers for it, and the file it came from should go.
    """
    policy.checked()
    layout = Layout(Path(folder))
    require_absent(layout.folder)
    record = record_for(model, declared)
    if record.noised:
        raise ModelError(
            "the model is an unlearned, noised one",
            "a desk needs a model as it was trained",
            "Open the desk with the model before noise, or retrain.",
        )
    model = model if model.record is not None else model.with_record(record)
    encoder = encoder_of(surrogate)
    features, labels = np.asarray(surrogate[0]), np.asarray(surrogate[1])
    _check(model, EncodedRows(features, labels, encoder), policy)
    key = new_key()
    stored = arrays_bytes(features, labels, encoder)
    first = DeskCreated(
        policy=policy,
        model_sha256=digest or model.sha256(),
        surrogate_mac=mac(key, "surrogate", stored),
        state_mac=mac(key, "state", model.to_bytes()),
        store=str(model.weight.dtype).removeprefix("torch."),
    )
    # one name, so that what a kill left is found again
    made = layout.folder.with_name(f".expunge-{layout.folder.name}")
    with storing(layout.folder):
        layout.folder.parent.mkdir(parents=True, exist_ok=True)
        if made.exists():
            shutil.rmtree(made)
        try:
            _fill(Layout(made), model, stored, key, first)
            made.rename(layout.folder)
            sync_folder(layout.folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return open_desk(layout.folder)


def _fill(layout: Layout, model: LinearModel, surrogate: bytes, key: bytes, first: DeskCreated) -> None:
    layout.folder.mkdir(mode=PUBLIC_FOLDER)
    for private in (layout.private, layout.rows, layout.states):
        private.mkdir(mode=PRIVATE_FOLDER)
    layout.published.mkdir(mode=PUBLIC_FOLDER)
    write_whole(layout.key, key)
    write_whole(layout.lock, b"")
    write_whole(layout.surrogate, surrogate)
    write_whole(layout.state_of(0), model.to_bytes())
    Ledger.create(layout.ledger)
    with Ledger.open(layout.ledger) as ledger:
        ledger.append(first)
        write_seal(layout, ledger)
    for folder in (layout.private, layout.folder):
        sync_folder(folder)


def _check(model: LinearModel, surrogate: Rows, policy: Policy) -> None:
    """Refuse a model and a surrogate that could never be used together, before anything is promised."""
    guarantee = replace(policy.guarantee(Series(policy.planned)), force=True)
    ask(model, (surrogate[0][:1], surrogate[1][:1]), surrogate, guarantee, execution=policy.execution())
