"""`expunge distance --by`: how far the parts of a surrogate are from one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from expunge.cli.console import out
from expunge.cli.sets import listed

LIMITS = (
    "an estimate: of what the classifier does not see it says nothing, and a source outside the series (an earlier "
    "year, another country) may be farther: a margin is due on top"
)


def compare_parts(
    path: Path, by: str, label: str | None, columns: str | None, model_file: Path | None, seed: int, progress: Any
) -> tuple[Any, Any]:
    """The parts of a file's rows, and how far they are apart."""
    from expunge.estimate.groups import compare_groups
    from expunge.model import read_model
    from expunge.rows.parts import read_parts

    model = None if model_file is None else read_model(model_file)[0]
    record = None if model is None else model.record
    width = None if model is None else model.n_features
    rows = read_parts(path, by, label, columns=listed(columns), record=record, n_features=width)
    return rows, compare_groups(rows.features, rows.codes, rows.parts, rows.names, seed=seed, progress=progress)


def print_parts(rows: Any, parts: Any, by: str) -> None:
    """A table of the parts, one of the pairs, and what may be declared."""
    for sentence in rows.told:
        out.print(f"  {sentence}", markup=False)
    table = Table(title=f"How far the parts by {by} are apart: chi-square, ESTIMATED", title_justify="left")
    for heading in (by, "rows", "against the rest", "95 % interval", "differs most in"):
        table.add_column(heading, justify="left" if heading in (by, "differs most in") else "right")
    for line in parts.against_rest:
        table.add_row(line.part, f"{line.rows:,}", *_cells(line), line.most or "nothing clearly")
    out.print(table)
    if parts.pairs:
        _print_pairs(parts, by)
    for line in (*parts.against_rest, *parts.pairs):
        if line.reason:
            out.print(f"  - {line.part} against {line.other}: {line.reason}", markup=False)
    for note in parts.notes:
        out.print(f"note: {note}", markup=False)
    _print_range(parts)


def _cells(line: Any) -> tuple[str, str]:
    from expunge.estimate.groups import TELLS_NOTHING

    if line.chi2 is None:
        return TELLS_NOTHING, ""
    return f"{line.chi2:.2g}", f"{line.lower:.2g} to {line.upper:.2g}"


def _print_pairs(parts: Any, by: str) -> None:
    names = [line.part for line in parts.against_rest]
    table = Table(title="Two by two: chi-square of the row relative to the column", title_justify="left")
    table.add_column(by)
    for name in names:
        table.add_column(name, justify="right")
    found = {(line.part, line.other): _cells(line)[0] for line in parts.pairs}
    for name in names:
        table.add_row(name, *(found.get((name, other), "") for other in names))
    out.print(table)


def _print_range(parts: Any) -> None:
    from expunge.estimate.groups import TELLS_NOTHING
    from expunge.runtime.rounding import up

    if parts.plausible is None:
        out.print(f"what may be declared: {TELLS_NOTHING}", style="bold")
        out.print(
            "Give more rows, fewer --columns, or a --by that no other column repeats (a batch number beside a year); "
            "what cannot be measured can still be declared, and defended"
        )
        return
    least, most = (up(value, 2) for value in parts.plausible)
    out.print(f"what may be declared: plausible from chi2:{least} on", style="bold")
    out.print(
        f"  less would say that the source is nearer to the surrogate than its parts are to the rest of it ({least})"
    )
    if most != least:
        out.print(f"  the two parts farthest from each other: up to {most}")
    out.print(f"  {LIMITS}")
