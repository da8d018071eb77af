"""`expunge plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, progress, quiet, reporting
from expunge.cli.distances import stated_distance
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, linear_sets, memory, read_forget_and_surrogate


@click.command(cls=Command, short_help="Before: noise and accuracy at several epsilons and distances.")
@linear_sets
@section(
    "Guarantee",
    click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n."),
    click.option("--epsilon", "epsilons", multiple=True, type=float, help="May be repeated (default: 0.1 to 10)."),
    click.option(
        "--distance",
        "distances",
        multiple=True,
        help="As for expunge unlearn; may be repeated (default: same, chi2:0.01, chi2:0.1, chi2:1).",
    ),
    click.option(
        "--match-classes", is_flag=True, help="Weight surrogate rows to the source's class counts; see expunge unlearn."
    ),
    click.option("--step", help="converged (the default), newton or balanced."),
)
@section("Speed", memory)
@section("Output", click.option("--figure", type=FILE, help="A new .png file for the figure."))
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
    columns: str | None,
    delta: float,
    epsilons: tuple[float, ...],
    distances: tuple[str, ...],
    match_classes: bool,
    step: str | None,
    declared: Any,
    memory: str | None,
    figure: Path | None,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Before you act: noise and predicted accuracy at several epsilons and distances; nothing is published.

    The noise foreseen is what `expunge unlearn` then uses if the request chooses it; --noise is what to set it to
    before anybody asks. Accuracy is measured on the surrogate's labels.

    \b
    expunge plan --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                 --delta 1e-5 --distance same --distance chi2:0.1 --figure plan.png
    """
    from expunge.data.output import require_absent, write_file
    from expunge.evaluate.plan import DISTANCES, EPSILONS
    from expunge.evaluate.plan import plan as foresee
    from expunge.model import read_model
    from expunge.report.plots import frontier
    from expunge.request.execution import Execution

    if figure is not None:
        require_absent(figure)
    stated = [stated_distance(text) for text in distances or DISTANCES]
    model, _ = read_model(model_file)
    forget_rows, surrogate_rows = read_forget_and_surrogate(forget, surrogate, label, columns, memory)
    with progress(not quiet) as advance:
        planned = foresee(
            model,
            forget_rows,
            surrogate_rows,
            delta=delta,
            epsilons=epsilons or EPSILONS,
            distances=stated,
            match_classes=match_classes,
            forget_class=forget_class,
            step=step,
            declared=declared,
            execution=Execution(memory=memory),
            progress=advance,
        )
    content = planned.to_json()
    if figure is not None:
        write_file(figure, frontier(content["outlooks"], planned.accuracy_before))
    if not json_output:
        _print_plan(planned)
    return content


def _print_plan(planned: Any) -> None:
    delta = planned.outlooks[0].delta
    title = f"Forgetting {planned.n_forget:,} of {planned.n_source:,} rows, delta {delta:g}"
    table = Table(title=title, title_justify="left")
    for heading in ("distance", "epsilon", "bound", "sigma", "noise / weights", "accuracy", "that fit", "--noise"):
        table.add_column(heading, justify="left" if heading == "distance" else "right")
    for outlook in planned.outlooks:
        table.add_row(
            outlook.distance,
            f"{outlook.epsilon:g}",
            f"{outlook.total:.4g}",
            f"{outlook.sigma:.4g}",
            f"{100 * outlook.noise_share:.0f} %",
            "" if outlook.accuracy is None else f"{100 * outlook.accuracy:.1f} %",
            "refused" if outlook.refused else str(outlook.deletions),
            "" if outlook.noise is None else f"{outlook.noise:g}",
        )
    out.print(table)
    if planned.accuracy_before is not None:
        out.print(f"accuracy on the surrogate before: {100 * planned.accuracy_before:.1f} %")
    for note in planned.notes:
        out.print(f"note: {note}", markup=False)
    out.print(
        f"--noise: as for {planned.n_forget:,} rows, whoever they are, rehearsed on surrogate rows; to be set before "
        "anybody asks"
    )
    out.print("that fit: deletions like this one, each published, before the noise swamps the weights")
    for advice in planned.advice:
        out.print(f"{advice.change}: noise falls to {100 * advice.share:.0f} %", markup=False)
