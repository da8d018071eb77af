"""What is made of a result that is there already: its signature and its card. It is verified first, every time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from expunge.certificate.dossier import Certificate
from expunge.certificate.sign import keyid_of, read_private_key, read_public_key, seal, verify_file
from expunge.certificate.statement import Statement, read_certificate, read_statement
from expunge.certificate.verify import verify_statement
from expunge.desk.desk import Desk
from expunge.desk.ledger import Json, now
from expunge.desk.policy import HEAD, MODEL, SIGNED, STATEMENT
from expunge.desk.status import as_row, at_hand, models, read_dossier, requests, status
from expunge.errors import FileError
from expunge.report import csv_text, desk_page, run_page, statement_page
from expunge.report.card import model_card
from expunge.report.page import checked_names
from expunge.rows.output import require_absent, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOSSIER = Path("private") / "dossier.json"  # in a result of expunge unlearn
MOST_LISTED = 1000  # requests on the desk's page


def verify_result(
    folder: Path, public_key: Path | None = None, dossier: Certificate | None = None
) -> tuple[Statement, str | None]:
    """The statement of a result, verified with its model, and with a key the id of the key that signed it.

    A dossier is verified too, and that the statement follows from it.
    """
    require_result(folder)
    statement, keyid = read_statement(folder / STATEMENT), None
    if public_key is not None:
        signed, _ = verify_file(folder / SIGNED, public_key, folder / MODEL)
        if signed.content != statement.content:
            raise FileError(
                f"{folder / SIGNED} is another statement", "the two must be one", "Do not rely on the unsigned one."
            )
        keyid = keyid_of(read_public_key(public_key))
    verify_statement(statement, folder / MODEL, dossier)
    return statement, keyid


def require_result(folder: Path) -> None:
    """Refuse a folder without a statement."""
    if (folder / STATEMENT).is_file():
        return
    inside = folder.is_file() and (folder.parent / STATEMENT).is_file()
    raise FileError(
        f"{folder} is neither a desk nor a result of expunge unlearn",
        "a folder with a ledger or a statement is needed",
        f"Give the folder it is in, {folder.parent}."
        if inside
        else "Give the folder that expunge unlearn --out, or expunge desk init, made.",
    )


def sign_result(folder: str | Path, key: str | Path | Ed25519PrivateKey, target: str | Path | None = None) -> Path:
    """Sign the statement of a result that is there already; where the signed one was written.

    Statement and model are verified first, and the dossier where it lies in the folder. `key` is a private key or its
    file, which nobody but its owner may be able to read. Nothing is written over, nor added to what a desk published.
    """
    result = Path(folder)
    if target is None and (result / HEAD).is_file():
        raise FileError(
            f"{result} is a folder that a desk published",
            "it has the files that the desk's ledger names, and no others",
            "Write the signed statement elsewhere (--out); or give expunge desk run a --sign-key.",
        )
    place = result / SIGNED if target is None else Path(target)
    private = read_private_key(key) if isinstance(key, (str, Path)) else key
    require_absent(place)
    statement, _ = verify_result(
        result, dossier=read_certificate(result / DOSSIER) if (result / DOSSIER).is_file() else None
    )
    write_file(place, seal(statement, private))
    return place


def result_card(folder: str | Path, public_key: str | Path | None = None) -> str:
    """The model card of a result, made from its statement alone; with a key the signature is checked and named."""
    statement, keyid = verify_result(Path(folder), None if public_key is None else Path(public_key))
    return model_card(statement.content, STATEMENT if keyid is None else SIGNED, keyid)


def desk_report(desk: Desk, *, organisation: str | None = None, model_name: str | None = None) -> dict[str, bytes]:
    """The desk's own report: a page, two tables, and the pages of its published models, by file name.

    Private: requests are shown with their references. A model whose dossier was taken away has no page.
    """
    names = checked_names(organisation, model_name)
    today = now()[:10]
    rows = [as_row(request, today) for request in requests(desk)]
    published = models(desk)
    files: dict[str, bytes] = {}
    pages: dict[int, str] = {}
    for facts in published:
        if at_hand(desk.layout.dossier_of(facts["model"])):
            pages[facts["model"]] = f"model-{facts['model']:04d}.html"
            files[pages[facts["model"]]] = run_page(
                read_dossier(desk.layout, facts["model"], facts["dossier"]).content,
                number=facts["model"],
                requests=[row for row in rows if row["id"] in facts["requests"]],
                composition=facts["composition"],
                limit=desk.policy.limit,
                accuracy=facts["accuracy"],
                keyid=facts["keyid"],
                **names,
            ).encode()
    latest = rows[-MOST_LISTED:][::-1]
    page = desk_page(
        status(desk).to_json(), latest, published[::-1], shown=len(latest), total=len(rows), pages=pages, **names
    )
    asked = ("id", "reference", "accepted", "due", "n_rows", "state", "model", "late")
    made = ("model", "time", "status", "n_rows", "n_left", "epsilon", "delta", "sigma", "mu", "total", "keyid")
    return files | {"index.html": page.encode(), "requests.csv": _csv(asked, rows), "models.csv": _csv(made, published)}


def _csv(columns: tuple[str, ...], rows: list[Json]) -> bytes:
    return csv_text(columns, ([row[name] for name in columns] for row in rows)).encode()


def result_report(
    folder: Path,
    public_key: Path | None = None,
    *,
    full: bool = False,
    organisation: str | None = None,
    model_name: str | None = None,
) -> bytes:
    """The page of one result of `expunge unlearn`, which is verified first.

    The public page is made from the statement; with `full` it is made from the dossier, and is as private as that.
    `organisation` and `model_name` are shown on it, and stored nowhere else.
    """
    names = checked_names(organisation, model_name)
    require_result(folder)
    dossier = read_certificate(folder / DOSSIER) if full else None
    statement, keyid = verify_result(folder, public_key, dossier)
    if dossier is not None:
        return run_page(dossier.content, keyid=keyid, **names).encode()
    return statement_page(statement.content, keyid=keyid, **names).encode()
