"""Everything on one page (docs/reproduction.md on the site), made from the results files and nothing else.

Words are in `templates/`, one file an experiment; numbers come from the results and, where they are the paper's, from
the configs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from experiments.protocol.config import configs
from experiments.protocol.experiment import SEEDS, Config, module_of, table_from_json
from experiments.protocol.store import Results, read_results
from experiments.shared.checks import Tally, tally
from expunge.errors import FileError


def reproduction_page(out: Path, page: Path, folder: Path | None = None) -> str:
    """The page's text; `page` is where it will be, for the links to the figures in `out`."""
    known = configs(folder)
    finished = {name: results for name in known if (results := read_results(out, name)) is not None}
    if not finished:
        raise FileError(f"no results in {out}", "a page is made from them", "Run python -m experiments first.")
    where = os.path.relpath(out, page.parent)
    parts = [_part(known[name], results, where) for name, results in finished.items()]
    total = sum((part["tally"] for part in parts), Tally(0, 0, 0, 0, None))
    text = (
        _environment()
        .get_template("page.md")
        .render(
            parts=parts,
            total=total,
            missing=[{"name": name, **known[name]["about"]} for name in known if name not in finished],
            minutes=sum(part["minutes"] for part in parts),
        )
    )
    return text.rstrip() + "\n"


def _part(config: Config, results: Results, where: str) -> dict[str, Any]:
    planned = len(module_of(results.name).cases(config, SEEDS))
    return {
        "name": results.name,
        "about": config["about"],
        "paper": config["paper"],
        "run": config["run"],
        "labels": {name: one["label"] for name, one in results.setting["data"].items() if one["label"]},
        "tables": [table_from_json(table).to_markdown() for table in results.tables],
        "figures": [f"{where}/{figure}" for figure in results.figures],
        "file": f"{where}/{results.name}.json",
        "cases": len(results.records),
        "planned": planned,
        "lacks": len(results.records) < planned,
        "seeds": results.seeds,
        "minutes": results.seconds / 60.0,
        "machines": _machines(results.runs),
        "tally": tally(results.records),
    }


def _machines(runs: tuple[Mapping[str, Any], ...]) -> list[str]:
    """Where the runs took place, each once."""
    return list(
        dict.fromkeys(
            f"{run['machine']}, {run['device']}, expunge {run['versions']['expunge']}, torch "
            f"{run['versions']['torch']}, "
            f"numpy {run['versions']['numpy']}"
            for run in runs
        )
    )


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("experiments"),
        autoescape=False,  # Markdown, of our own numbers alone
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
