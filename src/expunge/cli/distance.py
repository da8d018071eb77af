"""`expunge distance`."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.estimates import estimate_options, estimation
from expunge.cli.facts import record_facts
from expunge.cli.parts import compare_parts, print_parts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column, model_option, read_rows

MOST_MINUTES = 10_000


def _from_now(_context: Any, _option: Any, minutes: float) -> tuple[float, float]:
    """The minutes, and when they began: libraries take seconds to load, and that is part of what somebody waits."""
    return minutes, time.monotonic()


@click.command(cls=Command, short_help="How far is the surrogate from a source that is gone? A heuristic.")
@section(
    "Sets",
    model_option("The trained model, .safetensors; with --by it may be left out.", required=False),
    click.option("--surrogate", "--data", type=FILE, help="Rows that resemble the source, with labels."),
    click.option(
        "--by",
        metavar="COLUMN",
        help="Compare the parts of the surrogate with one another: a column with the year, the site or the device of "
        "each row. Nothing is sampled then.",
    ),
    click.option("--columns", help="With --by: feature columns of a table, with commas between (default: all others)."),
    click.option(
        "--forget",
        type=FILE,
        help="Rows to forget: then the difference of means that the bound needs is estimated too, at the update they "
        "call for; with --match-classes they are not counted.",
    ),
    click.option(
        "--reference",
        type=FILE,
        help="Rows of the source, where somebody does have some: every estimate is repeated on them for comparison.",
    ),
    label_column,
    click.option(
        "--match-classes",
        is_flag=True,
        help="Weight surrogate rows so that its class proportions are the source's, --forget left out.",
    ),
)
@section(
    "Speed",
    click.option(
        "--minutes",
        type=float,
        default=1.0,
        show_default=True,
        callback=_from_now,
        help="Time that it may take, reading the files included; beyond it steps, epochs and surrogate rows are cut, "
        "and what was done is reported.",
    ),
)
@estimate_options
@on_device
@written_to(
    "A new .npz file for the estimate: the sampled features, their settings and diagnostics. expunge unlearn "
    "--distance takes it.",
    required=False,
)
@section(
    "Output",
    click.option(
        "--figure",
        type=FILE,
        help="Write a .png: sampled features against the surrogate's, first two principal components; with --by the "
        "parts and their intervals.",
    ),
)
@quiet
@as_json
@reporting
@record_facts
def distance(
    model_file: Path | None,
    surrogate: Path | None,
    forget: Path | None,
    reference: Path | None,
    label: str | None,
    match_classes: bool,
    declared: Any,
    device: str,
    by: str | None,
    columns: str | None,
    minutes: tuple[float, float],
    target: Path | None,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
    **tuning: Any,
) -> dict[str, Any]:
    """How far may a source that is gone be from the surrogate? A heuristic: none of it is a guarantee.

    With --by the parts of the surrogate are compared with one another, by classifiers that never saw the rows they
    judge: chi-square, with intervals. A source that is one more such part would be about as far; that is the range in
    which a declaration is plausible.

    Without, Langevin chains draw features from the density that the model implies; a network tells them from the
    surrogate's (Donsker-Varadhan); a model trained on the surrogate gives the part of the labels. A classifier is not
    trained to know its features' density, so the samples may be far from the source. Where they cannot tell, this says
    so, with the reason, and gives no number. A certificate that rests on an estimate has the status `estimated`,
    whatever the numbers.

    \b
    expunge distance --by year --data surrogate.csv --label default
    expunge distance --by site --data surrogate.csv --model model.safetensors --figure sites.png
    expunge distance --model model.safetensors --surrogate surrogate.npz --forget forget.npz --figure features.png
    expunge distance --model model.safetensors --surrogate surrogate.npz --reference source-sample.npz
    expunge distance --model model.safetensors --surrogate surrogate.npz --out estimate.npz
    expunge unlearn  --model model.safetensors --surrogate surrogate.npz --forget forget.npz
                     --epsilon 1 --delta 1e-5 --distance estimate.npz --out result/
    """
    _require_new(target, ".npz", "--out", "estimate.npz")
    _require_new(figure, ".png", "--figure", "features.png")
    surrogate = _require_rows(surrogate, by)
    if by is not None:
        _require_parts_alone({"--forget": forget, "--reference": reference, "--out": target})
        with progress(not quiet) as advance:
            rows, parts = compare_parts(surrogate, by, label, columns, model_file, tuning["chain_seed"], advance)
        return _told_of_parts(rows, parts, by, figure, json_output)
    if columns is not None:
        raise _goes_with_by(columns)
    wanted = estimation(matched=match_classes, **tuning)
    sets = {"surrogate": surrogate, "forget": forget, "reference": reference}
    how = {"wanted": wanted, "device": device, "budget": _budget(*minutes)}
    with progress(not quiet) as advance:
        comparison = _compare(_require_model(model_file), declared, sets, label, progress=advance, **how)
    return _told(comparison, target, figure, json_output)


def _told(comparison: Any, target: Path | None, figure: Path | None, json_output: bool) -> dict[str, Any]:
    """Everything written, printed and handed over; an estimate that tells nothing is not kept for a certificate."""
    from expunge.estimate.source import estimate_bytes
    from expunge.report.figures import principal_components

    files: dict[Path, bytes] = {}
    kept = target if comparison.verdict.tells else None
    if kept is not None:
        files[kept] = estimate_bytes(comparison.estimate)
    if figure is not None:
        files[figure] = principal_components(comparison)
    _write_all(files)
    if not json_output:
        _print_comparison(comparison)
        for path in files:
            out.print(f"written: {path}", markup=False)
        if target is not None and kept is None:
            out.print(f"not written: {target}; what tells nothing is no ground for a certificate", markup=False)
    named = {"estimate_file": kept, "figure": figure}
    content: dict[str, Any] = comparison.to_dict()
    return content | {name: str(path) for name, path in named.items() if path is not None}


def _told_of_parts(rows: Any, parts: Any, by: str, figure: Path | None, json_output: bool) -> dict[str, Any]:
    from expunge.report.figures import parts_figure

    if figure is not None:
        _write_all({figure: parts_figure(parts, by)})
    if not json_output:
        print_parts(rows, parts, by)
        if figure is not None:
            out.print(f"written: {figure}", markup=False)
    content: dict[str, Any] = {"by": by, **parts.to_dict(), "prepared": list(rows.told)}
    return content | ({"figure": str(figure)} if figure is not None else {})


def _require_rows(surrogate: Path | None, by: str | None) -> Path:
    from expunge.errors import OptionError

    if surrogate is None:
        raise OptionError(
            "no --surrogate",
            "the rows that resemble the source are needed",
            "Give them: --data surrogate.csv." if by is not None else "Give them: --surrogate surrogate.npz.",
        )
    return surrogate


def _require_model(model_file: Path | None) -> Path:
    from expunge.errors import OptionError

    if model_file is None:
        raise OptionError(
            "no --model",
            "without --by features are sampled from a model",
            "Give --model model.safetensors, or --by COLUMN to compare parts of the surrogate.",
        )
    return model_file


def _require_parts_alone(others: dict[str, Path | None]) -> None:
    from expunge.errors import OptionError

    for option, given in others.items():
        if given is not None:
            raise OptionError(
                f"{option} {given} with --by",
                "parts of the surrogate are compared, nothing else",
                f"Leave {option} out.",
            )


def _goes_with_by(columns: str) -> Exception:
    from expunge.errors import OptionError

    return OptionError(f"--columns {columns}", "without --by the model says its columns", "Leave --columns out.")


def _budget(minutes: float, begun: float) -> Any:
    from expunge.errors import OptionError
    from expunge.runtime.budget import Budget

    if not 0.0 < minutes <= MOST_MINUTES:
        raise OptionError(
            f"--minutes {minutes:g}", f"it lies above 0 and up to {MOST_MINUTES:,}", "Use 1, or 10 for a longer look."
        )
    return Budget(60.0 * minutes, begun=begun)


def _compare(model_file: Path, declared: Any, sets: dict[str, Path | None], label: str | None, **how: Any) -> Any:
    from expunge.estimate.comparison import compare
    from expunge.model import one_row_a_class, read_model
    from expunge.rows.raw_tables import is_table

    given = read_model(model_file)[0]
    record = _record(given, declared, counted=sets["forget"] is not None)
    model = one_row_a_class(given)  # as a request has it
    record = record if model is given or model.record is None else model.record
    rows: dict[str, Any] = {
        name: read_rows(path, label if is_table(path) else None, model)
        for name, path in sets.items()
        if path is not None
    }
    return compare(model, rows.pop("surrogate"), record=record, **rows, **how)


def _write_all(files: dict[Path, bytes]) -> None:
    """All of the files or none."""
    from expunge.rows.output import write_file

    written: list[Path] = []
    try:
        for path, content in files.items():
            write_file(path, content)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _require_new(path: Path | None, ending: str, option: str, example: str) -> None:
    """Refuse, before any work is done, a name that cannot be written."""
    from expunge.errors import FileError
    from expunge.rows.output import require_absent

    if path is None:
        return
    if path.suffix.lower() != ending:
        raise FileError(f"{option} {path}", f"it is a {ending} file", f"Name it for example {example}.")
    require_absent(path)


def _record(model: Any, declared: Any, *, counted: bool) -> Any:
    """The model's record, or what is stated of it; `counted` says that the source's size plays a part."""
    from expunge.request.declared import record_for

    if model.record is None:
        # an estimate is about softmax alone; without rows to forget the source's size plays no part, nor how far
        # training stopped
        usual = {"n_source": None if counted else sum(declared.class_counts or (2,))}
        usual |= {"loss": "softmax", "training_residual": 0.0}
        unsaid = {name: value for name, value in usual.items() if getattr(declared, name) is None}
        declared = replace(declared, **unsaid)
    return record_for(model, declared)


def _print_comparison(comparison: Any) -> None:
    if comparison.verdict.tells:
        _print_lines(comparison)
    else:
        _print_reasons(comparison)
    _print_what_was_done(comparison)


def _print_reasons(comparison: Any) -> None:
    """Why there is no number, what to do instead, and what real rows of the source say where there are some."""
    from expunge.estimate.comparison import INSTEAD, TELLS_NOTHING

    out.print(f"How far the surrogate is from the source: {TELLS_NOTHING}", style="bold")
    for reason in comparison.verdict.reasons:
        out.print(f"  - {reason}", markup=False)
    out.print("What to do instead")
    for sentence in INSTEAD:
        out.print(f"  - {sentence}", markup=False)
    if comparison.reference is not None:
        _print_lines(comparison, "reference")


def _print_lines(comparison: Any, only: str | None = None) -> None:
    from expunge.estimate.comparison import TELLS_NOTHING

    table = Table(title="How far the surrogate is from the source: ESTIMATES, nothing is proven", title_justify="left")
    for heading in ("estimate", "source", "value", "s.e.", "upper", "side"):
        table.add_column(heading, justify="left" if heading in ("estimate", "source", "side") else "right")
    lines = [line for line in comparison.lines if only is None or line.source == only]
    for line in lines:
        numbers = (line.value, line.standard_error, line.upper)
        shown = ["" if number is None else f"{number:.3g}" for number in numbers]
        table.add_row(line.name, line.source, *(shown if line.tells else (TELLS_NOTHING, "", "")), line.direction)
    out.print(table)
    for line in lines:
        if line.remark and line.tells:
            out.print(f"  - {line.name}, {line.source}: {line.remark}", markup=False)
    out.print("source: samples = drawn from the model, reference = real rows of the source, model = its probabilities")
    out.print("side: lower = below the truth in the limit, upper = above it, neither = may be either")


def _print_what_was_done(comparison: Any) -> None:
    chains, sampled = comparison.sampled.diagnostics, comparison.sampled
    out.print(
        f"chains: {len(sampled.rows):,} of {sampled.steps:,} steps; split R-hat {chains.r_hat:.3f}, effective samples "
        f"{chains.effective_samples:,.0f}, drift of norms {chains.drift:+.2f} sd, accepted "
        f"{100 * chains.acceptance:.0f} %"
    )
    out.print(f"support: {sampled.support}; step {sampled.step_size:.3g}", markup=False)
    network = comparison.kl.marginal
    out.print(
        f"network: best of {network.epochs} epochs was {network.best_epoch}; "
        f"{network.n_nu:,} surrogate and {network.n_rho:,} sampled rows"
    )
    rows = comparison.surrogate
    if rows.weights is not None:
        out.print(
            f"classes matched: {len(rows):,} surrogate rows count as {rows.effective:,.0f}; "
            f"largest weight {rows.largest_weight:.3g}"
        )
    for note in comparison.notes:
        out.print(f"note: {note}", markup=False)
