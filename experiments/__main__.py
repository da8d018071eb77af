"""`python -m experiments`: the command line of the experiments, from the root of a clone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from expunge.cli.console import out, progress
from expunge.cli.options import argument, command
from expunge.runtime.values import option

if TYPE_CHECKING:
    from experiments.datasets.folder import DataFolder


@command(quiet=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def main(
    name: str | None = argument(),
    listing: bool = option("Experiments, what they need, and whether it is there.", names=("--list",)),
    data: Path | None = option("Folder with the data sets; --list says which files."),
    seeds: int = option("How many.", 5, kind=click.IntRange(1, 1000)),
    only: str | None = option(
        "Run those cases alone whose name has this; the others keep what they have.", metavar="TEXT"
    ),
    target: Path = option(
        "Folder of the results; a run continues what it finds there.", Path("experiments/results"), names=("--out",)
    ),
    page: Path | None = option(
        "Draw all results in --out anew and put them on one page, this Markdown file; `all` writes one to --out if "
        "none is named."
    ),
    device: str = option("Any torch device.", "cpu"),
    jobs: int | None = option("Cases at once; default: one a core, one on other devices.", kind=click.IntRange(1, 256)),
) -> Any:
    """The paper's tables and figures, one command each: its value, ours, and the spread over seeds.

    NAME is an experiment, or all. Every case is stored as it finishes: after a kill the same command continues, and
    the same seeds give the same numbers. What --out holds already is not run again; another folder starts anew.

    \b
    synthetic      accuracies, attacks and noise on the synthetic task; needs no data
    dirichlet      real data in Dirichlet splits
    forget-ratio   Stanford Dogs with several shares to forget
    mixed-linear   mixed-linear networks: a random tenth, and a whole class
    kept-tangent   the same of a smaller tangent head, with a deposit
    architectures  a linear head after no, one or two convolutions
    mnist-usps     MNIST to USPS and back
    heuristic      estimated against exact KL and Delta
    frontier       accuracy against epsilon where source and surrogate differ in their classes
    peers          accuracy against epsilon, four other methods run beside Expunge
    census         a case of our own, from end to end

    \b
    python -m experiments --list --data data/
    python -m experiments synthetic
    python -m experiments synthetic --seeds 1 --out try/
    python -m experiments peers --only adult --data data/
    python -m experiments all --data data/ --page results.md

    Exit status: 0 done, 2 bad input, 3 refused, 130 stopped; finished cases are kept.
    """
    from experiments.datasets.folder import DataFolder
    from experiments.protocol.runner import listed
    from expunge.request.promise import computing_device

    computing_device(device)
    folder = DataFolder(data)
    experiments = listed(folder)
    if listing:
        return _list(experiments, folder)
    page = _page_to_write(name, page, target)
    workers = jobs or ((os.cpu_count() or 1) if device == "cpu" else 1)
    options = {"seeds": seeds, "only": only or "", "device": device, "jobs": workers}
    written = _run(_wanted(name, experiments), folder, target, options)
    if page is not None:
        _write_page(target, page)
    _say(name, written, target, page)
    if name == "all":
        _say_left_out(experiments)
    return {"written": written, "page": None if page is None else str(page)}


def _page_to_write(name: str | None, page: Path | None, target: Path) -> Path | None:
    """The page, for `all` always one; refused before any work if it cannot be written."""
    from experiments.protocol.store import require_folder
    from expunge.errors import OptionError

    if page is None and name is None:
        raise OptionError(
            "no NAME", "an experiment, all, --page or --list is needed", "See python -m experiments --list."
        )
    if page is None and name == "all":
        page = target / "reproduction.md"
    if page is not None:
        require_folder(page.parent, "--page")
    return page


def _wanted(name: str | None, experiments: list[dict[str, Any]]) -> list[str]:
    """The experiments to run: for `all`, those whose data is there."""
    if name is None:
        return []
    if name != "all":
        return [name]
    return [experiment["name"] for experiment in experiments if all(experiment["needs"].values())]


def _run(names: list[str], folder: DataFolder, target: Path, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from experiments.protocol.runner import run_experiment

    written: dict[str, dict[str, Any]] = {}
    try:
        with progress() as advance:
            for name in names:
                results = run_experiment(name, folder, target, progress=advance, **options)
                written[name] = {"cases": len(results.records), "seconds": round(results.seconds, 1)}
    except KeyboardInterrupt:
        click.echo(f"stopped; finished cases are kept in {target}; the same command continues", err=True)
        sys.exit(130)
    return written


def _write_page(target: Path, page: Path) -> None:
    from experiments.protocol.page import reproduction_page
    from experiments.protocol.runner import show_all
    from expunge.runtime.files import PUBLIC, write_whole

    show_all(target)
    write_whole(page, reproduction_page(target, page).encode(), PUBLIC)


def _say(name: str | None, written: dict[str, dict[str, Any]], target: Path, page: Path | None) -> None:
    if name is not None and name != "all":
        out.lines((target / f"{name}.md").read_text())
    for experiment, facts in written.items():
        line = f"{experiment}: {facts['cases']} cases, {facts['seconds']} s; written: {target / experiment}.md"
        out.print(line)
    if page is not None:
        out.print(f"written: {page}")


def _say_left_out(experiments: list[dict[str, Any]]) -> None:
    for experiment in experiments:
        missing = [need for need, there in experiment["needs"].items() if not there]
        if missing:
            line = f"left out: {experiment['name']}, whose data is not there ({', '.join(missing)}; see --list)"
            click.echo(line, err=True)


def _list(experiments: list[dict[str, Any]], folder: DataFolder) -> dict[str, Any]:
    table = Table()
    for column in ("name", "what of the paper", "minutes", "data"):
        table.add_column(column)
    for experiment in experiments:
        needs = ", ".join(f"{need} ({'there' if there else 'MISSING'})" for need, there in experiment["needs"].items())
        title = f"{experiment['title']} ({experiment['paper']})"
        table.add_row(experiment["name"], title, f"{experiment['minutes']:g}", needs or "none")
    out.print(table)
    for need in dict.fromkeys(need for experiment in experiments for need in experiment["needs"]):
        entry = folder.entry(need)
        files = " or ".join(" + ".join(form.files) for form in entry.forms)
        out.print(f"{need}: {entry.title}; files {files}; from {entry.publisher}")
        if entry.label:
            out.print(f"  NOT the paper's own: {entry.label}")
        for file, digest in folder.digests(need).items():
            out.print(f"  sha256 of {file}: {digest}")
        if entry.sha256:
            out.print(f"  sha256 of its arrays, in whatever form: {entry.sha256}")
    return {"experiments": experiments}


if __name__ == "__main__":
    main(prog_name="python -m experiments")
