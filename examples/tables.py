"""The page docs/tutorial-tables.md: from three raw tables to verified certificates, with short commands only.

    python -m examples.tables page --data FOLDER
    python -m examples.tables text

`page` runs every command in new folders and keeps what they print, and how long they take, in examples/tables.json;
FOLDER holds adult.data.csv.gz and employment_MA_reference.pq. The third table, credit.csv, is made here. `text` writes
the page again, from what was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

ROOT = Path(__file__).parents[1]
KEPT, TEMPLATE = ROOT / "examples" / "tables.json", ROOT / "examples" / "tables.md.jinja"
PAGE = ROOT / "docs" / "tutorial-tables.md"
WIDTH = 110
FILES = {"adult": "adult.data.csv.gz", "census": "employment_MA_reference.pq", "credit": "credit.csv"}

HEADER = "customer;age;income;job;since;debts;pays"
JOBS = ("clerk", "worker", "own business", "retired", "")

UNLEARN = (
    "expunge unlearn --model model.safetensors --deposit model.deposit --forget {forget} --epsilon 1 --delta 1e-5 "
    "--out result --quiet"
)
VERIFY = (
    "expunge verify result/statement.json --model result/model.safetensors --dossier result/private/dossier.json "
    "--deposit model.deposit --deposit-after result/private/model.deposit --forget {forget}"
)
SCORE = "expunge score --model result/model.safetensors --before model.safetensors --data {test}"
SPLIT = (
    "python -c \"import pandas as pd; t = pd.read_parquet('employment_MA_reference.pq'); t[:20000].to_parquet("
    "'source.parquet'); t[20000:].to_parquet('test.parquet'); t[:10].to_parquet('forget.parquet')\""
)
CENSUS_COLUMNS = "AGEP,SCHL,MAR,RELP,DIS,ESP,CIT,MIG,MIL,ANC,NATIVITY,DEAR,DEYE,DREM,SEX,RAC1P"


def steps_after(train: str, forget: str, test: str) -> dict[str, str]:
    """What follows once the files are there."""
    return {
        "train": f"{train} --out model.safetensors --deposit model.deposit --quiet",
        "unlearn": UNLEARN.format(forget=forget),
        "verify": VERIFY.format(forget=forget),
        "score": SCORE.format(test=test),
    }


PARTS: dict[str, dict[str, str]] = {
    "adult": {
        "source": "zcat adult.data.csv.gz | head -n 24421 | gzip > source.csv.gz",
        "test": "zcat adult.data.csv.gz | tail -n +24422 | gzip > test.csv.gz",
        "forget": "zcat source.csv.gz | head -n 10 > forget.csv",
        **steps_after("expunge train --data source.csv.gz --no-header --label 14", "forget.csv", "test.csv.gz"),
    },
    "census": {
        "split": SPLIT,
        **steps_after(
            f"expunge train --data source.parquet --label employed --columns {CENSUS_COLUMNS}",
            "forget.parquet",
            "test.parquet",
        ),
    },
    "credit": {
        "forget": "head -n 4 credit.csv > forget.csv",
        **steps_after("expunge train --data credit.csv --label pays", "forget.csv", "test.csv"),
        "predict": "expunge predict --model result/model.safetensors --data test.csv --out predictions.csv",
        "look": "head -n 3 predictions.csv",
    },
}


def credit_lines(count: int = 400, seed: int = 0) -> list[str]:
    """Lines of a table as people have it, without the header: decimal commas, empty cells, a date, words as labels."""
    rng, lines = np.random.default_rng(seed), []
    for place in range(count):
        age, income, debts = int(rng.integers(18, 80)), float(rng.lognormal(7.5, 0.5)), 5.0 * float(rng.random())
        job = JOBS[int(rng.choice(5, p=[0.4, 0.3, 0.2, 0.06, 0.04]))]
        score = (age - 45) / 10 + (np.log(income) - 7.5) - debts + 2.5 - (job == "own business")
        pays = "yes" if rng.random() < 1 / (1 + np.exp(-score)) else "no"
        cells = [
            str(place + 1),
            "?" if rng.random() < 0.05 else str(age),
            f"{income:.2f}".replace(".", ","),
            job,
            f"{2000 + place % 20}-0{place % 9 + 1}-12",
            "NA" if rng.random() < 0.03 else f"{debts:.3f}".replace(".", ","),
            pays,
        ]
        lines.append(";".join(cells))
    return lines


def write_credit(path: Path, lines: list[str] | None = None) -> Path:
    """The table with its header, at this path."""
    path.write_text("\n".join([HEADER, *(credit_lines() if lines is None else lines)]) + "\n")
    return path


def run_part(name: str, folder: Path, data: Path | None = None) -> dict[str, Any]:
    """All commands of one part, in a folder of its own: what each printed, and the processor's seconds it took."""
    if name == "credit":
        lines = credit_lines(3000)
        write_credit(folder / "credit.csv", lines[:2000])
        write_credit(folder / "test.csv", lines[2000:])
    else:
        assert data is not None
        (folder / FILES[name]).symlink_to((data / FILES[name]).resolve())
    tools = folder / "bin"
    tools.mkdir()
    for tool, module in (("expunge", "-m expunge"), ("python", "")):
        (tools / tool).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (tools / tool).chmod(0o755)
    known = {"PATH": f"{tools}:{os.environ['PATH']}", "COLUMNS": str(WIDTH)}

    def printed(command: str) -> str:
        known_here = {**os.environ, **known}
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=known_here, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    ran = {}
    for step, command in PARTS[name].items():
        started = processor_seconds()
        told = printed(command)
        ran[step] = {"command": command, "printed": told, "seconds": round(processor_seconds() - started, 1)}
    return {"steps": ran, "scores": json.loads(printed(PARTS[name]["score"] + " --json"))}


def processor_seconds() -> float:
    """What programs that were started here have computed so far: other work on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def text_of(kept: dict[str, Any]) -> str:
    """The page."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters["shown"] = lambda step, *words: "\n".join(
        line.rstrip() for line in step["printed"].splitlines() if not words or any(word in line for word in words)
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.2f} %"
    environment.filters["seconds"] = lambda part: f"{sum(step['seconds'] for step in part['steps'].values()):.0f}"
    return environment.from_string(TEMPLATE.read_text()).render(**kept, sample=[HEADER, *credit_lines(3)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("page").add_argument("--data", type=Path, required=True)
    actions.add_parser("text")
    asked = parser.parse_args()
    if asked.action == "page":
        kept = {}
        for name in PARTS:
            with tempfile.TemporaryDirectory() as folder:
                kept[name] = run_part(name, Path(folder), asked.data)
            KEPT.write_text(json.dumps({"parts": kept}, indent=1) + "\n")
    PAGE.write_text(text_of(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
