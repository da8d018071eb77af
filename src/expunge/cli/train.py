"""`expunge train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.deposits import (
    exit_status,
    freed_with_outlook,
    kept_with_outlook,
    print_deposit,
    require_deposit_name,
    write_deposit,
)
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, listed

MOST_CLASSES = 20  # that are shown


@click.command(cls=Command, short_help="While the source exists: train to the optimum, keep a record.")
@section(
    "Source",
    click.option(
        "--data",
        required=True,
        type=FILE,
        help="The source: a table (.csv, .tsv, also .gz, .parquet), or .npz or .safetensors with X and y.",
    ),
    click.option("--label", help="Label column of a table (default: y, or label)."),
    click.option("--columns", help="Feature columns of a table, with commas between (default: all but the label's)."),
    click.option(
        "--no-header",
        is_flag=True,
        help="The first line of the table is data. Columns are then called by their place, from 0, or as --names says.",
    ),
    click.option("--names", help="What the columns of a table without a header are called, with commas between."),
)
@section(
    "Preparation of a table",
    click.option(
        "--prepare",
        default="auto",
        show_default=True,
        help="table: numbers standardised and empty cells filled with the median, categories a feature each value, "
        "dates and row numbers left out. none: numbers as they are. auto: table, unless every cell is a number and "
        "--max-norm is given.",
    ),
    click.option(
        "--prepare-from",
        type=FILE,
        help="Learn the preparation from this table, which has no row of the source in it: then it knows nothing of "
        "those who will be forgotten, which is proven where the table is public.",
    ),
    click.option(
        "--preparation",
        default="coarse",
        show_default=True,
        help="coarse: what is learnt from the source is rounded by chance and has no value of a few rows: hardly "
        "anything shows whether somebody was there; a practice and no proof. exact: a forgotten row can be worked out "
        "from it, and certificates say so.",
    ),
    click.option(
        "--rare",
        type=int,
        default=10,
        show_default=True,
        help="Values of a category that fewer rows have are one value, together with unknown ones.",
    ),
)
@section(
    "Model",
    click.option(
        "--l2",
        type=float,
        help="lambda of (lambda/2)||w||^2 beside the mean loss. Larger makes later certificates stronger. Default, of "
        "a table that is prepared: as scikit-learn's C = 1.",
    ),
    click.option(
        "--max-norm",
        type=float,
        help="Rows longer than this are scaled down to it. Choose it before looking at the rows: a bound read off the "
        "data would itself tell about a person. Default, of a table that is prepared: 3 sqrt(features); with --deposit "
        "the longest row's length, rounded up to two digits.",
    ),
    click.option(
        "--loss",
        default="softmax",
        show_default=True,
        help="softmax, ridge or one-vs-rest; or logistic: two classes and one weight vector, half the weights of "
        "softmax and the same model at half its l2.",
    ),
    click.option(
        "--bias/--no-bias",
        default=None,
        help="Add a constant feature 1, regularised like the rest. Default: for a table that is prepared.",
    ),
    click.option(
        "--free-bias",
        is_flag=True,
        help="Add one that is not regularised, as scikit-learn's intercept; with --deposit, since without one it has "
        "no bound.",
    ),
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
    max_norm: float | None,
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

    A table is prepared (numbers standardised, categories a feature each value); every decision is printed and kept in
    the record, and later commands prepare their files by it, column by column. It is handed out with the model, and
    outside of what certificates prove: so it is coarse, or learnt from other rows altogether (--prepare-from).

    \b
    expunge train --data credit.csv --label default --out model.safetensors
    expunge train --data credit.csv --label default --out model.safetensors --deposit model.deposit
    expunge train --data source.npz --l2 1e-3 --max-norm 1 --out model.safetensors
    """
    from expunge.evaluate.metrics import describe_fit
    from expunge.train import LARGEST_ROW
    from expunge.train import train as run

    _require_targets(target, deposit)
    free = _free_bias(as_given, deposit)
    given = _source(data, as_given, bounded=max_norm is not None)
    source, prepared = given.rows, given.preparation
    _print_decisions(() if json_output else given.told)
    longest = None if deposit is None or prepared is None else LARGEST_ROW
    with progress(not quiet) as advance:
        model = run(
            source.features,
            source.labels,
            device=device,
            max_norm=longest if max_norm is None else max_norm,
            prepare="none" if prepared is None else prepared,
            learnt=given.learnt,
            encoder=source.encoder,
            encoder_trained=source.encoder_trained,
            feature_names=source.feature_names,
            progress=advance,
            **as_given,
        )
        model, kept = (model, None) if deposit is None else _kept(model, source, device, advance, free)
    made = _written(target, model, deposit, kept)
    assert model.record is not None
    fit = describe_fit(model, source.rows)
    if not json_output:
        _print_model(model, fit, target)
        if deposit is not None and kept is not None:
            print_deposit(deposit, kept[0], made["deposit"])
    told = {"model": str(target), "sha256": model.sha256(), "record": model.record.facts(), "fit": fit.to_json()}
    told |= ({"prepared": list(given.told)} if given.told else {}) | made
    return told | ({} if kept is None else exit_status(kept[1]["outlook"]))


def _written(target: Path, model: Any, deposit: Path | None, kept: tuple[Any, dict[str, Any]] | None) -> dict[str, Any]:
    """The model, and its deposit if there is one: both or neither. What is said of the deposit."""
    from expunge.rows.output import write_file

    if deposit is None or kept is None:
        write_file(target, model.to_bytes())
        return {}
    return {"deposit": write_deposit(deposit, kept[0], (target, model.to_bytes())) | kept[1]}


def _require_targets(target: Path, deposit: Path | None) -> None:
    """Refuse files that cannot be written, before any work is done."""
    from expunge.errors import FileError
    from expunge.rows.output import require_absent

    if target.suffix.lower() != ".safetensors":
        raise FileError(f"--out {target}", "models are .safetensors files", "Name it for example model.safetensors.")
    if target == deposit:
        raise FileError(
            f"--out and --deposit {target}", "they are two files", "Name the deposit for example m.deposit."
        )
    if deposit is not None:
        require_deposit_name(deposit, "--deposit")
    for path in (target, deposit):
        if path is not None:
            require_absent(path)


def _source(data: Path, options: dict[str, Any], *, bounded: bool) -> Any:
    """The rows to train on; takes what is said of a table out of the options."""
    from expunge.rows.source_tables import read_source

    return read_source(
        data,
        options.pop("label"),
        columns=listed(options.pop("columns")),
        header=not options.pop("no_header"),
        names=listed(options.pop("names")),
        prepare=options.pop("prepare"),
        prepare_from=options.pop("prepare_from"),
        preparation=options.pop("preparation"),
        rare=options.pop("rare"),
        bounded=bounded,
    )


def _print_decisions(told: tuple[str, ...]) -> None:
    """What becomes of each column of a table."""
    if told:
        out.print("preparation of the table", style="bold")
    for sentence in told:
        out.print(f"  {sentence}", markup=False)


def _print_model(model: Any, fit: Any, target: Path) -> None:
    """What was trained, how well it fits, and where it is."""
    record = model.record
    shape = f"{record.n_source:,} rows, {model.n_features} features, {len(record.classes)} classes"
    out.print(f"trained {record.loss} on {shape}")
    bias = "a free bias" if record.free_bias else "a bias" if record.bias else "no bias"
    out.print(
        f"l2 {record.l2:.3g}, rows at most {record.max_norm:.3g} long, {bias}; gradient "
        f"norm at the stored weights: {record.residual:.3g}"
    )
    _print_fit(fit)
    out.print(f"written: {target}", markup=False)


def _free_bias(options: dict[str, Any], deposit: Path | None) -> bool:
    """Whether the bias is not to be regularised; takes that out of the options, and refuses what has no bound."""
    from expunge.errors import OptionError

    free = bool(options.pop("free_bias"))
    if free and deposit is None:
        raise OptionError(
            "--free-bias without --deposit",
            "a bias that is not regularised has no bound without one: nothing could be forgotten later",
            "Give --deposit, for example model.deposit, or train with --bias, where l2 is on every weight.",
        )
    if free and options["bias"] is False:
        raise OptionError("--free-bias with --no-bias", "there is a bias or there is none", "Leave one of them out.")
    options["bias"] = True if free else options["bias"]
    return free


def _kept(model: Any, source: Any, device: str, advance: Any, free: bool) -> tuple[Any, tuple[Any, dict[str, Any]]]:
    """The model, its bias freed where that is wanted, and a deposit of the rows it was just trained on."""
    from expunge.request.declared import NOTHING_DECLARED
    from expunge.request.execution import Execution

    execution = Execution(device=device, progress=advance)
    if not free:
        return model, kept_with_outlook(model, source.rows, NOTHING_DECLARED, execution)
    return freed_with_outlook(model, source.rows, execution)


def _print_fit(fit: Any) -> None:
    """Accuracy beside what guessing would give, and for each class; then what is odd."""
    out.print(
        f"accuracy on the source: {100 * fit.scores.accuracy:.1f} %; always naming the most frequent class: "
        f"{100 * fit.scores.majority:.1f} %"
    )
    shown = ", ".join(f"{each.label} {100 * each.right:.1f} %" for each in fit.scores.classes[:MOST_CLASSES])
    more = len(fit.scores.classes) - MOST_CLASSES
    out.print(f"by class: {shown}" + (f" and {more} more" if more > 0 else ""), markup=False)
    for warning in fit.warnings:
        out.print(f"warning: {warning}", markup=False, style="bold")
