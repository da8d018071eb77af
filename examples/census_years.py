"""Does `expunge distance --by year` find how far a year is that it never saw?

    python -m examples.census_years page --data FOLDER
    python -m examples.census_years text

Each year of the census in turn is the source that is gone: the range comes from the other years alone, as the command
gives it, and beside it stands what the same classifiers say of the year itself, relative to the others. `page` keeps
what was found in examples/census_years.json and writes examples/census_years.md; `text` writes the page again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from examples.tables import CENSUS_COLUMNS
from experiments.datasets.census import FILES, YEAR
from expunge.estimate.groups import GroupDistance, GroupDistances, compare_groups
from expunge.rows.files import PartRows, read_parts

ROWS = 30_000  # of each year, at random: all five comparisons then take a few minutes of one core
KEPT, PAGE = (Path(__file__).with_name(f"census_years.{ending}") for ending in ("json", "md"))
HEAD = """# A year that was never seen

Written by `examples/census_years.py`. Census employment, Massachusetts, {rows:,} rows of each year drawn at random,
{features} features. Each year in turn is the source that is gone; the three others are the surrogate. *Plausible* is
what `expunge distance --by year` says of the others alone: from the largest upper value of a year against the rest to
the largest of a pair. Beside it is what the same classifiers find between the year and the others when they do have it.
A declaration *covers* the year if it is at least as large as that value. Seconds are of one processor, for the
command's own part.

| the source is | plausible from the others | that year, 95 % | the upper end covers it | twice that | seconds |
|---|---|---|---|---|---:|
"""


def all_years(data: Path, rows: int = ROWS) -> PartRows:
    """Some rows of each year in one table, read as the command reads it."""
    tables = [pyarrow.parquet.read_table(data / name) for name in FILES[:2]]
    columns = [YEAR, *CENSUS_COLUMNS.split(",")]
    joined = pa.concat_tables([_plain(table.select(columns)) for table in tables])
    years, generator = np.asarray(joined[YEAR]), np.random.default_rng(0)
    chosen = [generator.permutation(np.flatnonzero(years == year))[:rows] for year in np.unique(years)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "years.parquet"
        pyarrow.parquet.write_table(joined.take(np.sort(np.concatenate(chosen))), path)
        return read_parts(path, YEAR)


def _plain(table: Any) -> Any:
    coded = [pa.types.is_dictionary(field.type) for field in table.schema]
    arrays = [column.cast(pa.string()) if is_coded else column for column, is_coded in zip(table, coded, strict=True)]
    return pa.table(dict(zip(table.column_names, arrays, strict=True)))


def without(rows: PartRows, place: int) -> GroupDistances:
    """What the command says of all years but this one."""
    others = rows.codes != place
    codes = rows.codes[others] - (rows.codes[others] > place)
    names = [each for each in rows.parts if each != rows.parts[place]]
    return compare_groups(rows.features[others], np.asarray(codes), names, rows.names)


def held_out(rows: PartRows) -> list[dict[str, Any]]:
    """Every year in turn."""
    known: dict[str, GroupDistance] = {
        line.part: line for line in compare_groups(rows.features, rows.codes, rows.parts, rows.names).against_rest
    }
    found = []
    for place, year in enumerate(rows.parts):
        began = time.process_time()
        span, line = without(rows, place).plausible, known[year]
        found.append(
            {
                "year": year,
                "plausible": span,
                "chi2": line.chi2,
                "interval": [line.lower, line.upper],
                "seconds": round(time.process_time() - began, 1),
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def text_of(kept: dict[str, Any]) -> str:
    """The page."""
    lines = []
    for one in kept["years"]:
        if one["plausible"] is None or one["chi2"] is None:
            lines.append(f"| {one['year']} | this tells nothing | | | | {one['seconds']} |")
            continue
        (low, high), chi2 = one["plausible"], one["chi2"]
        covers = ["yes" if bound >= chi2 else "no" for bound in (high, 2.0 * high)]
        span = f"chi2:{low:.4f} to chi2:{high:.4f}"
        year = f"{chi2:.4f} ({one['interval'][0]:.4f} to {one['interval'][1]:.4f})"
        lines.append(f"| {one['year']} | {span} | {year} | {covers[0]} | {covers[1]} | {one['seconds']} |")
    return HEAD.format(**kept) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("page").add_argument("--data", type=Path, required=True)
    actions.add_parser("text")
    asked = parser.parse_args()
    if asked.action == "page":
        rows = all_years(asked.data)
        found = held_out(rows)
        kept = {"rows": ROWS, "features": rows.features.shape[1], "years": found}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(text_of(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
