"""`expunge report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, readable=False))
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, readable=False),
    help="For a result of expunge unlearn: check its signature and say so on the page.",
)
@click.option(
    "--out",
    "target",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="For a desk, a new folder (private: it shows references); for a result, a new .html file.",
)
@as_json
@reporting
def report(folder: Path, public_key: Path | None, target: Path, json_output: bool) -> dict[str, Any]:
    """Pages people can read: of a desk with all its requests and models, or of one result of `expunge unlearn`.

    Each page is one file without scripts that opens offline and prints well; the desk's tables come as CSV too.

    \b
    expunge report desk/ --out desk-report/
    expunge report result/ --out report.html
    """
    from expunge.data.output import require_absent, write_file
    from expunge.desk import desk_report, open_desk, result_report
    from expunge.desk.layout import Layout
    from expunge.runtime.durable import make_folder

    require_absent(target)
    if Layout(folder).ledger.is_file():
        files = desk_report(open_desk(folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        make_folder(target, files, private=True)
        written = [str(target / name) for name in sorted(files)]
    else:
        write_file(target, result_report(folder, public_key))
        written = [str(target)]
    if not json_output:
        out.print("written: " + ", ".join(written), markup=False)
    return {"files": written}
