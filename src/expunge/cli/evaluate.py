"""`expunge evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, progress, quiet, reporting, written_to
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column
from expunge.cli.streams import end_stopped


@click.command(cls=Command, short_help="Where the source still exists: did it forget, metric by metric.")
@section(
    "Speed",
    click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many."),
    click.option(
        "--models",
        "n_models",
        type=click.IntRange(0, 8000),
        default=512,
        show_default=True,
        help="Models a side for the forget score and U-LiRA; 0 leaves both out.",
    ),
)
@section(
    "Sets",
    click.option("--model", "model_file", type=FILE, help="The model as trained on retain and forget set together."),
    click.option("--retain", type=FILE, help="Source rows that stay."),
    click.option("--forget", type=FILE, help="Source rows to forget."),
    click.option("--test", type=FILE, help="Rows the model never saw."),
    click.option(
        "--surrogate", type=FILE, help="Rows that stand in for the source; without them Unlearn (-) is left out."
    ),
    click.option(
        "--with-deposit",
        is_flag=True,
        help="Also forget with a deposit of the source (expunge deposit), which is made for it.",
    ),
    click.option(
        "--candidate",
        multiple=True,
        metavar="NAME=FILE",
        help="A model of your own to compare, .safetensors; may be given again.",
    ),
    label_column,
)
@section(
    "Guarantee",
    click.option("--epsilon", type=float, default=1.0, show_default=True, help="Of Unlearn (+) and Unlearn (-)."),
    click.option("--delta", type=float, default=1e-4, show_default=True, help="Of Unlearn (+) and Unlearn (-)."),
    click.option(
        "--distance", default="same", show_default=True, help="Between source and surrogate, declared as for unlearn."
    ),
    click.option(
        "--match-classes", is_flag=True, help="Weight surrogate rows to the source's class counts, as for unlearn."
    ),
)
@written_to("A new folder for table.md, .csv, .json and .png.")
@quiet
@as_json
@reporting
def evaluate(
    seeds: int,
    n_models: int,
    model_file: Path | None,
    retain: Path | None,
    forget: Path | None,
    test: Path | None,
    surrogate: Path | None,
    candidate: tuple[str, ...],
    target: Path,
    quiet: bool,
    json_output: bool,
    **as_given: Any,
) -> dict[str, Any]:
    """Did it forget? Retraining, Unlearn (+), Unlearn (-) and models of your own, metric by metric.

    For those who still have the source: retain and forget set are its two parts. Prints one table, mean and spread over
    seeds. Finished seeds are kept beside --out until all are done: after Ctrl-C, the same command continues.

    \b
    expunge evaluate --model model.safetensors --retain retain.npz --forget forget.npz --test test.npz
                     --surrogate surrogate.npz --epsilon 1 --delta 1e-5 --seeds 5 --out evaluation/
    """
    from expunge.evaluate.evaluation import files_campaign, summarise, to_json
    from expunge.rows.output import require_absent, write_folder
    from expunge.rows.partial import open_partial

    require_absent(target)
    parts = {"retain": retain, "forget": forget, "test": test, "surrogate": surrogate}
    campaign = files_campaign(model_file, parts, candidate, n_models=n_models, **as_given)
    partial = open_partial(target.with_name(target.name + ".partial"), campaign.setting)
    try:
        with partial.gone_if_refused(), progress(not quiet) as advance:
            results = campaign.run(range(seeds), partial, advance)
    except KeyboardInterrupt as stopped:
        kept = f"{len(partial.finished())} of {seeds} seeds are kept in {partial.folder}; the same command continues"
        end_stopped(stopped, kept)
    table = summarise(results)
    content = {"setting": campaign.setting, **to_json(table)}
    write_folder(target, _files(table, content))
    partial.remove()
    if not json_output:
        _print_table(table, seeds)
        out.print(f"written: {target}", markup=False)
    return {"folder": str(target), **content}


def _files(table: Any, content: dict[str, Any]) -> dict[str, bytes]:
    from expunge.evaluate.evaluation import to_csv, to_markdown
    from expunge.report.figures import methods_figure

    return {
        "table.md": to_markdown(table).encode(),
        "table.csv": to_csv(table).encode(),
        "table.json": (json.dumps(content, indent=2, allow_nan=False) + "\n").encode(),
        "table.png": methods_figure(table),
    }


def _print_table(table: Any, seeds: int) -> None:
    from expunge.evaluate.evaluation import METRICS, PERCENT, TITLES, legend, remarks, shown

    over = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    for columns in (METRICS[:6], METRICS[6:]):
        present = [metric for metric in columns if metric in table.metrics]
        screen = Table(title=over, title_justify="left")
        screen.add_column("method")
        for metric in present:
            screen.add_column(TITLES[metric] + (" %" if metric in PERCENT else ""), justify="right")
        for name, row in table.cells.items():
            screen.add_row(name, *(shown(metric, row.get(metric)) for metric in present))
        out.print(screen)
    for line in legend(table):
        out.print(f"  {line}", markup=False)
    for remark in remarks(table):
        out.print(f"  - {remark}", markup=False)
