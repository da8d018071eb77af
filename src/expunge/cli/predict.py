"""`expunge predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command
from expunge.cli.sets import FILE, label_column, model_option


@click.command(cls=Command, short_help="Labels and probabilities of rows, as CSV.")
@model_option("The model, .safetensors, as trained or as published.")
@click.option("--data", required=True, type=FILE, help="The rows; they need no labels.")
@label_column
@written_to("The .csv file to write; it must not exist yet.")
@as_json
@reporting
def predict(model_file: Path, data: Path, label: str | None, target: Path, json_output: bool) -> dict[str, Any]:
    """A line for each row, in order: its predicted label, and the probability of each class (a ridge model has none).

    A table is prepared as the model's was at training. Cells that a spreadsheet would take for a formula begin with a
    quote.

    \b
    expunge predict --model model.safetensors --data new.csv --out predictions.csv
    """
    from expunge.cli.swaps import require_model
    from expunge.errors import FileError
    from expunge.model import read_model
    from expunge.report.tables import predictions
    from expunge.rows.opening import read_unlabelled
    from expunge.rows.output import require_absent, write_file

    if target.suffix.lower() != ".csv":
        raise FileError(f"--out {target}", "predictions are a .csv file", "Name it for example predictions.csv.")
    require_absent(target)
    require_model(model_file, {"--data": data})
    model, _ = read_model(model_file)
    content, count = predictions(model, read_unlabelled(data, label, model.record))
    write_file(target, content)
    if not json_output:
        out.print(f"{count:,} rows; written: {target}", markup=False)
    return {"predictions": str(target), "rows": count, "classes": list(model.classes)}
