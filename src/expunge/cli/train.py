"""`expunge train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.deposits import kept_with_outlook, print_deposit, write_deposit
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column

MOST_CLASSES = 20  # that are shown


@click.command(cls=Command, short_help="While the source exists: train to the optimum, keep a record.")
@section(
    "Source",
    click.option(
        "--data", required=True, type=FILE, help="The source: .npz or .safetensors with X and y, .csv or .parquet."
    ),
    label_column,
)
@section(
    "Model",
    click.option(
        "--l2",
        required=True,
        type=float,
        help="lambda of (lambda/2)||w||^2 beside the mean loss. Larger makes later certificates stronger.",
    ),
    click.option(
        "--max-norm",
        required=True,
        type=float,
        help="Rows longer than this are scaled down to it. Choose it before looking at the rows: a bound read off the "
        "data would itself tell about a person.",
    ),
    click.option("--loss", default="softmax", show_default=True, help="softmax or ridge."),
    click.option("--bias", is_flag=True, help="Add a constant feature 1, regularised like the rest."),
    click.option(
        "--store", default="float64", show_default=True, help="What the weights are stored in: float64 or float32."
    ),
    click.option(
        "--force", is_flag=True, help="Train although --max-norm scales more than half of the rows down to one length."
    ),
)
@section(
    "Speed",
    click.option(
        "--dtype",
        default="float64",
        show_default=True,
        help="What rows are kept in while computing: float64 or float32.",
    ),
)
@on_device
@written_to("The model to write, a .safetensors file that does not exist yet.")
@section(
    "Output",
    click.option(
        "--deposit",
        type=FILE,
        help="Also keep a deposit of the source in this new file, which is private: what later deletions need of it; "
        "see expunge deposit.",
    ),
)
@quiet
@as_json
@reporting
def train(
    data: Path,
    label: str | None,
    device: str,
    target: Path,
    deposit: Path | None,
    quiet: bool,
    json_output: bool,
    **as_given: Any,
) -> dict[str, Any]:
    """Train a linear classifier to its optimum while the source still exists.

    Writes the weights with a training record: the number of rows, class counts, l2, loss, norm bound, and how far from
    the optimum training stopped. This record is all that is kept of the source, and what makes later certificates
    strong; with --deposit what makes them proven is kept too.

    \b
    expunge train --data source.npz --l2 1e-3 --max-norm 1 --out model.safetensors
    expunge train --data source.npz --l2 1e-3 --max-norm 1 --out model.safetensors --deposit model.deposit
    """
    from expunge.data import read_data
    from expunge.data.output import require_absent, write_file
    from expunge.errors import FileError
    from expunge.evaluate.fit import fit_of
    from expunge.train import train as run

    if target.suffix.lower() != ".safetensors":
        raise FileError(f"--out {target}", "models are .safetensors files", "Name it for example model.safetensors.")
    if target == deposit:
        raise FileError(
            f"--out and --deposit {target}", "they are two files", "Name the deposit for example m.deposit."
        )
    for path in (target, deposit):
        if path is not None:
            require_absent(path)
    source = read_data(data, label)
    with progress(not quiet) as advance:
        model = run(
            source.features,
            source.labels,
            device=device,
            encoder=source.encoder,
            encoder_trained=source.encoder_trained,
            feature_names=source.feature_names,
            progress=advance,
            **as_given,
        )
        kept = None if deposit is None else _kept(model, source, device, advance)
    write_file(target, model.to_bytes())
    made = {} if deposit is None or kept is None else {"deposit": write_deposit(deposit, kept[0]) | kept[1]}
    assert model.record is not None
    fit = fit_of(model, source.rows)
    if not json_output:
        _print_model(model, fit, target)
        if deposit is not None and kept is not None:
            print_deposit(deposit, kept[0], made["deposit"])
    told = {"model": str(target), "sha256": model.sha256(), "record": model.record.facts(), "fit": fit.to_json()}
    return told | made


def _print_model(model: Any, fit: Any, target: Path) -> None:
    """What was trained, how well it fits, and where it is."""
    record = model.record
    shape = f"{record.n_source:,} rows, {model.n_features} features, {len(record.classes)} classes"
    out.print(f"trained {record.loss} on {shape}")
    out.print(f"gradient norm at the stored weights: {record.residual:.3g}")
    _print_fit(fit)
    out.print(f"written: {target}", markup=False)


def _kept(model: Any, source: Any, device: str, advance: Any) -> tuple[Any, dict[str, Any]]:
    """A deposit of the rows it was just trained on."""
    from expunge.request.declared import NOTHING_DECLARED
    from expunge.request.execution import Execution

    return kept_with_outlook(model, source.rows, NOTHING_DECLARED, Execution(device=device, progress=advance))


def _print_fit(fit: Any) -> None:
    """Accuracy beside what guessing would give, and for each class; then what is odd."""
    out.print(
        f"accuracy on the source: {100 * fit.accuracy:.1f} %; always naming the most frequent class: "
        f"{100 * fit.majority:.1f} %"
    )
    shown = ", ".join(f"{label} {100 * share:.1f} %" for label, share in fit.by_class[:MOST_CLASSES])
    more = len(fit.by_class) - MOST_CLASSES
    out.print(f"by class: {shown}" + (f" and {more} more" if more > 0 else ""), markup=False)
    for warning in fit.warnings:
        out.print(f"warning: {warning}", markup=False, style="bold")
