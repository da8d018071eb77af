"""The census case of docs/tutorial-census.md: its files, and the page itself.

    python -m examples.census files --data FOLDER --out census
    python -m examples.census accuracy MODEL --test census/test.npz
    python -m examples.census page --data FOLDER
    python -m examples.census text

`files` writes source, forget, surrogate and test rows, for the commands of the page. `page` runs every command of the
page in a new folder and keeps what they print. `text` writes the page again, from what was kept.
Kept are examples/census.json (what the commands printed) and docs/census-report.html. The page's tables are those of
experiments/results/census.json, written by `python -m experiments census`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from experiments.datasets.census import FILES, read_census
from experiments.protocol.config import config_of
from experiments.protocol.experiment import table_from_json
from experiments.protocol.store import read_results
from expunge.data.splits import random_split
from expunge.model import read_model

ROOT = Path(__file__).parents[1]
KEPT, TEMPLATE = ROOT / "examples" / "census.json", ROOT / "examples" / "census.md.jinja"
PAGE, REPORT = (ROOT / "docs" / name for name in ("tutorial-census.md", "census-report.html"))
WIDTH = 110
FILES_OF = "--model census/model.safetensors --forget census/forget.npz --surrogate census/surrogate.npz"
COMMANDS = {
    "train": "expunge train --data census/source.npz --l2 1e-3 --max-norm 1 --out census/model.safetensors --quiet",
    "before": "python -m examples.census accuracy census/model.safetensors --test census/test.npz",
    "plan": f"expunge plan {FILES_OF} --delta 1.6e-5 --epsilon 1 --distance chi2:0.02 --distance chi2:0.1 "
    "--distance chi2:1 --distance kl:0.05 --figure census/plan.png --quiet",
    "refused": f"expunge unlearn {FILES_OF} --epsilon 1 --delta 1.6e-5 --distance tv:0.05 --out census/tv --quiet",
    "estimate": f"expunge distance {FILES_OF} --chains 500 --steps 500 --epochs 3 --quiet",
    "unlearn": f"expunge unlearn {FILES_OF} --epsilon 1 --delta 1.6e-5 --distance chi2:0.1 --match-classes "
    "--out census/result --quiet",
    "verify": "expunge verify census/result/statement.json --model census/result/model.safetensors",
    "after": "python -m examples.census accuracy census/result/model.safetensors --test census/test.npz",
    "report": "expunge report census/result --out census/report.html",
}


def write_files(data: Path, out: Path) -> None:
    """The source without a tenth that is held out to test on, the first ten rows of it to forget, and later years."""
    census, wanted = read_census({name: data / name for name in FILES}), config_of("census")["run"]
    kept, held = random_split(len(census.source.y), wanted["held_out"], np.random.default_rng([0, 15]))
    out.mkdir(parents=True)
    parts = {"source": kept, "forget": kept[: wanted["forget"]], "test": held}
    for name, index in parts.items():
        np.savez_compressed(out / name, X=census.source.X[index].astype(np.float32), y=census.source.y[index])
    np.savez_compressed(out / "surrogate", X=census.later.X.astype(np.float32), y=census.later.y)


def accuracy(model: Path, test: Path) -> str:
    with np.load(test) as rows:
        right = read_model(model)[0].predict(rows["X"]) == rows["y"]
    return f"{100.0 * float(np.mean(right)):.2f} % of {len(right):,} rows"


def run_commands(data: Path) -> dict[str, Any]:
    """What each command prints, in a folder of its own; the source is removed after training."""
    outcomes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(data, folder / "census")
        for key, command in COMMANDS.items():
            words = command.split()
            program = [sys.executable, "-m", "expunge"] if words[0] == "expunge" else [sys.executable]
            environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
            done = subprocess.run(
                [*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            outcomes[key] = {"status": done.returncode, "output": (done.stdout + done.stderr).strip()}
            print(f"$ {command}\n{outcomes[key]['output']}\n", flush=True)
            if key == "before":
                (folder / "census" / "source.npz").unlink()
        certificate = json.loads((folder / "census" / "result" / "private" / "dossier.json").read_text())
        shutil.copy(folder / "census" / "report.html", REPORT)
    names = ("status", "epsilon", "delta", "sigma", "guarantee", "assumptions", "limits", "bound")
    return {"commands": outcomes, "certificate": {key: certificate[key] for key in names}}


def page_text(kept: dict[str, Any]) -> str:
    """The page: words of the template, what the commands printed, tables of the results."""
    results = read_results(ROOT / "experiments" / "results", "census")
    assert results is not None
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    forget = [record["result"] for record in results.records if record["options"]["kind"] == "forget"]
    rehearsal = next(record["result"] for record in results.records if record["options"]["kind"] == "rehearsal")
    return environment.from_string(TEMPLATE.read_text()).render(
        commands={key: _folded(command) for key, command in COMMANDS.items()},
        printed={key: one["output"] for key, one in kept["commands"].items()},
        certificate=kept["certificate"],
        tables=[table_from_json(table).to_markdown().strip() for table in results.tables],
        first=forget[0],
        rehearsal=rehearsal,
        widest=max(rehearsal["drifts"].values()),
    )


def _folded(command: str) -> str:
    """Long commands over several lines, broken before an option."""
    lines = [""]
    for part in command.removesuffix(" --quiet").split(" --"):
        piece = part if lines == [""] else f" --{part}"
        if len(lines[-1]) + len(piece) > WIDTH:
            lines.append("   ")
        lines[-1] += piece
    return " \\\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("files", "page"):
        commands.add_parser(name).add_argument("--data", type=Path, required=True)
    commands.choices["files"].add_argument("--out", type=Path, required=True)
    asked = commands.add_parser("accuracy")
    asked.add_argument("model", type=Path)
    asked.add_argument("--test", type=Path, required=True)
    commands.add_parser("text")
    options = parser.parse_args()
    if options.command == "files":
        write_files(options.data, options.out)
    elif options.command == "accuracy":
        print(accuracy(options.model, options.test))
    else:
        if options.command == "page":
            KEPT.write_text(json.dumps(run_commands(options.data), indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page_text(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
