"""`expunge distance`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.estimates import estimate_options, estimation
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column, model_option


@click.command(cls=Command, short_help="How far is the surrogate from a source that is gone? A heuristic.")
@section(
    "Sets",
    model_option("The trained model, .safetensors."),
    click.option("--surrogate", required=True, type=FILE, help="Rows that resemble the source, with labels."),
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
        help="Write a .png: sampled features against the surrogate's, first two principal components.",
    ),
)
@quiet
@as_json
@reporting
@record_facts
def distance(
    model_file: Path,
    surrogate: Path,
    forget: Path | None,
    reference: Path | None,
    label: str | None,
    match_classes: bool,
    declared: Any,
    device: str,
    target: Path | None,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
    **tuning: Any,
) -> dict[str, Any]:
    """Estimate how far the surrogate is from a source that is gone. A heuristic: none of it is a guarantee.

    Langevin chains draw features from the density that the model implies; a network tells them from the surrogate's
    (Donsker-Varadhan, a lower bound on the KL in the limit); a model trained on the surrogate gives the part of the
    labels. A classifier is not trained to know its features' density, so the samples may be far from the source. Each
    line says its uncertainty and on which side of the truth it falls. Look at it, and at the diagnostics, before a
    certificate rests on it; its status is then `estimated`, whatever the numbers.

    \b
    expunge distance --model model.safetensors --surrogate surrogate.npz --forget forget.npz --figure features.png
    expunge distance --model model.safetensors --surrogate surrogate.npz --reference source-sample.npz
    expunge distance --model model.safetensors --surrogate surrogate.npz --out estimate.npz
    expunge unlearn  --model model.safetensors --surrogate surrogate.npz --forget forget.npz
                     --epsilon 1 --delta 1e-5 --distance estimate.npz --out result/
    """
    from expunge.estimate.saved import estimate_bytes
    from expunge.report.estimates import principal_components

    _require_new(target, ".npz", "--out", "estimate.npz")
    _require_new(figure, ".png", "--figure", "features.png")
    wanted = estimation(matched=match_classes, **tuning)
    sets = {"surrogate": surrogate, "forget": forget, "reference": reference}
    with progress(not quiet) as advance:
        comparison = _compare(model_file, declared, sets, label, wanted=wanted, device=device, progress=advance)
    files: dict[Path, bytes] = {}
    if target is not None:
        files[target] = estimate_bytes(comparison.estimate)
    if figure is not None:
        files[figure] = principal_components(comparison)
    _write_all(files)
    if not json_output:
        _print_comparison(comparison)
        for path in files:
            out.print(f"written: {path}", markup=False)
    named = {"estimate_file": target, "figure": figure}
    content: dict[str, Any] = comparison.to_dict()
    return content | {name: str(path) for name, path in named.items() if path is not None}


def _compare(model_file: Path, declared: Any, sets: dict[str, Path | None], label: str | None, **how: Any) -> Any:
    from expunge.data import read_data
    from expunge.data.files import TABLES
    from expunge.estimate.comparison import compare
    from expunge.model import read_model

    model, _ = read_model(model_file)
    record = _record(model, declared, counted=sets["forget"] is not None)
    rows: dict[str, Any] = {
        name: read_data(path, label if path.suffix.lower() in TABLES else None).rows
        for name, path in sets.items()
        if path is not None
    }
    return compare(model, rows.pop("surrogate"), record=record, **rows, **how)


def _write_all(files: dict[Path, bytes]) -> None:
    """All of the files or none."""
    from expunge.data.output import write_file

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
    from expunge.data.output import require_absent
    from expunge.errors import FileError

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
    table = Table(title="How far the surrogate is from the source: ESTIMATES, nothing is proven", title_justify="left")
    for heading in ("estimate", "source", "value", "s.e.", "upper", "side"):
        table.add_column(heading, justify="left" if heading in ("estimate", "source", "side") else "right")
    for line in comparison.lines:
        numbers = (line.value, line.standard_error, line.upper)
        shown = ["" if number is None else f"{number:.3g}" for number in numbers]
        table.add_row(line.name, line.source, *shown, line.direction)
    out.print(table)
    for line in comparison.lines:
        if line.remark:
            out.print(f"  - {line.name}, {line.source}: {line.remark}", markup=False)
    chains, state = comparison.sampled.diagnostics, "converged"
    if not chains.converged:
        state = "[bold]NOT CONVERGED[/bold]: do not rely on what follows from the samples; unlearn refuses them"
    out.print(
        f"chains: {state}; split R-hat {chains.r_hat:.3f}, effective samples {chains.effective_samples:,.0f}, "
        f"drift of norms {chains.drift:+.2f} sd, accepted {100 * chains.acceptance:.0f} %"
    )
    out.print(f"support: {comparison.sampled.support}; step {comparison.sampled.step_size:.3g}", markup=False)
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
    out.print("source: samples = drawn from the model, reference = real rows of the source, model = its probabilities")
    out.print("side: lower = below the truth in the limit, upper = above it, neither = may be either")
