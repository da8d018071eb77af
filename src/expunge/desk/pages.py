"""The desk's own report: a page, two tables, and the pages of its published models."""

from __future__ import annotations

from pathlib import Path

from expunge.certificate.verify import verify
from expunge.desk.desk import Desk
from expunge.desk.layout import CERTIFICATE, MODEL, REPORT, SIGNED
from expunge.desk.ledger import now
from expunge.desk.status import MOST_LISTED, as_row, models, requests, status
from expunge.errors import FileError
from expunge.report import csv_text, desk_page, run_page


def desk_report(desk: Desk) -> dict[str, bytes]:
    """The files of the report, by name. Private: requests are shown with their references."""
    today = now()[:10]
    everything = requests(desk)
    rows = [as_row(request, today) for request in everything]
    published = models(desk)
    files: dict[str, bytes] = {}
    pages: dict[int, str] = {}
    for facts in published:
        page = desk.layout.published_model(facts["model"]) / REPORT
        if page.is_file():
            pages[facts["model"]] = f"model-{facts['model']:04d}.html"
            files[pages[facts["model"]]] = page.read_bytes()
    latest = rows[-MOST_LISTED:][::-1]
    files["index.html"] = desk_page(
        status(desk).to_json(), latest, published[::-1], shown=len(latest), total=len(rows), pages=pages
    ).encode()
    columns = ("id", "reference", "accepted", "due", "n_rows", "state", "model", "late")
    files["requests.csv"] = csv_text(columns, ([row[name] for name in columns] for row in rows)).encode()
    facets = ("model", "time", "status", "n_rows", "n_left", "epsilon", "delta", "sigma", "mu", "total", "keyid")
    files["models.csv"] = csv_text(facets, ([facts[name] for name in facets] for facts in published)).encode()
    return files


def result_report(folder: Path, public_key: Path | None = None) -> bytes:
    """The page of one result of `expunge unlearn`; its certificate is verified first."""
    from expunge.certificate.content import read_certificate
    from expunge.certificate.sign import keyid_of, read_public_key, verify_file

    if not (folder / CERTIFICATE).is_file():
        raise FileError(
            f"{folder} is neither a desk nor a result of expunge unlearn",
            "a folder with a ledger or a certificate is needed",
            "Check the path.",
        )
    certificate = read_certificate(folder / CERTIFICATE)
    keyid = None
    if public_key is not None:
        signed, _ = verify_file(folder / SIGNED, public_key, folder / MODEL)
        if signed.content != certificate.content:
            raise FileError(
                f"{folder / SIGNED} is another certificate", "the two must be one", "Do not rely on the unsigned one."
            )
        keyid = keyid_of(read_public_key(public_key))
    verify(certificate, folder / MODEL)
    return run_page(certificate.content, keyid=keyid).encode()
