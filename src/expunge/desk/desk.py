"""A desk: a folder that is opened once, and everything that may be done with it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from expunge.data import read_data
from expunge.data.durable import PRIVATE_FOLDER, PUBLIC_FOLDER, cannot_write, sync_folder, write_whole
from expunge.data.output import require_absent
from expunge.desk.digests import mac, new_key
from expunge.desk.layout import Layout
from expunge.desk.ledger import Ledger
from expunge.desk.policy import Policy
from expunge.desk.recover import recover
from expunge.desk.seal import write_seal
from expunge.errors import FileError, ModelError
from expunge.model import LinearModel
from expunge.request import make_request
from expunge.sequence import Sequence

Rows = tuple[Any, Any]


@dataclass(frozen=True)
class Desk:
    """An existing desk."""

    layout: Layout
    policy: Policy
    key: bytes

    @contextlib.contextmanager
    def writing(self) -> Iterator[Ledger]:
        """The ledger, for one writer: what an earlier crash left is put right first, and the seal comes last."""
        with _locked(self.layout), _storing(self.layout.folder), Ledger.open(self.layout.ledger) as ledger:
            recover(self.layout, ledger)
            yield ledger
            write_seal(self.layout, ledger)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Ledger]:
        """The ledger, to look at."""
        with Ledger.open(self.layout.ledger) as ledger:
            yield ledger

    def pending_rows(self, request: int) -> Rows:
        """The rows of a pending request."""
        stored = read_data(self.layout.rows_of(request))
        return stored.features, stored.labels

    def surrogate(self) -> Rows:
        stored = read_data(self.layout.surrogate)
        return stored.features, stored.labels


def create_desk(
    folder: str | Path, model: LinearModel, surrogate: Rows, policy: Policy, digest: str | None = None
) -> Desk:
    """Open a desk in a new folder; `digest` is the model file's SHA-256, where it came from a file.

    The model becomes the first private state: from now on the desk answers for it, and the file it came from should go.
    """
    layout = Layout(Path(folder))
    require_absent(layout.folder)
    if model.record is None or model.record.noised:
        raise ModelError(
            "the model has no training record" if model.record is None else "the model is an unlearned, noised one",
            "a desk needs a model as it was trained, with its record",
            "Train with expunge train, or declare a record: model.with_record(declared_record(model, ...)).",
        )
    features, labels = np.asarray(surrogate[0]), np.asarray(surrogate[1])
    _check(model, (features, labels), policy)
    key = new_key()
    stored = arrays_bytes(features, labels)
    body = {
        "policy": policy.to_json(),
        "model_sha256": digest or model.sha256(),
        "surrogate_mac": mac(key, "surrogate", stored),
        "state_mac": mac(key, "state", model.to_bytes()),
        "store": str(model.weight.dtype).removeprefix("torch."),
    }
    made = layout.folder.with_name(
        f".expunge-{layout.folder.name}"
    )  # one name, so that what a kill left is found again
    with _storing(layout.folder):
        layout.folder.parent.mkdir(parents=True, exist_ok=True)
        if made.exists():
            shutil.rmtree(made)
        try:
            _fill(Layout(made), model, stored, key, body)
            made.rename(layout.folder)
            sync_folder(layout.folder.parent)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return open_desk(layout.folder)


def _fill(layout: Layout, model: LinearModel, surrogate: bytes, key: bytes, body: dict[str, Any]) -> None:
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
        ledger.append("created", body)
        write_seal(layout, ledger)
    for folder in (layout.private, layout.folder):
        sync_folder(folder)


def _check(model: LinearModel, surrogate: Rows, policy: Policy) -> None:
    """Refuse a model and a surrogate that could never be used together, before anything is promised."""
    make_request(
        model,
        (surrogate[0][:1], surrogate[1][:1]),
        surrogate,
        series=Sequence(policy.planned),
        **(policy.options() | {"force": True}),
    )


def open_desk(folder: str | Path) -> Desk:
    """The desk in this folder."""
    layout = Layout(Path(folder))
    if not layout.ledger.is_file() or not layout.key.is_file():
        raise FileError(f"{layout.folder} is not a desk", "a folder made by expunge init is needed", "Check the path.")
    with Ledger.open(layout.ledger) as ledger:
        try:
            policy = Policy.from_json(ledger.created()["policy"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(
                f"{layout.ledger} holds no policy ({error})", "a whole ledger is needed", "Restore it from a copy."
            ) from error
    return Desk(layout, policy, layout.key.read_bytes())


def arrays_bytes(features: Any, labels: Any) -> bytes:
    """Rows as the bytes of an npz file, nothing pickled."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, X=np.asarray(features), y=np.asarray(labels))
    return stream.getvalue()


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    with layout.lock.open("rb+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FileError(
                f"{layout.folder} is in use by another command", "one writer at a time", "Wait until it is done."
            ) from error
        yield


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Errors of the disk as Expunge's own."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
