"""`expunge report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE

naming = (
    click.option("--organisation", help="Whose model it is, to be named on the page; it is in no other file."),
    click.option("--model-name", help="What the model is called, to be named on the page; it is in no other file."),
)


@click.command(cls=Command, short_help="A page people can read, of one result.")
@click.argument("result", type=FILE)
@click.option("--public-key", type=FILE, help="Check the result's signature and say so on the page.")
@click.option(
    "--full",
    is_flag=True,
    help="The full page, from the private dossier: every term and number. As private as that: it tells who left.",
)
@section("Names", *naming)
@written_to("A new .html file.")
@as_json
@reporting
def report(
    result: Path,
    public_key: Path | None,
    full: bool,
    organisation: str | None,
    model_name: str | None,
    target: Path,
    json_output: bool,
) -> dict[str, Any]:
    """A page people can read, of one result of `expunge unlearn`; its statement is verified first.

    The page begins with what was decided, and answers what was asked, how sure it is, what was assumed, what may be
    published and what to do next. It is one file without scripts that opens offline and prints well. It is made from
    the statement and may be handed out; with --full it is made from the dossier and may not. For a desk with all its
    requests and models: expunge desk report.

    \b
    expunge report result/ --out report.html
    expunge report result/ --organisation "Example Bank" --model-name "Credit scoring 2025" --out report.html
    expunge report result/ --full --out private.html
    """
    from expunge.desk import result_report
    from expunge.desk.layout import Layout
    from expunge.errors import FileError
    from expunge.rows.output import require_absent, write_file, write_private

    require_absent(target)
    if Layout(result).ledger.is_file():
        raise FileError(
            f"{result} is a desk", "a result of expunge unlearn is needed", f"Use expunge desk report {result}."
        )
    page = result_report(result, public_key, full=full, organisation=organisation, model_name=model_name)
    write_private(target, page) if full else write_file(target, page)
    if not json_output:
        out.print(f"written: {target}", markup=False)
    return {"files": [str(target)]}
