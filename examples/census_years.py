"""Does `expunge distance --by year` find how far a year is that it never saw?

    python -m examples.census_years --data FOLDER

Each year of the census in turn is the source that is gone: the range comes from the other years alone, as the command
gives it, and beside it stands what the same classifiers say of the year itself. The table is for docs/estimates.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from experiments.datasets.census import FILES, LABEL, OUTPUTS, YEAR
from expunge.data.parts import PartRows, read_parts
from expunge.estimate.parts import parts_apart


def all_years(data: Path) -> PartRows:
    """Both files in one table, read as the command reads it."""
    tables = [pyarrow.parquet.read_table(data / name) for name in FILES[:2]]
    columns = [name for name in tables[1].column_names if name not in (LABEL, *OUTPUTS)]
    joined = pa.concat_tables([_plain(table.select(columns)) for table in tables])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "years.parquet"
        pyarrow.parquet.write_table(joined, path)
        return read_parts(path, YEAR)


def _plain(table: Any) -> Any:
    coded = [pa.types.is_dictionary(field.type) for field in table.schema]
    arrays = [column.cast(pa.string()) if is_coded else column for column, is_coded in zip(table, coded, strict=True)]
    return pa.table(dict(zip(table.column_names, arrays, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    rows = all_years(parser.parse_args().data)
    known = {line.part: line for line in parts_apart(rows.features, rows.codes, rows.parts, rows.names).against_rest}
    print("| the source is | plausible from the other years alone | chi-square of that year, 95 % | seconds |")
    print("|---|---|---|---:|")
    for place, year in enumerate(rows.parts):
        began, others = time.process_time(), rows.codes != place
        codes = rows.codes[others] - (rows.codes[others] > place)
        names = [each for each in rows.parts if each != year]
        found = parts_apart(rows.features[others], np.asarray(codes), names, rows.names)
        line, span = known[year], found.plausible
        assert span is not None
        assert line.chi2 is not None
        shown = f"{line.chi2:.3f} ({line.lower:.3f} to {line.upper:.3f})"
        print(f"| {year} | {span[0]:.3f} to {span[1]:.3f} | {shown} | {time.process_time() - began:.0f} |", flush=True)


if __name__ == "__main__":
    main()
