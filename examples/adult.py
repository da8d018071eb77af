"""The case of docs/tutorial-adult.md, from `LogisticRegression()` to a verified certificate: every step of the page.

    python -m examples.adult page --data FOLDER
    python -m examples.adult text
    python -m examples.adult accuracy MODEL --test test.npz

`page` runs every step in a new folder, Python and commands, and keeps what they print in examples/adult.json; FOLDER
holds adult.data.csv.gz. `text` writes the page again, from what was kept.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from expunge.model import read_model

ROOT = Path(__file__).parents[1]
KEPT, TEMPLATE = ROOT / "examples" / "adult.json", ROOT / "examples" / "adult.md.jinja"
PAGE = ROOT / "docs" / "tutorial-adult.md"
DATA = "adult.data.csv.gz"
WIDTH = 110
MANY = 10  # checks, to be listed
FIT = """\
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

table = pd.read_csv("adult.data.csv.gz", header=None, skipinitialspace=True)
labels = table[14].to_numpy()
prepare = make_column_transformer(
    (StandardScaler(), make_column_selector(dtype_include=np.number)),
    (OneHotEncoder(sparse_output=False), make_column_selector(dtype_exclude=np.number)),
)
rows = prepare.fit_transform(table.drop(columns=14).rename(columns=str))
order = np.random.default_rng(0).permutation(len(rows))
test, source = order[: len(rows) // 4], order[len(rows) // 4 :]
X, y = rows[source], labels[source]

model = LogisticRegression(max_iter=1000).fit(X, y)
right = 100 * model.score(rows[test], labels[test])
print(f"{len(X):,} rows of {X.shape[1]} features; {right:.2f} % of {len(test):,} others are right")
"""
DEPOSIT = """\
import expunge.sklearn
from pathlib import Path

kept = expunge.sklearn.deposit(model, X, y)
print(f"a deposit of {kept.numbers.n_rows:,} rows: {len(kept.to_bytes()) / 1e6:.1f} MB, levels of noise {kept.levels}")

Path("model.deposit").touch(mode=0o600)
Path("model.deposit").write_bytes(kept.to_bytes())
Path("model.safetensors").write_bytes(kept.model.to_bytes())
"""
ASKED = """\
ten = np.random.default_rng(1).permutation(len(X))[:10]
X_gone, y_gone = X[ten], y[ten]  # what ten people sent
np.savez("forget.npz", X=X_gone, y=y_gone.astype(str))
np.savez("person.npz", X=X[[5]], y=y[[5]].astype(str))
np.savez("test.npz", X=rows[test], y=labels[test].astype(str))
"""
REFIT = """\
left = np.delete(np.arange(len(X)), ten)
refit = LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(X[left], y[left])
print(f"refitted without them, which nobody can do later: {100 * refit.score(rows[test], labels[test]):.2f} %")
"""
FORGET = """\
result = expunge.sklearn.unlearn(model, (X_gone, y_gone), kept, epsilon=1.0, delta=1e-6)
statement = result.statement
print(statement.status, "epsilon", statement.epsilon, "delta", statement.delta)
print(statement.content["guarantee"])
moved, own = statement.content["sigma"] * result.deposit.output_noise, result.deposit.output_spread
print(f"the noise moves an output by about {moved:.3g}, the model's own are about {own:.3g}")
print(f"{100 * result.estimator.score(rows[test], labels[test]):.2f} % with", result.estimator)
"""
VERIFY = """\
import expunge

folder = Path("in-python")
folder.mkdir()
(folder / "model.safetensors").write_bytes(result.model.to_bytes())
(folder / "statement.json").write_text(statement.to_json())
checks = expunge.verify_statement(expunge.read_statement(folder / "statement.json"), folder / "model.safetensors")
print(len(checks), "checks, all passed:", all(check.passed for check in checks))
print(f"{result.deposit.numbers.n_rows:,} rows are left in the new deposit, {kept.numbers.n_rows:,} in the old one")
"""
PROGRAMS = {"fit": FIT, "deposit": DEPOSIT, "asked": ASKED, "refit": REFIT, "forget": FORGET, "verified": VERIFY}
BOTH = "--model model.safetensors --deposit model.deposit --forget forget.npz"
CHECKED = "expunge verify result/statement.json --model result/model.safetensors"
COMMANDS = {
    "member": "expunge member --deposit model.deposit --rows person.npz",
    "plan": f"expunge plan {BOTH} --delta 1e-6 --epsilon 0.1 --epsilon 1 --epsilon 5 --test test.npz --quiet",
    "unlearn": f"expunge unlearn {BOTH} --epsilon 1 --delta 1e-6 --out result --quiet",
    "verify": CHECKED,
    "audit": f"{CHECKED} --dossier result/private/dossier.json --deposit-after result/private/model.deposit "
    "--deposit model.deposit --forget forget.npz",
    "gone": "expunge member --deposit result/private/model.deposit --rows forget.npz",
    "after": "python -m examples.adult accuracy result/model.safetensors --test test.npz",
    "init": "expunge desk init desk --model result/model.safetensors --deposit result/private/model.deposit "
    "--epsilon 1 --delta 1e-6",
    "request": "expunge desk request desk --forget person.npz --reference case-17",
    "run": "expunge desk run desk --quiet",
    "status": "expunge desk status desk",
}
FAILING = {"gone": 1}  # the rows are not there any more, and that is its answer


def accuracy(model: Path, test: Path) -> str:
    with np.load(test) as rows:
        right = read_model(model)[0].predict(rows["X"]) == rows["y"]
    return f"{100.0 * float(np.mean(right)):.2f} % of {len(right):,} rows"


def run_programs(folder: Path, names: tuple[str, ...] = tuple(PROGRAMS)) -> dict[str, str]:
    """What each part of the Python program prints, one after the other, in this folder."""
    space: dict[str, Any] = {}
    printed = {}
    with contextlib.chdir(folder):
        for name in names:
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(PROGRAMS[name], f"<{name}>", "exec"), space)
            printed[name] = stream.getvalue().strip()
    return printed


def run_command(command: str, folder: Path) -> dict[str, Any]:
    words = command.split()
    program = [sys.executable, "-m", "expunge"] if words[0] == "expunge" else [sys.executable]
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [*program, *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return {"status": done.returncode, "output": (done.stdout + done.stderr).strip()}


def run_page(data: Path) -> dict[str, Any]:
    """What every step prints, in a folder of its own; the source is gone before the first command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / DATA).write_bytes((data / DATA).read_bytes())
        printed = run_programs(folder)
        (folder / DATA).unlink()
        outcomes = {}
        for key, command in COMMANDS.items():
            outcomes[key] = run_command(command, folder)
            print(f"$ {command}\n{outcomes[key]['output']}\n", flush=True)
    return {"programs": printed, "commands": outcomes}


def page_text(kept: dict[str, Any]) -> str:
    """The page: words of the template, the program, what it and the commands printed."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string(TEMPLATE.read_text()).render(
        programs={key: program.strip() for key, program in PROGRAMS.items()},
        told=kept["programs"],
        commands={key: _folded(command) for key, command in COMMANDS.items()},
        printed={key: _shortened(one["output"]) for key, one in kept["commands"].items()},
    )


def _shortened(text: str) -> str:
    """Without most of a long list of checks."""
    lines = text.splitlines()
    passed = [number for number, line in enumerate(lines) if line.strip().startswith("ok  ")]
    if len(passed) < MANY:
        return text
    return "\n".join([*lines[:3], "  [...]", *lines[passed[-3] :]])


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
    commands.add_parser("page").add_argument("--data", type=Path, required=True)
    commands.add_parser("text")
    asked = commands.add_parser("accuracy")
    asked.add_argument("model", type=Path)
    asked.add_argument("--test", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "accuracy":
        print(accuracy(options.model, options.test))
        return
    if options.command == "page":
        KEPT.write_text(json.dumps(run_page(options.data), indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page_text(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
