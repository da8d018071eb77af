"""`expunge demo`."""

from __future__ import annotations

import functools
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, reporting, written_to
from expunge.cli.sections import Command

WIDTH = 110
NAMES = {
    "before": "before, with everybody",
    "retrained": "retrained without them",
    "with-deposit": "unlearned, with a deposit",
    "without-deposit": "unlearned, without",
}


@click.command(cls=Command, short_help="Two deletions on real data, in seconds.")
@written_to("Keep the files in this new folder (default: a temporary one, removed).", required=False)
@as_json
@reporting
def demo(target: Path | None, json_output: bool) -> dict[str, Any]:
    """Two deletions on real data that comes with scikit-learn, in seconds, with the commands that would do the same.

    With a deposit: train on handwritten digits, keep a deposit, lose the source, forget three examples. Without: the
    same with a disjoint surrogate in place of the source. Each is verified from its files and set beside true
    retraining. With --out, the pages to open are written too.
    """
    from expunge.rows.output import require_absent

    if target is not None:
        require_absent(target)
        target.mkdir(parents=True)
        return _told(target, json_output, kept=True)
    with tempfile.TemporaryDirectory() as folder:
        return _told(Path(folder), json_output, kept=False)


def _told(folder: Path, json_output: bool, *, kept: bool) -> dict[str, Any]:
    """Both stories, their pages, and what to open."""
    from expunge.evaluate.demo import run

    def say(text: str) -> None:
        if not json_output:
            out.lines(text)

    def ended(name: str, ending: Any) -> None:
        _write_pages(folder / name)
        if not json_output:
            _print_ending(ending)

    story = run(folder, say=say, ended=ended)
    if not json_output:
        _print_accuracies(story.accuracies)
        _print_files(folder, story.endings, kept=kept)
    return {
        "accuracies": story.accuracies,
        "sizes": story.sizes,
        "stories": {
            name: {
                "true_distance": ending.true_distance,
                "checks": len(ending.checks),
                "statement": ending.unlearned.statement.content,
            }
            for name, ending in story.endings.items()
        },
    }


def _write_pages(result: Path) -> None:
    """The public page beside the statement, the full one beside the dossier, as expunge report writes them."""
    from expunge.desk import result_report
    from expunge.rows.output import write_file, write_private

    named = functools.partial(result_report, result, organisation="The demo", model_name="Handwritten digits")
    write_file(result / "report.html", named())
    write_private(result / "private" / "report.html", named(full=True))


def _print_ending(ending: Any) -> None:
    """What was decided, and what only a demo can know."""
    from expunge.report.page import decision

    content = ending.unlearned.certificate.content
    bound = content["bound"]["total"]
    compared = (
        f"{len(ending.checks)} checks agree. The weights before noise are at most {bound:.3g} from retrained ones; in "
        f"truth, which only a demo can know, {ending.true_distance:.3g}."
    )
    out.print()
    for text in (f"{content['status'].upper()}. {decision(content, public=False)}", compared):
        out.lines(textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   "))
    out.print()


def _print_accuracies(accuracies: dict[str, dict[str, float]]) -> None:
    parts = {"test": "test rows", "retain": "rows that stay", "forget": "rows to forget"}
    out.lines("What it costs, in rows that are classified rightly:\n")
    out.lines("   expunge score --model with-deposit/model.safetensors --before model.safetensors --data test.npz\n")
    table = Table()
    table.add_column("model")
    for heading in parts.values():
        table.add_column(heading, justify="right")
    for name, values in accuracies.items():
        table.add_row(NAMES[name], *(f"{100 * values[part]:.1f} %" for part in parts))
    out.print(table)


def _print_files(folder: Path, names: Any, *, kept: bool) -> None:
    """What to open, or how to have it."""
    if not kept:
        out.print("Nothing was kept. To have the files, and pages to open in a browser: expunge demo --out demo")
        return
    out.print("Open in a browser:")
    for name in names:
        result = folder / name
        out.print(f"  {result / 'report.html'}: may be handed out, with model and statement", markup=False)
        out.print(f"  {result / 'private' / 'report.html'}: every number, for you and the auditor", markup=False)
