"""`expunge distance`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting
from expunge.cli.estimation import estimate_options, estimation
from expunge.cli.facts import record_facts


@click.command()
@click.option(
    "--model",
    "model_file",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The trained model, .safetensors.",
)
@click.option(
    "--surrogate",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="Rows that resemble the source, with labels.",
)
@click.option(
    "--forget",
    type=click.Path(path_type=Path, readable=False),
    help="Rows to forget: then the difference of means that the bound needs is estimated too, at the update they call for.",
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path, readable=False),
    help="Rows of the source, where somebody does have some: every estimate is repeated on them for comparison.",
)
@click.option("--label", help="Label column of .csv and .parquet files (default: y, or label).")
@click.option(
    "--match-classes",
    is_flag=True,
    help="Weight surrogate rows so that its class proportions are the source's.",
)
@estimate_options
@on_device
@click.option(
    "--figure",
    type=click.Path(path_type=Path, readable=False),
    help="Write a .png: sampled features against the surrogate's, first two principal components.",
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
    facts: dict[str, Any],
    device: str,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
    **estimating: Any,
) -> dict[str, Any]:
    """Estimate how far the surrogate is from a source that is gone.

    Langevin chains draw features from the density that the model implies; a network tells them from the surrogate's
    (Donsker-Varadhan, a lower bound on the KL in the limit); a model trained on the surrogate gives the part of the labels.
    Each line says its uncertainty and on which side of the truth it falls. None of it is a guarantee.

    \b
    expunge distance --model model.safetensors --surrogate surrogate.npz --forget forget.npz --figure features.png
    expunge distance --model model.safetensors --surrogate surrogate.npz --reference source-sample.npz
    """  # fmt: skip
    from expunge.data import read_data
    from expunge.data.files import TABLES
    from expunge.data.output import require_absent, write_file
    from expunge.errors import FileError
    from expunge.estimate.comparison import compare
    from expunge.model import read_model
    from expunge.report.estimates import principal_components
    from expunge.request.door import record_for

    if figure is not None:
        if figure.suffix.lower() != ".png":
            raise FileError(f"--figure {figure}", "figures are .png files", "Name it for example features.png.")
        require_absent(figure)
    wanted = replace(estimation("estimate:kl", **estimating), matched=match_classes)
    model, _ = read_model(model_file)
    if model.record is None:
        # an estimate is about softmax alone; without rows to forget the source's size plays no part, nor how far training stopped
        size = None if forget is not None else sum(facts["class_counts"] or (2,))
        stated = {name: value for name, value in facts.items() if value is not None}
        facts = facts | {"n_source": size, "loss": "softmax", "training_residual": 0.0} | stated
    record = record_for(model, classes=None, **facts)

    def read(path: Path | None) -> Any:
        if path is None:
            return None
        return read_data(path, label if path.suffix.lower() in TABLES else None).rows

    with progress(not quiet) as advance:
        found = compare(
            model,
            read(surrogate),
            record=record,
            wanted=wanted,
            forget=read(forget),
            reference=read(reference),
            device=device,
            progress=advance,
        )
    if figure is not None:
        write_file(figure, principal_components(found))
    if not json_output:
        _print(found)
        if figure is not None:
            out.print(f"written: {figure}", markup=False)
    return found.to_dict() | ({"figure": str(figure)} if figure is not None else {})


def _print(found: Any) -> None:
    table = Table(title="How far the surrogate is from the source: ESTIMATES, nothing is proven", title_justify="left")
    for heading in ("estimate", "source", "value", "s.e.", "upper", "side"):
        table.add_column(heading, justify="left" if heading in ("estimate", "source", "side") else "right")
    for line in found.lines:
        numbers = (line.value, line.standard_error, line.upper)
        shown = ["" if number is None else f"{number:.3g}" for number in numbers]
        table.add_row(line.name, line.source, *shown, line.direction)
    out.print(table)
    for line in found.lines:
        if line.remark:
            out.print(f"  - {line.name}, {line.source}: {line.remark}", markup=False)
    chains = found.sampled.diagnostics
    state = (
        "converged" if chains.converged else "[bold]NOT CONVERGED[/bold]: do not rely on what follows from the samples"
    )
    out.print(
        f"chains: {state}; split R-hat {chains.r_hat:.3f}, effective samples {chains.effective_samples:,.0f}, drift of norms {chains.drift:+.2f} sd, accepted {100 * chains.acceptance:.0f} %"
    )
    out.print(f"support: {found.sampled.support}; step {found.sampled.step_size:.3g}", markup=False)
    network = found.kl.marginal
    out.print(
        f"network: best of {network.epochs} epochs was {network.best_epoch}; {network.n_nu:,} surrogate and {network.n_rho:,} sampled rows"
    )
    rows = found.surrogate
    if rows.weights is not None:
        out.print(
            f"classes matched: {len(rows):,} surrogate rows count as {rows.effective:,.0f}; largest weight {rows.largest_weight:.3g}"
        )
    out.print("source: samples = drawn from the model, reference = real rows of the source, model = its probabilities")
    out.print("side: lower = below the truth in the limit, upper = above it, neither = may be either")
