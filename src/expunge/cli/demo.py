"""`expunge demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from expunge.cli.console import as_json, out, print_certificate, reporting, written_to
from expunge.cli.sections import Command


@click.command(cls=Command, short_help="The whole story on real data, in seconds.")
@written_to("Keep the files in this new folder (default: a temporary one, removed).", required=False)
@as_json
@reporting
def demo(target: Path | None, json_output: bool) -> dict[str, Any]:
    """The whole story on real data that comes with scikit-learn, in seconds.

    Train on handwritten digits, lose the source, forget three examples with a disjoint surrogate, verify the
    certificate, and see before and after: accuracies, the bound term by term, what is proven and what is assumed.
    """
    from expunge.data.output import require_absent
    from expunge.evaluate.demo import run

    say = (lambda _: None) if json_output else (lambda text: out.print(text, markup=False))
    if target is not None:
        require_absent(target)
        target.mkdir(parents=True)
        story = run(target, say=say)
    else:
        with tempfile.TemporaryDirectory() as folder:
            story = run(Path(folder), say=say)
    content = story.unlearned.certificate.content
    if not json_output:
        out.print()
        print_certificate(content)
        table = Table(title="Accuracy", title_justify="left")
        for heading in ("model", "test", "retain", "forget"):
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for name, values in story.accuracies.items():
            table.add_row(name, *(f"{100 * values[part]:.1f} %" for part in ("test", "retain", "forget")))
        out.print(table)
        bound = content["bound"]["total"]
        out.print(f"true distance to the retrained weights {story.true_distance:.3g}, certified bound {bound:.3g}")
        out.print(f"verified: {len(story.checks)} checks" + (f"; files in {target}" if target else ""), markup=False)
    return {
        "accuracies": story.accuracies,
        "true_distance": story.true_distance,
        "checks": len(story.checks),
        "sizes": story.sizes,
        "certificate": content,
    }
