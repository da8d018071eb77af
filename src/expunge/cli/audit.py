"""`expunge audit`."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.attesting import Attest, attested
from expunge.cli.console import as_json, out, progress, quiet, reporting, written_to
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, deposit_option, label_column
from expunge.cli.streams import end_stopped, say_json


@click.command(cls=Command, short_help="Is the certificate true? Claimed against observed epsilon.")
@section(
    "Built-in tasks",
    click.option(
        "--task",
        multiple=True,
        type=click.Choice(["tight", "sampled", "single-step", "deposit"]),
        help="With known retrained weights; all of them unless files are given.",
    ),
    click.option("--epsilon", type=float, default=1.0, show_default=True, help="What the tasks' certificates claim."),
    click.option("--delta", type=float, default=1e-3, show_default=True, help="What the tasks' certificates claim."),
)
@section(
    "A certificate of yours, with the source",
    click.option("--certificate", type=FILE, help="Audit the setting of this dossier (or old certificate) instead."),
    click.option("--model", "model_file", type=FILE, help="With --certificate: the model from before."),
    click.option("--retain", type=FILE, help="With --certificate: source rows that stay."),
    click.option("--surrogate", type=FILE, help="With --certificate: the surrogate it was made with."),
    deposit_option("With --certificate: the deposit it was made with, from before."),
)
@section(
    "A published model, without the source",
    click.option("--fresh", type=FILE, help="Rows drawn as the forget rows were, never trained on."),
    click.option("--published", type=FILE, help="With --fresh: the published model."),
    click.option("--before", type=FILE, help="With --fresh: the model from before, if it still exists."),
)
@section("Either of these two", click.option("--forget", type=FILE, help="Rows that were forgotten."), label_column)
@section(
    "Speed",
    click.option(
        "--runs",
        type=click.IntRange(200, 10_000_000),
        default=20_000,
        show_default=True,
        help="Runs of the mechanism a side; half of them choose the test, the other half count.",
    ),
    click.option("--confidence", type=float, default=0.999, show_default=True, help="Of the lower bounds."),
)
@written_to("A new folder for audit.json and audit.png; also makes a stopped run continuable.", required=False)
@quiet
@as_json
@reporting
@attested(
    "--test-result",
    "With --certificate or --published: write the outcome to a new file that other tools read, an in-toto Test Result. "
    "It says passed or failed, and nothing of the dossier's numbers.",
)
def audit(
    task: tuple[str, ...],
    epsilon: float,
    delta: float,
    certificate: Path | None,
    model_file: Path | None,
    retain: Path | None,
    surrogate: Path | None,
    deposit: Path | None,
    fresh: Path | None,
    published: Path | None,
    before: Path | None,
    forget: Path | None,
    label: str | None,
    runs: int,
    confidence: float,
    target: Path | None,
    quiet: bool,
    attest: Attest | None,
    json_output: bool,
) -> dict[str, Any]:
    """Is the certificate true? Claimed against observed epsilon, with confidence.

    Runs the mechanism many times against retraining plus noise and tries to tell the two apart. A lower bound above the
    claim shows that the claim is false; one below it shows no fault, which is not a proof. With --fresh, for those
    without the source: a weaker look at whether forget rows still stand out.

    \b
    expunge audit
    expunge audit --certificate result/private/dossier.json --model model.safetensors
                  --retain retain.npz --forget forget.npz --surrogate surrogate.npz
    expunge audit --published result/model.safetensors --before model.safetensors
                  --forget forget.npz --fresh fresh.npz --test-result audit.json
    """
    from expunge.evaluate.audit import TASKS, audited_subjects, make_task, source_free_from_files, task_from_files
    from expunge.rows.output import require_absent

    if target is not None:
        require_absent(target)
    of = (certificate, None) if fresh is None else (None, published)
    subjects = () if attest is None else audited_subjects(*of)
    if fresh is not None:
        look = source_free_from_files(published, before, forget, fresh, label)
        return _told_source_free(look, target, json_output, attest, subjects)
    if certificate is not None:
        tasks = [task_from_files(certificate, model_file, retain, forget, surrogate, label, deposit)]
    else:
        tasks = [make_task(name, epsilon, delta) for name in task or TASKS]
    audits, content = _run_audits(tasks, runs, confidence, target, quiet)
    _attest_audits(attest, subjects, audits, runs, confidence)
    if not json_output:
        _print_audits(audits, runs, confidence, target)
    if any(one.contradicted for one in audits.values()):
        if json_output:
            say_json(content)
        sys.exit(1)
    return content


def _attest_audits(
    attest: Attest | None, subjects: tuple[Any, ...], audits: dict[str, Any], runs: int, confidence: float
) -> None:
    """The outcome for other tools: what was claimed, and whether it was contradicted; nothing that was observed."""
    from expunge.certificate.sign import FAILED, PASSED, audit_result

    if attest is None:
        return
    (one,) = audits.values()
    setting = {"runs": runs, "confidence": confidence, "epsilon": one.epsilon, "delta": one.delta}
    outcomes = {name: FAILED if one.contradicted else PASSED for name, one in audits.items()}
    attest.write(audit_result(subjects, outcomes, setting))


def _run_audits(
    tasks: list[Any], runs: int, confidence: float, target: Path | None, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The audits, and what is written of them; parts are kept beside the target until all are done."""
    from expunge.evaluate.audit import run_audits, setting_of
    from expunge.report.figures import audit_figure
    from expunge.rows.output import write_folder
    from expunge.rows.partial import open_partial

    partial = None
    cleared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if target is not None:
        partial = open_partial(target.with_name(target.name + ".partial"), setting_of(tasks, runs))
        cleared = partial.gone_if_refused()
    try:
        with cleared, progress(not quiet) as advance:
            audits = run_audits(tasks, runs, confidence, partial, advance)
    except KeyboardInterrupt as stopped:
        kept = "nothing was written"
        if partial is not None:
            kept = f"parts are kept in {partial.folder}; the same command continues"
        end_stopped(stopped, kept)
    content: dict[str, Any] = {
        name: asdict(one) | {"contradicted": one.contradicted, "sentence": one.sentence} for name, one in audits.items()
    }
    if target is not None and partial is not None:
        write_folder(target, {"audit.json": _as_text(content), "audit.png": audit_figure(audits)})
        partial.remove()
    return audits, content


def _as_text(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def _print_audits(audits: dict[str, Any], runs: int, confidence: float, target: Path | None) -> None:
    headings = ("task", "claimed epsilon", "observed", "claimed mu", "observed", "true mu")
    table = Table(title=f"Lower bounds with {100 * confidence:g} % confidence", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for name, one in audits.items():
        numbers = (one.epsilon, one.lower.epsilon, one.mu_claimed, one.lower.mu, one.true_distance / one.sigma)
        table.add_row(name, *(f"{number:.3g}" for number in numbers))
    out.print(table)
    for name, one in audits.items():
        out.print(f"{name}: {one.sentence}", markup=False)
    written = f"; written: {target}" if target else ""
    out.print(f"{runs:,} runs a side, {runs // 2:,} of them counted{written}", markup=False)


def _told_source_free(
    look: Any, target: Path | None, json_output: bool, attest: Attest | None, subjects: tuple[Any, ...]
) -> dict[str, Any]:
    """What a look without the source shows: written where that is wanted, and on the screen."""
    from expunge.certificate.sign import audit_result
    from expunge.rows.output import write_folder

    if attest is not None:
        attest.write(audit_result(subjects, {"forget_rows": look.outcome}, {"compared": "forget and fresh rows"}))

    content: dict[str, Any] = {"source_free": asdict(look) | {"sentence": look.sentence}}
    if target is not None:
        write_folder(target, {"audit.json": _as_text(content)})
    if not json_output:
        for name, score, chance in (("before", look.before, look.before_p), ("after", look.after, look.after_p)):
            if score is not None and score.value is not None:
                share = f"{100 * score.value:.1f} % of pairs, p = {chance:.4g}"
                out.print(f"{name}: a forget row has the smaller loss in {share}")
        out.print(look.sentence, markup=False)
        for limit in look.limits:
            out.print(f"  - {limit}", markup=False)
    return content
