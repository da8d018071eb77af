"""`expunge demo`."""

from __future__ import annotations

import functools
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from expunge.cli.console import out, percent
from expunge.cli.options import command, output_option

WIDTH = 110
NAMES = {
    "before": "before, with everybody",
    "retrained": "retrained without them",
    "with-deposit": "unlearned, with a deposit",
    "without-deposit": "unlearned, without",
}
ROWS = {"test": "test rows", "retain": "rows that stay", "forget": "rows to forget"}


@command()
def demo(
    target: Path | None = output_option("Keep the files in this new folder (default: a temporary one, removed)."),
) -> Any:
    """Two deletions on real data that comes with scikit-learn, in seconds, with the commands that would do the same.

    With a deposit: train on handwritten digits, keep a deposit, lose the source, forget three examples. Without: the
    same with a disjoint surrogate in place of the source. Each is verified from its files and set beside true
    retraining. With --out, the pages to open are written too.
    """
    if target is not None:
        target.mkdir(parents=True)
        return _tell(target, stays=True)
    with tempfile.TemporaryDirectory() as folder:
        return _tell(Path(folder), stays=False)


def _tell(folder: Path, *, stays: bool) -> dict[str, Any]:
    """Both stories, their pages as expunge report writes them, and what to open."""
    from expunge.desk import result_report
    from expunge.evaluate.demo import run
    from expunge.report.page import decision
    from expunge.rows.output import write_file
    from expunge.runtime.files import PRIVATE

    def ended(name: str, ending: Any) -> None:
        result, content = folder / name, ending.unlearned.certificate.content
        page = functools.partial(result_report, result)
        write_file(result / "report.html", page())
        write_file(result / "private" / "report.html", page(full=True), mode=PRIVATE)
        compared = (
            f"{len(ending.checks)} checks agree. The weights before noise are at most "
            f"{content['bound']['total']:.3g} from retrained ones; in truth, which only a demo can know, "
            f"{ending.true_distance:.3g}."
        )
        out.print()
        for text in (f"{content['status'].upper()}. {decision(content, public=False)}", compared):
            out.lines(textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   "))
        out.print()

    story = run(folder, say=out.lines, ended=ended)
    out.lines("What it costs, in rows that are classified rightly:\n")
    out.lines("   expunge score --model with-deposit/model.safetensors --before model.safetensors --data test.npz\n")
    cells = [(NAMES[name], *(percent(values[part]) for part in ROWS)) for name, values in story.accuracies.items()]
    out.table(("model", *ROWS.values()), cells, left=("model",))
    if not stays:
        out.print("Nothing was kept. To have the files, and pages to open in a browser: expunge demo --out demo")
    else:
        out.print("Open in a browser:")
        for result in (folder / name for name in story.endings):
            out.print(f"  {result / 'report.html'}: may be handed out, with model and statement")
            out.print(f"  {result / 'private' / 'report.html'}: every number, for you and the auditor")
    stories = {
        name: {
            "true_distance": each.true_distance,
            "checks": len(each.checks),
            "statement": each.unlearned.statement.content,
        }
        for name, each in story.endings.items()
    }
    return {"accuracies": story.accuracies, "sizes": story.sizes, "stories": stories}
