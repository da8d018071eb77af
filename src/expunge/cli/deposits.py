"""What commands that make a deposit share: the work, and what is said of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from expunge.cli.console import REFUSED, out

USES = (
    "private, for you alone (mode 0600): it holds no row, but says much of the source, most of all of rare rows; "
    "docs/deposit.md says what",
    "it may be used for: expunge member (is this row in the model?), expunge unlearn --deposit and expunge desk init "
    "--deposit (forget rows)",
    "a deletion leaves a new deposit, and the one before it is to be destroyed; deleting the last one is the last "
    "deletion, for nothing can be forgotten without it",
)
SOURCE_CAN_GO = "the source can go now"
SERVES_NOBODY = (
    "this deposit serves nobody: {can_leave} of {people} random people could leave. Do NOT delete the source yet: "
    "train "
    "with --loss logistic --free-bias (two classes), with --loss ridge, or with a larger --l2, and keep a deposit "
    "of that"
)


def require_deposit_name(target: Path, option: str) -> None:
    """Refuse a name that a private file could be handed out by."""
    from expunge.errors import FileError

    if target.suffix.lower() == ".safetensors":
        raise FileError(
            f"{option} {target}",
            "so are models called, which are handed out; a deposit is private",
            f"Name it for example {target.with_suffix('.deposit').name}.",
        )


def kept_with_outlook(model: Any, source: Any, declared: Any, execution: Any) -> tuple[Any, dict[str, Any]]:
    """A deposit and what is known of it: what it took, and what forgetting would cost."""
    from expunge.deposit.keeping import keep

    return with_outlook(lambda: keep(model, source, declared=declared, execution=execution), execution.progress)


def freed_with_outlook(model: Any, source: Any, execution: Any) -> tuple[Any, tuple[Any, dict[str, Any]]]:
    """The model with a bias that is not regularised, in the type it has, and with it the same of its deposit."""
    from expunge.deposit.keeping import keep

    made: list[Any] = []

    def keeping() -> Any:
        made.append(keep(model, source, execution=execution, free_bias=True))
        return made[0]

    known = with_outlook(keeping, execution.progress)
    return made[0].model(model.weight.dtype), known


def with_outlook(keeping: Callable[[], Any], progress: Any) -> tuple[Any, dict[str, Any]]:
    """The same of any way to keep one."""
    from expunge.deposit.outlook import outlook

    started = time.monotonic()
    kept = keeping()
    expected = outlook(kept.deposit, kept.rehearsed, kept.rows, progress=progress)
    seconds = time.monotonic() - started
    return kept.deposit, {"seconds": round(seconds, 3), "outlook": expected.to_json()}


def write_deposit(target: Path, deposit: Any, beside: tuple[Path, bytes] | None = None) -> dict[str, Any]:
    """The file, which must not be there yet and which nobody but its owner can read; what it is.

    `beside` is a public file that comes with it, a model or a figure: both or neither.
    """
    from expunge.rows.output import write_pair, write_private
    from expunge.runtime.durable import PRIVATE, PUBLIC

    content = deposit.to_parts()
    if beside is None:
        write_private(target, content)
    else:
        write_pair((*beside, PUBLIC), (target, content, PRIVATE))
    numbers = deposit.numbers
    return {
        "deposit": str(target),
        "bytes": sum(map(len, content)),
        "n_rows": numbers.n_rows,
        "class_counts": list(numbers.class_counts),
        "levels": list(deposit.levels),
    }


def print_deposit(target: Path, deposit: Any, made: dict[str, Any]) -> None:
    """The same on the screen."""
    record, weights = deposit.record, deposit.model
    wide = f"{weights.n_features:,} {'tangent weights' if deposit.of_network else 'features'}"
    shape = f"{deposit.numbers.n_rows:,} rows, {wide}, {len(record.classes)} classes"
    out.print(f"deposit of {record.loss} on {shape}: {made['bytes']:,} bytes, made in {made['seconds']:.1f} s")
    print_outlook(made["outlook"])
    out.print(f"written: {target}", markup=False)
    for sentence in USES:
        out.print(f"  {sentence}", markup=False)
    print_verdict(made["outlook"]["verdict"])
    print_traces(made["outlook"]["traces"])


def print_verdict(verdict: dict[str, Any]) -> None:
    """Whom the deposit serves, and whether the source can go."""
    if not verdict["serves"]:
        out.print(SERVES_NOBODY.format(**verdict), markup=False, style="bold")
        return
    people, leave, unnoticed = verdict["people"], verdict["can_leave"], verdict["unnoticed"]
    out.print(
        f"of {people} random people {leave} ({100 * leave / people:.0f} %) can leave at epsilon "
        f"{verdict['epsilon']:g}, "
        f"{unnoticed} of them with noise that moves no output by more than a hundredth; {SOURCE_CAN_GO}",
        markup=False,
        style="bold",
    )


def print_traces(traces: dict[str, Any] | None) -> None:
    """What the deposit will still tell of somebody who has left it."""
    if traces is not None:
        out.print(
            "of a row that has left it: somebody with this file and a list of whole rows ranks the right one above "
            f"{100 * traces['ordinary']:.0f} % of the others, one row in twenty above {100 * traces['unusual']:.0f} % "
            "(50 % is guessing)",
            markup=False,
        )


def exit_status(outlook: dict[str, Any]) -> dict[str, int]:
    """Refused, where fewer than half of random people could leave: written it is, but nobody should rely on it."""
    return {} if outlook["verdict"]["serves"] else {"exit_status": REFUSED}


def print_outlook(expected: dict[str, Any]) -> None:
    """What forgetting random rows of the source would cost."""
    epsilons = [each["epsilon"] for each in expected["affordable"]]
    title = (
        "Points of accuracy lost when random rows are forgotten, at once / one at a time (delta "
        f"{expected['delta']:.3g}, accuracy on the source {100 * expected['accuracy']:.1f} %)"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("rows", "refused", *(f"epsilon {epsilon:g}" for epsilon in epsilons)):
        table.add_column(heading, justify="right")
    for size in expected["sizes"]:
        mine = {each["epsilon"]: each for each in expected["forecasts"] if each["rows"] == size["rows"]}
        cells = [f"{_points(mine[e]['at_once'])} / {_points(mine[e]['one_at_a_time'])}" for e in epsilons]
        table.add_row(f"{size['rows']:,}", f"{size['refused']} of {size['groups']}", *cells)
    out.print(table)
    out.print("  rehearsed on the source; one at a time: a model for each row, all models together at this epsilon")
    out.print("  refused: random groups for which no bound is finite; -: none could be forgotten at this epsilon")
    for each in expected["affordable"]:
        out.print(
            f"epsilon {each['epsilon']:g}: {each['at_once']:,} rows at once, {each['one_at_a_time']:,} one at a time, "
            "before a point of accuracy is lost (largest of the sizes tried)"
        )


def _points(lost: float | None) -> str:
    return "-" if lost is None else f"{round(100 * lost, 2) + 0.0:.2f}"


def figure_of(expected: dict[str, Any]) -> bytes:
    """The figure of it."""
    from expunge.report.figures import forgettable

    return forgettable(expected["forecasts"], expected["accuracy"])
