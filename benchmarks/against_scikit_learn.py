"""Expunge beside scikit-learn at the same work, in one run: processor seconds and their ratio.

    python benchmarks/against_scikit_learn.py [deletion] [training] [--data FOLDER]

- deletion: ten rows leave a deposit in memory (rows looked up, step, region, noise, certificate), beside refits of
  LogisticRegression on all retained rows: lbfgs and newton-cholesky at 1e-8, cold and from the weights before, and
  lbfgs at its default tolerance. 48, 109 and 500 weights for two classes, 5,130 for ten; with --data 513 and 5,130
  on CIFAR-10's embeddings, where solvers need other numbers of iterations than on synthetic rows.
- training: to the optimum, beside newton-cg to the same norm of the gradient.

Processor time counts all threads, and what else runs on the machine does not add to it; the shortest of some runs is
taken. Each line replaces that of its name in results/against_scikit_learn.json, and the page is made from that file.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import sklearn
from environment import RESULTS, environment, markdown, write
from sklearn.linear_model import LogisticRegression

import expunge
import expunge.sklearn
from expunge.door import ask
from expunge.mechanism import certify, measure
from expunge.request.promise import Promise

NAME = "against_scikit_learn"
PROMISE = {"epsilon": 1.0, "delta": 1e-6, "force": True}
FORGET, ROWS = 10, 50_000
ONLY = ""
Data = tuple[Any, np.ndarray]


def drawn(rows: int, features: int, classes: int = 2, seed: int = 0) -> Data:
    """Standardised features that go together as a table's do, and labels that a linear model explains in part.

    Eigenvalues of their covariance fall like 1/j^2.
    """
    generator = np.random.default_rng(seed)
    turned = np.linalg.qr(generator.standard_normal((features, features)))[0]
    values = generator.standard_normal((rows, features)) @ (turned / np.arange(1.0, features + 1.0)[:, None])
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    mixed = values @ (generator.standard_normal((features, classes)) / np.sqrt(features))
    return values, (2.0 * mixed + generator.gumbel(size=mixed.shape)).argmax(axis=1)


def one_hot(rows: int, seed: int = 0) -> Data:
    """A table like a census: six numbers, the rest categories of which a few are frequent; 108 columns."""
    generator = np.random.default_rng(seed)
    values, labels = drawn(rows, 6, seed=seed)
    parts = [values]
    for levels in (9, 16, 7, 15, 6, 5, 2, 42):
        shares = 1.0 / np.arange(1.0, levels + 1.0)
        parts.append(np.eye(levels)[generator.choice(levels, rows, p=shares / shares.sum())])
    return np.hstack(parts), labels


LONG = 20.0  # seconds: what takes so long is run once


def took(work: Callable[..., Any], *given: Any, repeats: int = 3, **more: Any) -> tuple[float, Any]:
    """Processor seconds of the shortest run, and what the last one gave."""
    times: list[float] = []
    result = None
    while len(times) < repeats and not any(each > LONG for each in times):
        began = time.process_time()
        result = work(*given, **more)
        times.append(time.process_time() - began)
    return min(times), result


def line(work: str, ours: float, beside: dict[str, float], **more: Any) -> dict[str, Any]:
    made = {"work": work, "ours": ours, "beside": beside, **more}
    print(json.dumps(made), flush=True)
    return made


def fitted(data: Data, **settings: Any) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegression(**{"max_iter": 5_000, **settings}).fit(*data)


def deposit_of(estimator: Any, data: Data, *, rehearsed: bool = True) -> Any:
    """`rehearsed`: with what single rows need to leave, of one scale of the anchor's noise; no deletion needs that."""
    if not rehearsed:
        with patch("expunge.deposit.make.try_people", lambda *_: ()):
            return deposit_of(estimator, data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return expunge.sklearn.deposit(estimator, *data, seed=0)


def delete(deposit: Any, forget: Data) -> Any:
    asked = ask(None, forget, None, Promise(**PROMISE), deposit=deposit)
    return certify(asked, measure(asked))


def deletions(data_folder: Path | None) -> Iterator[dict[str, Any]]:
    cases: dict[str, Callable[[], Data]] = {
        "48 weights": lambda: drawn(ROWS, 47),
        "109 weights, one-hot": lambda: one_hot(ROWS),
        "500 weights": lambda: drawn(ROWS, 499),
    }
    if data_folder is None:
        cases["5,130 weights"] = lambda: drawn(ROWS, 512, 10)
    else:
        cases["513 weights, CIFAR-10, two classes"] = lambda: embeddings(data_folder, 2)
        cases["5,130 weights, CIFAR-10"] = lambda: embeddings(data_folder, 10)
    for name, make in cases.items():
        if ONLY not in name:
            continue
        data = make()
        wide = len(np.unique(data[1])) > 2
        before = fitted(data, tol=1e-8 if not wide else 1e-4)
        deposit = deposit_of(before, data, rehearsed=not wide)
        forget = (data[0][:FORGET], data[1][:FORGET])
        retained = (data[0][FORGET:], data[1][FORGET:])
        ours, _ = took(delete, deposit, forget, repeats=2 if wide else 5)
        refits: dict[str, dict[str, Any]] = {"lbfgs, default tolerance": {}}
        if not wide:
            refits |= {f"{solver}, 1e-8": {"solver": solver, "tol": 1e-8} for solver in ("lbfgs", "newton-cholesky")}
        beside = {kind: took(fitted, retained, repeats=2, **how)[0] for kind, how in refits.items()}
        for kind, how in refits.items():
            if how:
                beside[f"{kind}, warm"] = took(warm, before, retained, repeats=2, **how)[0]
        yield line(f"deletion of {FORGET}, n = {len(data[1]):,}, {name}", ours, beside)
        del deposit  # several matrices of its weights' square


def warm(before: LogisticRegression, data: Data, **settings: Any) -> LogisticRegression:
    again = LogisticRegression(warm_start=True, max_iter=5_000, **settings)
    again.coef_, again.intercept_, again.classes_ = before.coef_.copy(), before.intercept_.copy(), before.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return again.fit(*data)


def embeddings(folder: Path, classes: int) -> Data:
    """CIFAR-10's embeddings, each of length 1."""
    with np.load(folder / "cifar10-resnet50-pca512.npz") as arrays:
        features, labels = arrays["X"].astype(np.float64), arrays["y"]
    chosen = labels < classes
    return features[chosen] / np.linalg.norm(features[chosen], axis=1, keepdims=True), labels[chosen]


def gradient_norm(weights: np.ndarray, data: Data, l2: float) -> float:
    """Of softmax regression without a bias."""
    outputs = data[0] @ weights.T
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(shares)), data[1]] -= 1.0
    return float(np.linalg.norm(shares.T @ data[0] / len(shares) + l2 * weights))


def training(data_folder: Path | None) -> Iterator[dict[str, Any]]:
    data = drawn(ROWS, 512, 10) if data_folder is None else embeddings(data_folder, 10)
    longest = float(np.linalg.norm(data[0], axis=1).max())
    data, l2 = (data[0] / longest, data[1]), 1e-3
    ours, model = took(expunge.train, *data, repeats=1, l2=l2, max_norm=1.0)
    reached = gradient_norm(np.asarray(model.weight, dtype=np.float64), data, l2)
    beside = {}
    for tolerance in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12):  # the first that comes as near
        how = {"C": 1.0 / (l2 * ROWS), "fit_intercept": False, "solver": "newton-cg", "tol": tolerance}
        seconds, other = took(fitted, data, repeats=1, **how)
        there = gradient_norm(other.coef_, data, l2)
        beside[f"newton-cg, {tolerance:g} (gradient {there:.1e})"] = seconds
        if there <= reached:
            break
    yield line(f"training to a gradient of {reached:.1e}, {ROWS:,} x 512 x 10", ours, beside)


PARTS = {
    "deletion": deletions,
    "training": training,
}


def page_of(result: dict[str, Any]) -> str:
    lines = []
    for part in PARTS:
        for each in result.get(part, []):
            first = True
            for name, seconds in each["beside"].items():
                work = (each["work"], f"{each['ours']:.3f}") if first else ("", "")
                lines.append((*work, f"{name} {seconds:.3f}", f"{each['ours'] / seconds:.2f}"))
                first = False
    columns = ("work", "Expunge, processor s", "beside it, processor s", "ratio")
    return markdown("Beside scikit-learn", columns, lines, result["environment"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--only", default="", help="deletions whose name has this; other lines are kept")
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10's embeddings")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    globals()["ONLY"] = given.only
    known = given.out / f"{NAME}.json"
    result: dict[str, Any] = json.loads(known.read_text()) if known.exists() else {}
    for part in given.parts:
        result["environment"] = environment() | {"scikit-learn": sklearn.__version__}
        lines = {each["work"]: each for each in result.get(part, [])}
        for each in PARTS[part](given.data):
            lines[each["work"]] = each
            result[part] = list(lines.values())
            write(NAME, result, out=given.out)
        write(NAME, result, page_of(result), given.out)


if __name__ == "__main__":
    main()
