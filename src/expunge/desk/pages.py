"""The desk's own report: a page, two tables, and the pages of its published models."""

from __future__ import annotations

from pathlib import Path

from expunge.certificate.content import read_certificate
from expunge.certificate.verify import verify
from expunge.desk.check import at_hand, whole_dossier
from expunge.desk.desk import Desk
from expunge.desk.entries import Json
from expunge.desk.handover import dossier_of, require_result, verified_result
from expunge.desk.layout import MODEL, OLD_CERTIFICATE, STATEMENT
from expunge.desk.ledger import now
from expunge.desk.status import MOST_LISTED, as_row, models, requests, status
from expunge.report import csv_text, desk_page, run_page, statement_page
from expunge.report.answers import checked_names


def desk_report(desk: Desk, *, organisation: str | None = None, model_name: str | None = None) -> dict[str, bytes]:
    """The files of the report, by name. Private: requests are shown with their references."""
    names = checked_names(organisation, model_name)
    today = now()[:10]
    everything = requests(desk)
    rows = [as_row(request, today) for request in everything]
    published = models(desk)
    files: dict[str, bytes] = {}
    pages: dict[int, str] = {}
    for facts in published:
        page = _page_of(desk, facts, rows, names)
        if page is not None:
            pages[facts["model"]] = f"model-{facts['model']:04d}.html"
            files[pages[facts["model"]]] = page
    latest = rows[-MOST_LISTED:][::-1]
    files["index.html"] = desk_page(
        status(desk).to_json(), latest, published[::-1], shown=len(latest), total=len(rows), pages=pages, **names
    ).encode()
    columns = ("id", "reference", "accepted", "due", "n_rows", "state", "model", "late")
    files["requests.csv"] = csv_text(columns, ([row[name] for name in columns] for row in rows)).encode()
    facets = ("model", "time", "status", "n_rows", "n_left", "epsilon", "delta", "sigma", "mu", "total", "keyid")
    files["models.csv"] = csv_text(facets, ([facts[name] for name in facets] for facts in published)).encode()
    return files


def _page_of(desk: Desk, facts: Json, rows: list[Json], names: Json) -> bytes | None:
    """The full page of a model, from its dossier, which must be as it was written; None where it was taken away."""
    path = desk.layout.dossier_of(facts["model"])
    if at_hand(path):
        return run_page(
            whole_dossier(desk.layout, facts["model"], facts["dossier"]).content,
            number=facts["model"],
            requests=[row for row in rows if row["id"] in facts["requests"]],
            composition=facts["composition"],
            limit=desk.policy.limit,
            accuracy=facts["accuracy"],
            keyid=facts["keyid"],
            **names,
        ).encode()
    return None


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
    if (folder / OLD_CERTIFICATE).is_file() and not (folder / STATEMENT).is_file():
        certificate = read_certificate(folder / OLD_CERTIFICATE)
        verify(certificate, folder / MODEL)
        return run_page(certificate.content, **names).encode()
    require_result(folder)
    dossier = dossier_of(folder) if full else None
    statement, keyid = verified_result(folder, public_key, dossier)
    if dossier is not None:
        return run_page(dossier.content, keyid=keyid, **names).encode()
    return statement_page(statement.content, keyid=keyid, **names).encode()
