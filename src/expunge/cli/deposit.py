"""`expunge deposit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, progress, quiet, reporting, written_to
from expunge.cli.deposits import (
    exit_status,
    figure_of,
    kept_with_outlook,
    print_deposit,
    require_deposit_name,
    write_deposit,
)
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, columns, label_column, memory, model_option, read_source


@click.command(cls=Command, short_help="Before the source goes: keep what later deletions need of it.")
@section(
    "Sets",
    model_option("The trained model, .safetensors, whoever trained it."),
    click.option(
        "--data", required=True, type=FILE, help="The source: the rows it was trained on, as they were given then."
    ),
    label_column,
    columns,
)
@section("Speed", memory)
@on_device
@written_to("The deposit to write, such as model.deposit; a file that is there is never written over.")
@section("Output", click.option("--figure", type=FILE, help="A new .png file: accuracy against rows forgotten."))
@quiet
@as_json
@reporting
@record_facts
def deposit(
    model_file: Path,
    data: Path,
    label: str | None,
    columns: str | None,
    declared: Any,
    memory: str | None,
    device: str,
    target: Path,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Keep a deposit of the source before it goes, so that rows can be forgotten later with proven certificates.

    A deposit holds the gradient and the Hessian of the source at the trained weights, and keyed hashes of its rows: no
    row. With it, what retraining without some rows would give is known but for a remainder that is bounded: no
    surrogate is needed, and no distance. Make it any day before the source is deleted. It is PRIVATE.

    Since the source is there to rehearse on, the command says how many random rows can be forgotten at epsilon 0.1, 1
    and 5 (delta 1/n) before a point of accuracy is lost. The Hessian has as many rows as there are weights (classes x
    features; with ridge and one-vs-rest as many as features), and is refused beyond 12,000 (on a GPU: beyond what its
    memory holds).

    \b
    expunge deposit --model model.safetensors --data source.npz --out model.deposit
    expunge member  --deposit model.deposit --rows person.csv
    expunge unlearn --model model.safetensors --deposit model.deposit --forget forget.npz
                    --epsilon 0.1 --delta 1e-6 --out result/
    """
    from expunge.cli.swaps import require_model
    from expunge.model import read_model
    from expunge.request.execution import Execution
    from expunge.rows.output import require_absent
    from expunge.runtime.group import joined_group, local_device

    require_deposit_name(target, "--out")
    for path in (target, figure):
        if path is not None:
            require_absent(path)
    require_model(model_file, {"--data": data})
    model, _ = read_model(model_file)
    source = read_source(data, label, columns, memory, model)
    place = local_device(device)
    with joined_group(place) as group:
        with progress(group.first and not quiet) as advance:
            execution = Execution("float64", place, memory, group, advance)
            kept, known = kept_with_outlook(model, source, declared, execution)
        if not group.first:
            raise SystemExit(0)  # the first process of the group writes
        drawn = None if figure is None else (figure, figure_of(known["outlook"]))
        made = write_deposit(target, kept, drawn) | known
    if not json_output:
        print_deposit(target, kept, made)
    return made | exit_status(known["outlook"])
