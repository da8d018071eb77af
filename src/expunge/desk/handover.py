"""What is made of a result, or of a desk, that is there already: signature, pages. Results are verified first."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from expunge.certificate.sign import read_private_key, seal, verify_file
from expunge.certificate.statement import Statement, read_certificate, read_statement
from expunge.desk.desk import Desk
from expunge.desk.ledger import Json, now
from expunge.desk.policy import MODEL, SIGNED, STATEMENT, Layout
from expunge.desk.status import at_hand, models, read_dossier, requests, status
from expunge.errors import FileError
from expunge.report import csv_text, desk_page, run_page, statement_page
from expunge.rows.output import require_absent, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOSSIER = Path("private") / "dossier.json"  # in a result of expunge unlearn
MOST_LISTED = 1000  # requests on the desk's page


def _verify(folder: Path, public_key: Path | None = None, *, dossier: bool = False) -> tuple[Statement, str | None]:
    """The statement of a result, verified with its model, and the id of the key that signed it where one is given.

    With `dossier` that is verified too, and that the statement follows from it.
    """
    if not (folder / STATEMENT).is_file():
        inside = folder.is_file() and (folder.parent / STATEMENT).is_file()
        raise FileError(
            f"{folder} is neither a desk nor a result of expunge unlearn",
            "a folder with a ledger or a statement is needed",
            f"Give the folder it is in, {folder.parent}."
            if inside
            else "Give the folder that expunge unlearn --out, or expunge desk init, made.",
        )
    statement = read_statement(folder / STATEMENT)
    name = STATEMENT if public_key is None else SIGNED
    checked, verdict = verify_file(folder / name, public_key, folder / MODEL, folder / DOSSIER if dossier else None)
    if checked.content != statement.content:
        raise FileError(
            f"{folder / SIGNED} is another statement", "the two must be one", "Do not rely on the unsigned one."
        )
    return statement, verdict.signed_by


def sign_result(folder: str | Path, key: str | Path | Ed25519PrivateKey, target: str | Path | None = None) -> Path:
    """Sign the statement of a result that is there already; where the signed one was written.

    Statement and model are verified first, and the dossier where it lies in the folder. `key` is a private key or its
    file, which nobody but its owner may be able to read. Nothing is written over, nor added to what a desk published.
    """
    result = Path(folder)
    if target is None and Layout(result.absolute().parent.parent).ledger.is_file():
        raise FileError(
            f"{result} is a folder that a desk published",
            "it has the files that the desk's ledger names, and no others",
            "Write the signed statement elsewhere (--out); or give expunge desk run a --sign-key.",
        )
    place = result / SIGNED if target is None else Path(target)
    private = read_private_key(key) if isinstance(key, (str, Path)) else key
    require_absent(place)
    statement, _ = _verify(result, dossier=(result / DOSSIER).is_file())
    write_file(place, seal(statement, private))
    return place


def desk_report(desk: Desk) -> dict[str, bytes]:
    """The desk's own report: a page, two tables, and the pages of its published models, by file name.

    Private: requests are shown with their references. A model whose dossier was taken away has no page.
    """
    today, published = now()[:10], models(desk)
    rows = [asdict(request) | {"late": request.open and request.due < today} for request in requests(desk)]
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
                keyid=facts["keyid"],
            ).encode()
    latest = rows[-MOST_LISTED:][::-1]
    page = desk_page(status(desk).to_json(), latest, published[::-1], total=len(rows), pages=pages)
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
) -> bytes:
    """The page of one result of `expunge unlearn`, which is verified first.

    The public page is made from the statement; with `full` it is made from the dossier, and is as private as that.
    """
    statement, keyid = _verify(folder, public_key, dossier=full)
    if full:
        return run_page(read_certificate(folder / DOSSIER).content, keyid=keyid).encode()
    return statement_page(statement.content, keyid=keyid).encode()
