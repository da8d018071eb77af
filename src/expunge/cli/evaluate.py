"""Where the source still exists: `expunge evaluate`, and `expunge audit`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import out, progress
from expunge.cli.files import LABEL
from expunge.cli.options import command, output_option
from expunge.cli.unlearn import MATCH_CLASSES
from expunge.runtime.values import option


@command(quiet=True)
def evaluate(
    seeds: int = option("How many.", 5, section="Speed", kind=click.IntRange(1, 1000)),
    n_models: int = option(
        "Models a side for the forget score; 0 leaves it out.",
        512,
        names=("--models",),
        kind=click.IntRange(0, 8000),
    ),
    model: Path | None = option("The model as trained on retain and forget set together.", section="Sets"),
    retain: Path | None = option("Source rows that stay."),
    forget: Path | None = option("Source rows to forget."),
    test: Path | None = option("Rows the model never saw."),
    surrogate: Path | None = option("Rows that stand in for the source; without them Unlearn (-) is left out."),
    with_deposit: bool = option("Also forget with a deposit of the source (expunge deposit), which is made for it."),
    candidate: tuple[str, ...] = option(
        "A model of your own to compare, .safetensors; may be given again.", (), metavar="NAME=FILE"
    ),
    label: str | None = option(LABEL),
    epsilon: float = option("Of Unlearn (+) and Unlearn (-).", 1.0, section="Guarantee"),
    delta: float = option("Of Unlearn (+) and Unlearn (-).", 1e-4),
    distance: str = option("Between source and surrogate, declared as for unlearn.", "same"),
    match_classes: bool = option(MATCH_CLASSES),
    target: Path = output_option("A new folder for table.md and .json."),
) -> Any:
    """Did it forget? Retraining, Unlearn (+), Unlearn (-) and models of your own, metric by metric.

    For those who still have the source: retain and forget set are its two parts. Prints one table, mean and spread over
    seeds.

    \b
    expunge evaluate --model model.safetensors --retain retain.npz --forget forget.npz --test test.npz
                     --surrogate surrogate.npz --epsilon 1 --delta 1e-5 --seeds 5 --out evaluation/
    """
    from expunge.evaluate.evaluation import evaluate_files, to_json, to_markdown
    from expunge.rows.output import write_folder

    with progress() as advance:
        table, setting = evaluate_files(
            model,
            {"retain": retain, "forget": forget, "test": test, "surrogate": surrogate},
            candidate,
            n_models=n_models,
            with_deposit=with_deposit,
            label=label,
            epsilon=epsilon,
            delta=delta,
            distance=distance,
            match_classes=match_classes,
            seeds=seeds,
            progress=advance,
        )
    content = {"setting": setting, **to_json(table)}
    files = {
        "table.md": to_markdown(table).encode(),
        "table.json": _indent(content),
    }
    write_folder(target, files)
    _print_table(table, seeds)
    out.print(f"written: {target}")
    return {"folder": str(target), **content}


def _print_table(table: Any, seeds: int) -> None:
    from expunge.evaluate.evaluation import METRICS, PERCENT, TITLES, format_cell, legend, remarks

    over = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    for columns in (METRICS[:6], METRICS[6:]):
        present = [metric for metric in columns if metric in table.metrics]
        headings = [TITLES[metric] + (" %" if metric in PERCENT else "") for metric in present]
        cells = [
            (name, *(format_cell(metric, row.get(metric)) for metric in present)) for name, row in table.cells.items()
        ]
        out.table(("method", *headings), cells, over, ("method",))
    out.listing(legend(table), "  ")
    out.listing(remarks(table))


@command(quiet=True)
def audit(
    task: tuple[str, ...] = option(
        "With known retrained weights (default: all of them).",
        (),
        section="Tasks",
        kind=click.Choice(["tight", "sampled", "single-step", "deposit"]),
    ),
    epsilon: float = option("What the tasks' certificates claim.", 1.0),
    delta: float = option("What the tasks' certificates claim.", 1e-3),
    runs: int = option(
        "Runs of the mechanism a side; half of them choose the test, the other half count.",
        20_000,
        section="Speed",
        kind=click.IntRange(200, 10_000_000),
    ),
    confidence: float = option("Of the lower bounds.", 0.999),
    target: Path | None = output_option("A new folder for audit.json."),
) -> Any:
    """Is the certificate true? Claimed against observed epsilon, with confidence.

    Runs the mechanism many times against retraining plus noise and tries to tell the two apart. A lower bound above the
    claim shows that the claim is false; one below it shows no fault, which is not a proof.

    \b
    expunge audit
    expunge audit --task deposit --epsilon 0.5
    """
    from expunge.evaluate.audit import TASKS, make_task
    from expunge.evaluate.audit import audit as run
    from expunge.rows.output import write_folder

    tasks = [make_task(name, epsilon, delta) for name in task or TASKS]
    with progress() as advance:
        audits = {one.name: run(one, runs=runs, confidence=confidence, progress=advance) for one in tasks}
    content = {
        name: asdict(one) | {"contradicted": one.contradicted, "sentence": one.sentence} for name, one in audits.items()
    }
    if target is not None:
        write_folder(target, {"audit.json": _indent(content)})
    _print_audits(audits, confidence)
    written = f"; written: {target}" if target else ""
    out.print(f"{runs:,} runs a side, {runs // 2:,} of them counted{written}")
    return content, int(any(one.contradicted for one in audits.values()))


def _print_audits(audits: dict[str, Any], confidence: float) -> None:
    cells = []
    for name, one in audits.items():
        numbers = (one.epsilon, one.lower.epsilon, one.mu_claimed, one.lower.mu, one.true_distance / one.sigma)
        cells.append((name, *(f"{number:.3g}" for number in numbers)))
    headings = ("task", "claimed epsilon", "observed", "claimed mu", "observed", "true mu")
    out.table(headings, cells, f"Lower bounds with {100 * confidence:g} % confidence", ("task",))
    for name, one in audits.items():
        out.print(f"{name}: {one.sentence}")


def _indent(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()
