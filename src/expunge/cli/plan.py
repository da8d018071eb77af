"""`expunge plan`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, progress, quiet, reporting
from expunge.cli.distances import stated_distance
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import (
    FILE,
    FORGET,
    TRAINED,
    columns,
    deposit_option,
    forget_class,
    label_column,
    memory,
    model_option,
    read_forget_and_surrogate,
    read_rows,
)


@click.command(cls=Command, short_help="Before: noise and accuracy at several epsilons and distances.")
@section(
    "Sets",
    model_option(TRAINED),
    click.option("--forget", required=True, type=FILE, help=FORGET),
    deposit_option("What was kept of the source (expunge deposit): what the rows would need of it."),
    click.option("--surrogate", type=FILE, help="Without a deposit: rows that resemble the source."),
    click.option("--test", type=FILE, help="With a deposit: labelled rows to measure accuracy on."),
    forget_class,
    label_column,
    columns,
)
@section(
    "Guarantee",
    click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n."),
    click.option("--epsilon", "epsilons", multiple=True, type=float, help="May be repeated (default: 0.1 to 10)."),
    click.option(
        "--distance",
        "distances",
        multiple=True,
        help="Without a deposit, as for expunge unlearn; may be repeated (default: same, chi2:0.01, chi2:0.1, chi2:1).",
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
    deposit: Path | None,
    surrogate: Path | None,
    test: Path | None,
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
    before anybody asks. Accuracy is measured on the surrogate's labels. With a deposit: what the rows would need of
    it, how much of its reach that is, and what the noise would do to outputs.

    \b
    expunge plan --model model.safetensors --deposit model.deposit --forget forget.npz --delta 1e-6
    expunge plan --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                 --delta 1e-5 --distance same --distance chi2:0.1 --figure plan.png
    """
    from expunge.cli.swaps import require_deposit, require_model
    from expunge.rows.output import require_absent

    if figure is not None:
        require_absent(figure)
    require_model(model_file, {"--forget": forget, "--deposit": deposit, "--surrogate": surrogate})
    require_deposit(deposit, model_file)
    files = (forget, label, columns, memory)
    if deposit is not None:
        beside = {"surrogate": surrogate, "distance": distances or None, "match_classes": match_classes, "step": step}
        _require_alone({**beside, "figure": figure}, declared)
        content, show = _with_deposit(deposit, model_file, files, delta, epsilons, forget_class, test, quiet)
    elif surrogate is None or test is not None:
        raise _too_little()
    else:
        asked = {"match_classes": match_classes, "forget_class": forget_class, "step": step, "declared": declared}
        content, show = _with_surrogate(surrogate, model_file, files, delta, epsilons, distances, figure, quiet, asked)
    if not json_output:
        show()
    return content


def _with_surrogate(
    surrogate: Path,
    model_file: Path,
    files: tuple[Path, str | None, str | None, str | None],
    delta: float,
    epsilons: tuple[float, ...],
    distances: tuple[str, ...],
    figure: Path | None,
    quiet: bool,
    asked: dict[str, Any],
) -> tuple[dict[str, Any], Callable[[], None]]:
    """The frontier at several distances, and how to show it."""
    from expunge.evaluate.plan import DISTANCES, EPSILONS
    from expunge.evaluate.plan import plan as foresee
    from expunge.model import read_model
    from expunge.report.figures import frontier
    from expunge.request.execution import Execution
    from expunge.rows.output import write_file

    stated = [stated_distance(text) for text in distances or DISTANCES]
    model, _ = read_model(model_file)
    forget, label, columns, memory = files
    rows = read_forget_and_surrogate(forget, surrogate, label, columns, memory, model)
    with progress(not quiet) as advance:
        planned = foresee(
            model,
            *rows,
            delta=delta,
            epsilons=epsilons or EPSILONS,
            distances=stated,
            execution=Execution(memory=memory),
            progress=advance,
            **asked,
        )
    content = planned.to_json()
    if figure is not None:
        write_file(figure, frontier(content["outlooks"], planned.accuracy_before))
    return content, lambda: _print_plan(planned)


def _require_alone(beside: dict[str, Any], declared: Any) -> None:
    from expunge.deposit.asking import require_alone

    require_alone(**beside, **{name: value for name, value in vars(declared).items() if value is not None})


def _too_little() -> Any:
    from expunge.errors import OptionError

    return OptionError(
        "no --surrogate, or --test without --deposit",
        "a plan needs a deposit of the source, or rows that resemble it, on which accuracy is measured too",
        "Give one of the two.",
    )


def _with_deposit(
    deposit: Path,
    model_file: Path,
    files: tuple[Path, str | None, str | None, str | None],
    delta: float,
    epsilons: tuple[float, ...],
    forget_class: str | None,
    test: Path | None,
    quiet: bool,
) -> tuple[dict[str, Any], Callable[[], None]]:
    """What a deletion from a deposit would need, and how to show it."""
    from expunge.deposit.contents import read_deposit
    from expunge.evaluate.plan import EPSILONS, plan_deposit
    from expunge.model import read_model
    from expunge.request.execution import Execution

    forget, label, columns, memory = files
    model, _ = read_model(model_file)
    rows, _ = read_forget_and_surrogate(forget, None, label, columns, memory, model)
    with progress(not quiet) as advance:
        planned = plan_deposit(
            read_deposit(deposit),
            rows,
            delta=delta,
            epsilons=epsilons or EPSILONS,
            model=model,
            forget_class=forget_class,
            test=None if test is None else read_rows(test, label, model),
            execution=Execution(memory=memory),
            progress=advance,
        )
    return planned.to_json(), lambda: _print_deposit_plan(planned)


def _print_deposit_plan(planned: Any) -> None:
    title = f"Forgetting {planned.n_forget:,} of the {planned.n_rows:,} rows that are left, delta {planned.delta:g}"
    table = Table(title=title, title_justify="left")
    for heading in ("epsilon", "sigma", "noise / outputs", "accuracy", "unlearn"):
        table.add_column(heading, justify="left" if heading == "unlearn" else "right")
    for each in planned.outlooks:
        table.add_row(
            f"{each.epsilon:g}",
            "-" if each.sigma is None else f"{each.sigma:.4g}",
            "-" if each.output_share is None else f"{100 * each.output_share:.1f} %",
            "-" if each.accuracy is None else f"{100 * each.accuracy:.1f} %",
            "does it" if each.refused is None else f"refuses: {each.refused}",
        )
    out.print(table)
    if planned.accuracy_before is not None:
        out.print(f"accuracy on the test rows before: {100 * planned.accuracy_before:.1f} %")
    else:
        out.print("accuracy: give labelled rows with --test")
    if planned.reach is not None:
        before = f" after {planned.forgotten:,} rows before them" if planned.forgotten else ""
        out.print(f"these rows{before} need {100 * planned.reach:.3g} % of the deposit's reach")
    for note in planned.notes:
        out.print(f"note: {note}", markup=False)


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
            "" if outlook.noise is None else f"{outlook.noise:.12g}",
        )
    if out.measure(table, options=out.options.update(max_width=1000)).maximum > out.width:
        table.padding = 0
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
