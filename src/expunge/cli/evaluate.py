"""Where the source still exists: `expunge evaluate`, and `expunge audit`."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import end_stopped, out, progress
from expunge.cli.files import LABEL
from expunge.cli.options import command, written_to
from expunge.cli.unlearn import MATCH_CLASSES
from expunge.runtime.values import option


def _as_text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


@command(quiet=True)
def evaluate(
    seeds: int = option("How many.", 5, section="Speed", kind=click.IntRange(1, 1000)),
    n_models: int = option(
        "Models a side for the forget score and U-LiRA; 0 leaves both out.",
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
    target: Path = written_to("A new folder for table.md, .csv, .json and .png."),
) -> Any:
    """Did it forget? Retraining, Unlearn (+), Unlearn (-) and models of your own, metric by metric.

    For those who still have the source: retain and forget set are its two parts. Prints one table, mean and spread over
    seeds. Finished seeds are kept beside --out until all are done: after Ctrl-C, the same command continues.

    \b
    expunge evaluate --model model.safetensors --retain retain.npz --forget forget.npz --test test.npz
                     --surrogate surrogate.npz --epsilon 1 --delta 1e-5 --seeds 5 --out evaluation/
    """
    from expunge.evaluate.evaluation import files_campaign, summarise, to_csv, to_json, to_markdown
    from expunge.report.figures import methods_figure
    from expunge.rows.output import open_run, write_folder

    campaign = files_campaign(
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
    )
    partial = open_run(target.with_name(target.name + ".partial"), campaign.setting)
    try:
        with partial.removed_if_refused(), progress() as advance:
            results = campaign.run(range(seeds), partial, advance)
    except KeyboardInterrupt as stopped:
        done = f"{len(partial.finished())} of {seeds} seeds are kept in {partial.folder}; the same command continues"
        end_stopped(stopped, done)
    table = summarise(results)
    content = {"setting": campaign.setting, **to_json(table)}
    files = {
        "table.md": to_markdown(table).encode(),
        "table.csv": to_csv(table).encode(),
        "table.json": _as_text(content),
        "table.png": methods_figure(table),
    }
    write_folder(target, files)
    partial.remove()
    _print_table(table, seeds)
    out.print(f"written: {target}")
    return {"folder": str(target), **content}


def _print_table(table: Any, seeds: int) -> None:
    from expunge.evaluate.evaluation import METRICS, PERCENT, TITLES, legend, remarks, shown

    over = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    for columns in (METRICS[:6], METRICS[6:]):
        present = [metric for metric in columns if metric in table.metrics]
        headings = [TITLES[metric] + (" %" if metric in PERCENT else "") for metric in present]
        cells = [(name, *(shown(metric, row.get(metric)) for metric in present)) for name, row in table.cells.items()]
        out.table(("method", *headings), cells, over, ("method",))
    out.listing(legend(table), "  ")
    out.listing(remarks(table))


@command(quiet=True)
def audit(
    task: tuple[str, ...] = option(
        "With known retrained weights; all of them unless files are given.",
        (),
        section="Built-in tasks",
        kind=click.Choice(["tight", "sampled", "single-step", "deposit"]),
    ),
    epsilon: float = option("What the tasks' certificates claim.", 1.0),
    delta: float = option("What the tasks' certificates claim.", 1e-3),
    certificate: Path | None = option(
        "Audit the setting of this dossier instead.",
        section="A certificate of yours, with the source",
    ),
    model: Path | None = option("With --certificate: the model from before."),
    retain: Path | None = option("With --certificate: source rows that stay."),
    surrogate: Path | None = option("With --certificate: the surrogate it was made with."),
    deposit: Path | None = option("With --certificate: the deposit it was made with, from before."),
    fresh: Path | None = option(
        "Rows drawn as the forget rows were, never trained on.", section="A published model, without the source"
    ),
    published: Path | None = option("With --fresh: the published model."),
    before: Path | None = option("With --fresh: the model from before, if it still exists."),
    forget: Path | None = option("Rows that were forgotten.", section="Either of these two"),
    label: str | None = option(LABEL),
    runs: int = option(
        "Runs of the mechanism a side; half of them choose the test, the other half count.",
        20_000,
        section="Speed",
        kind=click.IntRange(200, 10_000_000),
    ),
    confidence: float = option("Of the lower bounds.", 0.999),
    target: Path | None = written_to(
        "A new folder for audit.json and audit.png; also makes a stopped run continuable."
    ),
) -> Any:
    """Is the certificate true? Claimed against observed epsilon, with confidence.

    Runs the mechanism many times against retraining plus noise and tries to tell the two apart. A lower bound above the
    claim shows that the claim is false; one below it shows no fault, which is not a proof. With --fresh, for those
    without the source: a weaker look at whether forget rows still stand out.

    \b
    expunge audit
    expunge audit --certificate result/private/dossier.json --model model.safetensors
                  --retain retain.npz --forget forget.npz --surrogate surrogate.npz
    expunge audit --published result/model.safetensors --before model.safetensors
                  --forget forget.npz --fresh fresh.npz
    """
    from expunge.evaluate.audit import TASKS, make_task, source_free_from_files, task_from_files

    if fresh is not None:
        look = source_free_from_files(published, before, forget, fresh, label)
        return _report_look(look, target)
    if certificate is not None:
        tasks = [task_from_files(certificate, model, retain, forget, surrogate, label, deposit)]
    else:
        tasks = [make_task(name, epsilon, delta) for name in task or TASKS]
    audits = _run_audits(tasks, runs, confidence, target)
    _print_audits(audits, runs, confidence, target)
    return _content(audits), int(any(one.contradicted for one in audits.values()))


def _content(audits: dict[str, Any]) -> dict[str, Any]:
    return {
        name: asdict(one) | {"contradicted": one.contradicted, "sentence": one.sentence} for name, one in audits.items()
    }


def _run_audits(tasks: list[Any], runs: int, confidence: float, target: Path | None) -> dict[str, Any]:
    """Run the audits and write them; parts are kept beside the target until all are done."""
    from expunge.evaluate.audit import run_audits, setting_of
    from expunge.report.figures import audit_figure
    from expunge.rows.output import open_run, write_folder

    partial = None
    cleared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if target is not None:
        partial = open_run(target.with_name(target.name + ".partial"), setting_of(tasks, runs))
        cleared = partial.removed_if_refused()
    try:
        with cleared, progress() as advance:
            audits = run_audits(tasks, runs, confidence, partial, advance)
    except KeyboardInterrupt as stopped:
        left = "nothing was written"
        if partial is not None:
            left = f"parts are kept in {partial.folder}; the same command continues"
        end_stopped(stopped, left)
    if target is not None and partial is not None:
        write_folder(target, {"audit.json": _as_text(_content(audits)), "audit.png": audit_figure(audits)})
        partial.remove()
    return audits


def _print_audits(audits: dict[str, Any], runs: int, confidence: float, target: Path | None) -> None:
    cells = []
    for name, one in audits.items():
        numbers = (one.epsilon, one.lower.epsilon, one.mu_claimed, one.lower.mu, one.true_distance / one.sigma)
        cells.append((name, *(f"{number:.3g}" for number in numbers)))
    headings = ("task", "claimed epsilon", "observed", "claimed mu", "observed", "true mu")
    out.table(headings, cells, f"Lower bounds with {100 * confidence:g} % confidence", ("task",))
    for name, one in audits.items():
        out.print(f"{name}: {one.sentence}")
    written = f"; written: {target}" if target else ""
    out.print(f"{runs:,} runs a side, {runs // 2:,} of them counted{written}")


def _report_look(look: Any, target: Path | None) -> dict[str, Any]:
    """What a look without the source shows: written where that is wanted, and on the screen."""
    from expunge.rows.output import write_folder

    content: dict[str, Any] = {"source_free": asdict(look) | {"sentence": look.sentence}}
    if target is not None:
        write_folder(target, {"audit.json": _as_text(content)})
    for name, score, chance in (("before", look.before, look.before_p), ("after", look.after, look.after_p)):
        if score is not None and score.value is not None:
            share = f"{100 * score.value:.1f} % of pairs, p = {chance:.4g}"
            out.print(f"{name}: a forget row has the smaller loss in {share}")
    out.print(look.sentence)
    out.listing(look.limits)
    return content
