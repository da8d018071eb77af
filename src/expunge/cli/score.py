"""`expunge score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column, model_option, read_rows

MOST_CLASSES = 30  # that are shown


@click.command(cls=Command, short_help="How good are answers on labelled rows? Before and after.")
@model_option("The model, .safetensors, as trained or as published.")
@click.option("--data", required=True, type=FILE, help="Rows with their labels that the model was not trained on.")
@label_column
@click.option("--before", type=FILE, help="Another model, such as the one from before a deletion, to set beside it.")
@as_json
@reporting
def score(model_file: Path, data: Path, label: str | None, before: Path | None, json_output: bool) -> dict[str, Any]:
    """Accuracy, balanced accuracy (the mean over classes) and each class's, beside always naming the largest class.

    A table is prepared as the model's was at training.

    \b
    expunge score --model model.safetensors --data test.csv
    expunge score --model result/model.safetensors --before model.safetensors --data test.csv
    """
    from expunge.cli.swaps import require_model
    from expunge.evaluate.metrics import score_model
    from expunge.model import read_model

    require_model(model_file, {"--data": data})
    models = {"before": before, "after": model_file} if before is not None else {"model": model_file}
    read = {name: read_model(path)[0] for name, path in models.items()}
    found = {name: score_model(model, read_rows(data, label, model)) for name, model in read.items()}
    if not json_output:
        _print_scores(found)
    return {name: each.to_json() for name, each in found.items()}


def _print_scores(found: dict[str, Any]) -> None:
    one = next(iter(found.values()))
    table = Table(title=f"{one.rows:,} rows", title_justify="left")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    table.add_column("guessing", justify="right")
    table.add_row("accuracy", *(_percent(each.accuracy) for each in found.values()), _percent(one.majority))
    chance = 1.0 / len(one.classes)
    table.add_row("balanced accuracy", *(_percent(each.balanced) for each in found.values()), _percent(chance))
    for place, own in enumerate(one.classes[:MOST_CLASSES]):
        rights = (_percent(each.classes[place].right) for each in found.values())
        table.add_row(f"class {own.label} ({own.rows:,} rows)", *rights, "")
    out.print(table)
    out.print("guessing: always naming the most frequent class of these rows")
    if len(one.classes) > MOST_CLASSES:
        out.print(f"and {len(one.classes) - MOST_CLASSES} more classes (--json lists all)")


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
