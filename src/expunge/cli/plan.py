"""`expunge plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, progress, quiet, reporting
from expunge.cli.facts import record_facts
from expunge.cli.streaming import rows_from, streaming


@click.command()
@click.option(
    "--model", "model_file", required=True, type=click.Path(path_type=Path, readable=False), help="The trained model."
)
@click.option(
    "--forget", required=True, type=click.Path(path_type=Path, readable=False), help="The rows to forget, labelled."
)
@click.option(
    "--surrogate", required=True, type=click.Path(path_type=Path, readable=False), help="Rows that resemble the source."
)
@click.option(
    "--forget-class",
    help="Forget a whole class: of the rows in --forget, those with this label, which must be all the source had of it.",
)
@click.option("--label", help="Label column of .csv and .parquet files (default: y, or label).")
@click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n.")
@click.option("--epsilon", "epsilons", multiple=True, type=float, help="May be repeated (default: 0.1 to 10).")
@click.option(
    "--distance", "distances", multiple=True, help="May be repeated (default: same, chi2:0.01, chi2:0.1, chi2:1)."
)
@click.option(
    "--match-classes", is_flag=True, help="Weight surrogate rows to the source's class counts; see expunge unlearn."
)
@click.option("--step", help="converged (the default), newton or balanced.")
@streaming
@click.option("--figure", type=click.Path(path_type=Path, readable=False), help="A new .png file for the figure.")
@quiet
@as_json
@reporting
@record_facts
def plan(
    model_file: Path,
    forget: Path,
    surrogate: Path,
    forget_class: str | None,
    label: str | None,
    delta: float,
    epsilons: tuple[float, ...],
    distances: tuple[str, ...],
    match_classes: bool,
    step: str | None,
    facts: dict[str, Any],
    memory: str | None,
    columns: str | None,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Before you act: noise and predicted accuracy at several epsilons and distances; nothing is published.

    The noise foreseen is what `expunge unlearn` then uses. Accuracy is measured on the surrogate's labels.

    \b
    expunge plan --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                 --delta 1e-5 --distance same --distance chi2:0.1 --figure plan.png
    """  # fmt: skip
    from expunge.data.output import require_absent, write_file
    from expunge.evaluate.plan import DISTANCES, EPSILONS
    from expunge.evaluate.plan import plan as foresee
    from expunge.model import read_model
    from expunge.report.plots import frontier

    if figure is not None:
        require_absent(figure)
    model, digest = read_model(model_file)
    leaving, standing = rows_from(forget, surrogate, label, columns, memory)
    with progress(not quiet) as advance:
        found = foresee(
            model,
            leaving,
            standing,
            memory=memory,
            delta=delta,
            epsilons=epsilons or EPSILONS,
            distances=distances or DISTANCES,
            match_classes=match_classes,
            forget_class=forget_class,
            step=step,
            **facts,
            model_sha256=digest,
            progress=advance,
        )
    content = found.to_json()
    if figure is not None:
        write_file(figure, frontier(content["outlooks"], found.accuracy_before))
    if not json_output:
        table = Table(
            title=f"Forgetting {found.n_forget:,} of {found.n_source:,} rows, delta {delta:g}", title_justify="left"
        )
        for heading in (
            "distance",
            "epsilon",
            "bound",
            "sigma",
            "noise / weights",
            "accuracy",
            "that fit",
        ):
            table.add_column(heading, justify="left" if heading == "distance" else "right")
        for outlook in found.outlooks:
            accuracy = "" if outlook.accuracy is None else f"{100 * outlook.accuracy:.1f} %"
            table.add_row(
                outlook.distance,
                f"{outlook.epsilon:g}",
                f"{outlook.total:.4g}",
                f"{outlook.sigma:.4g}",
                f"{100 * outlook.noise_share:.0f} %",
                accuracy,
                "refused" if outlook.refused else str(outlook.deletions),
            )
        out.print(table)
        if found.accuracy_before is not None:
            out.print(f"accuracy on the surrogate before: {100 * found.accuracy_before:.1f} %")
        out.print("that fit: deletions like this one, each published, before the noise swamps the weights")
        for advice in found.advice:
            out.print(f"{advice.change}: noise falls to {100 * advice.share:.0f} %", markup=False)
    return content
