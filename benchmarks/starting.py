"""How long every command takes as a process of its own on a small table, beside `python -c pass` in the same run.

    python benchmarks/starting.py [--repeats 7] [--only verify] [--out results/]

Nearly all of it is starting: what a command imports. The files are made by commands too, and this process imports
nothing large before all is measured: a child's peak memory begins with what its parent held.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS, FORGET = 2000, 3
NOTHING = "python -c pass"
BUDGET = "--epsilon 1 --delta 1e-4"
LABEL = "--label label"
DESK = ("status", "history", "verify")
STATEMENT = "verify result/statement.json --model result/model.safetensors"
DOSSIER = f"{STATEMENT} --dossier result/private/dossier.json"
FORGOTTEN = f"--forget forget.csv {LABEL}"
DEPOSIT = "--model model.safetensors --deposit model.deposit"
MADE = (  # in order: what the commands below read
    f"train --data source.csv {LABEL} --loss logistic --free-bias --out model.safetensors --deposit model.deposit",
    f"train --data source.csv {LABEL} --out plain.safetensors",
    f"unlearn {DEPOSIT} {FORGOTTEN} {BUDGET} --out result",
    "keygen --out key",
    f"desk init desk --deposit model.deposit {BUDGET}",
    f"desk request desk --forget forget.csv {LABEL}",
    "desk run desk",
)
COMMANDS = {  # `NEW` is a name that no file has
    "--help": "--help",
    "unlearn --help": "unlearn --help",
    "a mistake in an option": f"unlearn --model model.safetensors {FORGOTTEN} {BUDGET} --out NEW --step none",
    "verify": STATEMENT,
    "verify --dossier": DOSSIER,
    "verify --deposit-after": f"{DOSSIER} --deposit-after result/private/model.deposit",
    "score": f"score --model model.safetensors --data test.csv {LABEL}",
    "predict": f"predict --model model.safetensors --data test.csv {LABEL} --out NEW.csv",
    "member": f"member --deposit model.deposit --rows forget.csv {LABEL}",
    "unlearn --deposit": f"unlearn {DEPOSIT} {FORGOTTEN} {BUDGET} --out NEW",
    "unlearn --surrogate": f"unlearn --model plain.safetensors --surrogate test.csv {FORGOTTEN} {BUDGET} "
    "--distance same --force --out NEW",
    "plan --deposit": f"plan {DEPOSIT} {FORGOTTEN} --delta 1e-4",
    "train": f"train --data source.csv {LABEL} --out NEW.safetensors",
    "keygen": "keygen --out NEW",
    "sign": "sign result --sign-key key --out NEW",
    "report": "report result --out NEW.html",
    **{f"desk {look}": f"desk {look} desk" for look in DESK},
}
MISTAKE = 2  # exit status


def write_tables(folder: Path) -> None:
    """Source, test rows and rows to forget: two numbers, a category, a label."""
    generator = random.Random(0)
    rows = []
    for _ in range(ROWS + ROWS // 4):
        age, income, job = generator.randint(18, 80), generator.gauss(30.0, 10.0), generator.choice("abcd")
        label = 0.03 * (age - 45) + 0.05 * (income - 30.0) + generator.gauss(0.0, 1.0) > 0.0
        rows.append((age, f"{income:.4f}", job, "yes" if label else "no"))
    for name, part in (("source", rows[:ROWS]), ("test", rows[ROWS:]), ("forget", rows[:FORGET])):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("age", "income", "job", "label"), *part])


def measured(
    arguments: list[str], folder: Path | str | None = None, repeats: int = 1, status: int = 0
) -> dict[str, Any]:
    """Wall time, processor time and peak memory of a Python process; the first run may read the disk: left out."""
    seconds, processor, peaks = [], [], []
    for turn in range(repeats + 1):
        line = [sys.executable, *(word.replace("NEW", f"new-{time.monotonic_ns()}") for word in arguments)]
        began = time.perf_counter()
        process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, ended, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(ended)
        if process.returncode != status:
            raise SystemExit(f"{' '.join(line)} ended with status {process.returncode}")
        if turn or not repeats:
            seconds.append(time.perf_counter() - began)
            processor.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss * 1024 / 1e6)
    return {
        "seconds_median": round(statistics.median(seconds), 3),
        "seconds_largest": round(max(seconds), 3),
        "processor_seconds_median": round(statistics.median(processor), 3),
        "peak_megabytes": round(max(peaks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="Commands whose name has this.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    results = {NOTHING: measured(["-c", "pass"], repeats=options.repeats)}
    results["import expunge"] = measured(["-c", "import expunge"], repeats=options.repeats)
    with tempfile.TemporaryDirectory() as made:
        write_tables(Path(made))
        for line in MADE:
            measured(["-m", "expunge", *line.split()], made, 0)
        for name, line in COMMANDS.items():
            if options.only in name:
                status = MISTAKE if name.startswith("a mistake") else 0
                results[name] = measured(["-m", "expunge", *line.split()], made, options.repeats, status)
    write(results, options.repeats, options.out)


def write(results: dict[str, dict[str, Any]], repeats: int, out: Path) -> None:
    from environment import environment, markdown
    from environment import write as write_result

    given, nothing = environment(), results[NOTHING]
    for numbers in results.values():
        numbers["over_nothing"] = round(numbers["processor_seconds_median"] / nothing["processor_seconds_median"], 1)
    columns = ("command", "median s", "largest s", "processor s", "peak MB", f"processor over `{NOTHING}`")
    rows = [(f"`{command}`", *numbers.values()) for command, numbers in results.items()]
    page = markdown(f"Start of a process, {repeats} runs each", columns, rows, given)
    write_result("starting", {"commands": results, "repeats": repeats, "environment": given}, page, out)


if __name__ == "__main__":
    main()
