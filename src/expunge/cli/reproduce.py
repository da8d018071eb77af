"""`expunge reproduce`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting
from expunge.cli.sections import Command

FOLDER = click.Path(path_type=Path, readable=False)


@click.command(cls=Command, short_help="The paper's tables and figures beside ours.")
@click.argument("name", required=False)
@click.option("--list", "listing", is_flag=True, help="Experiments, what they need, and whether it is there.")
@click.option("--data", type=FOLDER, help="Folder with the data sets; --list says which files.")
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@click.option(
    "--out",
    "target",
    type=FOLDER,
    default=Path("experiments/results"),
    show_default=True,
    help="Folder of the results; a run continues what it finds there.",
)
@click.option(
    "--page",
    type=FOLDER,
    help="Draw all results in --out anew and put them on one page, this Markdown file; `all` writes one to "
    "--out if none is named.",
)
@on_device
@click.option("--jobs", type=click.IntRange(1, 256), help="Cases at once; default: one a core, one on other devices.")
@quiet
@as_json
@reporting
def reproduce(
    name: str | None,
    listing: bool,
    data: Path | None,
    seeds: int,
    target: Path,
    page: Path | None,
    device: str,
    jobs: int | None,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """The paper's tables and figures, one command each: its value, ours, and the spread over seeds.

    NAME is an experiment, or all. Every case is stored as it finishes: after a kill the same command continues, and
    the same seeds give the same numbers. What --out holds already is not run again; another folder starts anew.

    \b
    expunge reproduce --list --data data/
    expunge reproduce synthetic
    expunge reproduce all --data data/ --page docs/reproduction.md
    """  # fmt: skip
    from expunge.errors import OptionError
    from expunge.reproduce.config import configs
    from expunge.reproduce.data import DataFolder
    from expunge.reproduce.page import reproduction_page
    from expunge.reproduce.runner import listed, show_all
    from expunge.reproduce.runner import reproduce as run
    from expunge.reproduce.store import require_folder
    from expunge.request.execution import computing_device
    from expunge.runtime.durable import PUBLIC, write_whole

    computing_device(device)
    folder = DataFolder(data)
    if listing:
        return _list(listed(folder), folder, json_output)
    if name is None and page is None:
        raise OptionError("no NAME", "an experiment, all, --page or --list is needed", "See expunge reproduce --list.")
    ready = {one["name"]: [need for need, there in one["needs"].items() if not there] for one in listed(folder)}
    wanted = [] if name is None else [one for one in configs() if not ready[one]] if name == "all" else [name]
    page = target / "reproduction.md" if page is None and name == "all" else page
    if page is not None:
        require_folder(page.parent, "--page")
    workers = jobs or ((os.cpu_count() or 1) if device == "cpu" else 1)
    written: dict[str, Any] = {}
    try:
        with progress(not quiet) as advance:
            for one in wanted:
                results = run(one, folder, target, seeds=seeds, device=device, jobs=workers, progress=advance)
                written[one] = {"cases": len(results.records), "seconds": round(results.seconds, 1)}
    except KeyboardInterrupt:
        click.echo(f"stopped; finished cases are kept in {target}; the same command continues", err=True)
        sys.exit(130)
    if page is not None:
        show_all(target)
        write_whole(page, reproduction_page(target, page).encode(), PUBLIC)
    if not json_output:
        if name is not None and name != "all":
            click.echo((target / f"{name}.md").read_text())
        for one, facts in written.items():
            out.print(f"{one}: {facts['cases']} cases, {facts['seconds']} s; written: {target / one}.md", markup=False)
        if page is not None:
            out.print(f"written: {page}", markup=False)
    if name == "all":
        for one, missing in ready.items():
            if missing:
                click.echo(f"left out: {one}, whose data is not there ({', '.join(missing)}; see --list)", err=True)
    return {"written": written, "page": None if page is None else str(page)}


def _list(experiments: list[dict[str, Any]], folder: Any, json_output: bool) -> dict[str, Any]:
    if not json_output:
        table = Table()
        for column in ("name", "what of the paper", "minutes", "data"):
            table.add_column(column)
        for one in experiments:
            needs = ", ".join(f"{need} ({'there' if there else 'MISSING'})" for need, there in one["needs"].items())
            table.add_row(one["name"], f"{one['title']} ({one['paper']})", f"{one['minutes']:g}", needs or "none")
        out.print(table)
        for need in dict.fromkeys(need for one in experiments for need in one["needs"]):
            entry = folder.entry(need)
            files = " or ".join(" + ".join(form.files) for form in entry.forms)
            out.print(f"{need}: {entry.title}; files {files}; from {entry.publisher}", markup=False)
            if entry.label:
                out.print(f"  NOT the paper's own: {entry.label}", markup=False)
            for file, digest in folder.digests(need).items():
                out.print(f"  sha256 of {file}: {digest}", markup=False)
            if entry.sha256:
                out.print(f"  sha256 of its arrays, in whatever form: {entry.sha256}", markup=False)
    return {"experiments": experiments}
