"""Two hundred people of Adult through one desk with a deposit, in twenty batches of ten, beside refits without them.

    python -m examples.deposit_desk --data FOLDER [--out examples/deposit_desk.md] [--draws 10]

The model and its preparation are those of examples/deposit_tables.py. Ten people ask, `expunge desk run` serves
them, and so on. After each batch scikit-learn is refitted without everybody who has left: the refit must lie inside the
region. Every file of the desk's folder is then searched for what was forgotten: values in float64, float32 and with six
decimals, the hashes under the deposit's key, and plain SHA-256 digests. The desk's own keyed digests may be in its
ledger, and nowhere else.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from examples.deposit_tables import DELTA, HELD_OUT, adult_rows, away
from expunge.deposit.file import Deposit, read_deposit
from expunge.deposit.region import smallest_region
from expunge.desk import Desk, Policy, accept, create_desk, models, open_desk, requests, run, status, verify_desk
from expunge.model import read_model
from expunge.rows.hashes import hash_rows
from expunge.runtime.arrays import to_numpy
from expunge.sklearn import deposit

BATCHES, PEOPLE = 20, 10
PLANNED = 60
EPSILON, LARGE = 1.0, 5.0  # of each model; the second for one desk, to see where it ends
RARE = 0.01  # of the rows have such a value, at most
Rows = tuple[Any, Any]
Runner = Callable[[Desk], dict[str, Any]]


# Runs ---------------------------------------------------------------------------------------------------------------


def by_command(desk: Desk) -> dict[str, Any]:
    """`expunge desk run` in a process of its own: seconds of a processor, and the most memory it had."""
    command = [sys.executable, "-m", "expunge", "desk", "run", str(desk.layout.folder), "--quiet", "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode not in (0, 3):
        raise RuntimeError(f"expunge desk run ended with {process.returncode}")
    return {"seconds": used.ru_utime + used.ru_stime, "megabytes": used.ru_maxrss / 1024.0}


def by_call(desk: Desk) -> dict[str, Any]:
    """The same in this process, which is quicker, and not measured."""
    run(desk)
    return {}


def updated(kept: Deposit) -> Any:
    """The weights before noise of the last model, which follow from the deposit that it left."""
    result = smallest_region(kept.problem)
    assert result is not None
    return to_numpy(kept.anchor + result.update)


def refit_without(rows: Rows, gone: list[int]) -> Any:
    """What the user would do: the same C, the same preparation, to the optimum."""
    left = np.delete(np.arange(len(rows[0])), gone)
    return LogisticRegression(solver="newton-cholesky", tol=1e-10, max_iter=1000).fit(rows[0][left], rows[1][left])


def through(desk: Desk, rows: Rows, test: Rows, people: Any, runner: Runner) -> Iterator[dict[str, Any]]:
    """Batch after batch of these people: what each was asked, measured, and compared with."""
    key = read_deposit(desk.layout.state_of(0)).key
    by_request: dict[int, int] = {}
    for number, batch in enumerate(np.asarray(people), start=1):
        for person in batch:
            one = rows[0][[person]], rows[1][[person]]
            by_request[accept(desk, *one, f"case {person}").request.id] = int(person)
        seen = searched(desk, marks_of(rows, [int(person) for person in batch], key, desk.key))
        ran = runner(desk)
        gone = [by_request[one.id] for one in requests(desk, "done")]
        kept, facts, now = read_deposit(next(desk.layout.states.iterdir())), models(desk)[-1], status(desk)
        model, _ = read_model(desk.layout.published_model(facts["model"]) / "model.safetensors")
        refit = refit_without(rows, gone)
        verify_desk(desk)
        yield ran | {
            "forgotten": len(gone),
            "waiting": now.pending,
            "models": now.models,
            "status": facts["status"],
            "radius": facts["total"],
            "noise_radius": facts["sigma"] * facts["mu"],
            "true": away(kept, updated(kept), refit),
            "accuracy": float(np.mean(model.predict(test[0]) == test[1])),
            "refit": float(refit.score(*test)),
            "together": now.epsilon,
            "reach": now.reach,
            "rows_left": now.rows_left,
            "retrain": now.retrain,
            "folder_bytes": sum(path.stat().st_size for path in files_of(desk)),
            "found_while_pending": len(seen),
            "found_after": searched(
                desk, marks_of(rows, gone if number == len(people) else gone[-PEOPLE:], key, desk.key)
            ),
        }


# What is left of a row ----------------------------------------------------------------------------------------------


def marks_of(rows: Rows, people: list[int], key: bytes, own: bytes) -> dict[bytes, str]:
    """What would betray that a row is there, by kind: each pattern with whose and what it is.

    Two neighbouring values, one of them rare, are enough to recognise a row by, unless both are 0 or 1, which any file
    may have. `own` is the desk's key, whose digests the ledger has by design.
    """
    features, labels = np.asarray(rows[0])[people], np.asarray(rows[1])[people]
    marks: dict[bytes, str] = {}
    for row, label in zip(features, labels, strict=True):
        rare = np.mean(np.asarray(rows[0]) == row, axis=0) < RARE
        pairs = [
            pair
            for pair, one, other in zip(itertools.pairwise(row), rare, rare[1:], strict=False)
            if (one or other) and not set(pair) <= {0.0, 1.0}
        ]
        for kind in (np.float64, np.float32):
            marks |= {np.array(pair, kind).tobytes(): f"{np.dtype(kind)} values" for pair in pairs}
            for text in (row.astype(kind).tobytes(), row.astype(kind).tobytes() + np.int64(label).tobytes()):
                marks |= both(hashlib.sha256(text).digest(), "SHA-256")
        marks |= {f"{one:.6f},{other:.6f}".encode(): "six decimals" for one, other in pairs}
        line = ",".join(f"{value:.6f}" for value in row).encode()
        marks |= both(hashlib.sha256(line).digest(), "SHA-256")
    for secret, kind in ((key, "hash under the deposit's key"), (own, "hash under the desk's key")):
        for digests in hash_rows(secret, features, labels).digests:
            for digest in digests:
                marks |= both(digest.tobytes(), kind)
    return marks


def both(digest: bytes, kind: str) -> dict[bytes, str]:
    return {digest: kind, digest.hex().encode(): kind}


def files_of(desk: Desk) -> list[Path]:
    return sorted(path for path in desk.layout.folder.rglob("*") if path.is_file())


def searched(desk: Desk, marks: dict[bytes, str]) -> list[str]:
    """Where marks are found, as 'file: kind', but for the desk's own digests in its ledger."""
    places = set()
    for path in files_of(desk):
        name = str(path.relative_to(desk.layout.folder))
        for mark in contained(path.read_bytes(), marks):
            if not (marks[mark] == "hash under the desk's key" and name.startswith("ledger.sqlite")):
                places.add(f"{name}: {marks[mark]}")
    return sorted(places)


def contained(content: bytes, marks: Iterable[bytes]) -> set[bytes]:
    """Which of these patterns, of eight bytes or more, are in the content: by their first eight bytes, then by all."""
    by_start: dict[int, list[bytes]] = {}
    for mark in marks:
        by_start.setdefault(int.from_bytes(mark[:8], "little"), []).append(mark)
    starts = np.array(sorted(by_start), dtype="<u8")
    seen = set()
    for shift in range(min(8, max(0, len(content) - 7))):
        words = np.frombuffer(content, "<u8", count=(len(content) - shift) // 8, offset=shift)
        for place in np.flatnonzero(np.isin(words, starts)):
            at = shift + 8 * int(place)
            seen |= {mark for mark in by_start[int(words[place])] if content[at : at + len(mark)] == mark}
    return seen


# The table ----------------------------------------------------------------------------------------------------------


def one_desk(rows: Rows, test: Rows, kept: Deposit, epsilon: float, seed: int, runner: Runner) -> dict[str, Any]:
    """A desk of its own for one draw of people."""
    people = np.random.default_rng(seed).permutation(len(rows[0]))[: BATCHES * PEOPLE].reshape(BATCHES, PEOPLE)
    policy = Policy(epsilon=epsilon, delta=DELTA, distance="deposit", planned=PLANNED)
    with tempfile.TemporaryDirectory() as folder:
        desk = create_desk(Path(folder) / "desk", None, None, policy, deposit=kept)
        batches = []
        for batch in through(open_desk(desk.layout.folder), rows, test, people, runner):
            if batches and batch["models"] == batches[-1]["models"]:
                break  # nothing more can be published
            batches.append(batch)
            print(json.dumps({"epsilon": epsilon, "seed": seed} | batch), flush=True)
    ended = batch["retrain"] if batch["models"] == batches[-1]["models"] else None
    return {"epsilon": epsilon, "seed": seed, "noise": desk.policy.noise, "batches": batches, "ended": ended}


def markdown(results: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The page."""
    every = [batch for result in results for batch in result["batches"]]
    assert all(batch["status"] == "proven" for batch in every)
    whole = [result for result in results if not result["ended"]]
    draws, epsilons = len({result["seed"] for result in results}), sorted({result["epsilon"] for result in whole})
    pending = min(batch["found_while_pending"] for batch in every)
    after = ", ".join(sorted({place for batch in every for place in batch["found_after"]}))
    lines = [
        "# Two hundred people through one desk with a deposit",
        "",
        f"Written by `examples/deposit_desk.py`. scikit-learn's `LogisticRegression()` on Adult ({about['rows']:,} "
        f"rows of {about['features']} prepared features, {HELD_OUT:,} held out), a deposit, a desk: {BATCHES} times "
        f"{PEOPLE} random people ask and `expunge desk run` serves them. {draws} draws of people, each with a "
        f"deposit and a desk of its own; delta is {DELTA:g}. Every model is `proven` and has the "
        "epsilon of the first column; the next says what all of them have together. `gap` is the accuracy of the last "
        "model less that of scikit-learn refitted without everybody who has left, in points.",
        "",
        "| epsilon of each model | of all together | all 200 served | served in the others | refits outside a region | "
        "smallest radius/true | gap at the end, mean | largest | draws within 0.2 points |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row_of(whole, epsilon) for epsilon in epsilons),
        "",
        *costs(whole),
        "",
        f"While ten requests were pending, the search found them after each of {len(every)} times they were asked "
        f"(in {pending} places or more). After each run it was made for those ten, after the last for everybody who "
        f"had left: it found {after or 'nothing, in no file'}.",
        "",
        *(line for result in results if result["ended"] for line in ended(result)),
        "## One desk",
        "",
        *one_table(results[0]),
    ]
    return "\n".join(lines) + "\n"


def costs(results: list[dict[str, Any]]) -> list[str]:
    """Time and memory of the desks that were run by the command."""
    timed = [result["batches"] for result in results if "seconds" in result["batches"][0]]
    seconds, megabytes = ([[batch[name] for batch in one] for one in timed] for name in ("seconds", "megabytes"))
    slower, larger = (100 * float(np.median([trend(one) for one in each])) for each in (seconds, megabytes))
    return [
        f"A run, process and all, took {np.median(seconds):.1f} s of one processor (median) and at most "
        f"{np.max(megabytes):.0f} MB. From the first five batches to the last five the time changed by {slower:+.0f} % "
        f"and the memory by {larger:+.1f} % (the first draw)."
    ]


def ended(result: dict[str, Any]) -> list[str]:
    """Of a desk that came to its end before all had asked."""
    models, together = result["batches"][-1]["models"], result["batches"][-1]["together"]
    return [
        f"At epsilon {result['epsilon']:g} a desk ended after {models} models, with epsilon {together:.3g} together: "
        f"{result['ended']}",
        "",
    ]


def trend(values: list[float]) -> float:
    """How much larger the last five are than the first five, by their medians."""
    return float(np.median(values[-5:]) / np.median(values[:5]) - 1.0)


def row_of(results: list[dict[str, Any]], epsilon: float) -> str:
    mine = [result["batches"] for result in results if result["epsilon"] == epsilon]
    ends = [batches[-1] for batches in mine]
    rest = [str(end["forgotten"]) for end in ends if end["waiting"]]
    gaps = [100 * (end["accuracy"] - end["refit"]) for end in ends]
    ratios = [batch["radius"] / batch["true"] for batches in mine for batch in batches]
    cells = [
        f"{epsilon:g}", f"{max(end['together'] for end in ends):.3g}", f"{len(ends) - len(rest)} of {len(ends)}",
        ", ".join(rest) or "-", f"{sum(ratio < 1.0 for ratio in ratios)} of {len(ratios)}", f"{min(ratios):.1f}",
        f"{np.mean(gaps):+.2f}", f"{max(map(abs, gaps)):.2f}", f"{sum(abs(gap) <= 0.2 for gap in gaps)} of {len(gaps)}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def one_table(result: dict[str, Any]) -> list[str]:
    """Batch by batch."""
    lines = [
        f"Epsilon {result['epsilon']:g}, the first draw; the noise of every model is {result['noise']:g}. `reach` and "
        "`more rows` are what `expunge desk status` says.",
        "",
        "| forgotten | radius needed | true distance | noise for | reach | more rows | epsilon together | accuracy "
        "| refit | seconds | MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for batch in result["batches"]:
        cells = [
            str(batch["forgotten"]), f"{batch['radius']:.2g}", f"{batch['true']:.2g}", f"{batch['noise_radius']:.2g}",
            f"{100 * batch['reach']:.0f} %", str(batch["rows_left"]), f"{batch['together']:.3g}",
            f"{100 * batch['accuracy']:.2f} %", f"{100 * batch['refit']:.2f} %", f"{batch['seconds']:.1f}",
            f"{batch['megabytes']:.0f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, help="folder with adult.data.csv.gz; without it only the page is written anew"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    parser.add_argument("--draws", type=int, default=10, help="draws of 200 people")
    options = parser.parse_args()
    stored = options.out.with_suffix(".json")
    if options.data is not None:
        features, labels = adult_rows(options.data)
        order = np.random.default_rng(0).permutation(len(features))
        test, source = order[:HELD_OUT], order[HELD_OUT:]
        rows, held_out = (features[source], labels[source]), (features[test], labels[test])
        model = LogisticRegression(max_iter=1000).fit(*rows)
        about, results = {"rows": len(source), "features": int(features.shape[1])}, []
        for seed in range(options.draws):
            results += [
                one_desk(rows, held_out, deposit(model, *rows), epsilon, seed, by_call if seed else by_command)
                for epsilon in ([EPSILON] if seed else [EPSILON, LARGE])
            ]
            stored.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    kept = json.loads(stored.read_text())
    options.out.write_text(markdown(kept["results"], kept["about"]))


if __name__ == "__main__":
    main()
