"""While the source exists: `expunge train` and `expunge deposit`; and looking: `member`, `predict`, `score`."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expunge.cli.console import REFUSED, out, percent, progress
from expunge.cli.files import LABEL, open_rows, private_name, read_prepared, read_rows, require_kinds
from expunge.cli.options import command, options_of, output_option
from expunge.request.promise import Declared, Execution
from expunge.runtime.values import option

MOST_CLASSES = {"train": 20, "score": 30}  # that are shown
MOST_ROWS = 50
PRECISIONS = ("to the last digit", "as a copy in float32", "as a copy with six decimals")
USES = (
    "private, for you alone (mode 0600): it holds no row, but says much of the source, most of all of rare rows; "
    "docs/deposit.md says what",
    "it may be used for: expunge member (is this row in the model?), expunge unlearn --deposit and expunge desk init "
    "--deposit (forget rows)",
    "a deletion leaves a new deposit, and the one before it is to be destroyed; deleting the last one is the last "
    "deletion, for nothing can be forgotten without it",
)
CAN_GO = (
    "of {people} random people {can_leave} ({share}) can leave at epsilon {epsilon:g}, {unnoticed} of them with noise "
    "that moves no output by more than a hundredth; the source can go now"
)
SERVES_NOBODY = (
    "this deposit serves nobody: {can_leave} of {people} random people could leave. Do NOT delete the source yet: "
    "train with --loss logistic --free-bias (two classes), with --loss ridge, or with a larger --l2, and keep a "
    "deposit of that"
)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table is read and prepared."""

    label: str | None = option("Label column of a table (default: y, or label).", section="Source")
    columns: tuple[str, ...] | None = option(
        "Feature columns of a table, with commas between (default: all but the label's)."
    )
    header: bool = option(
        "The first line of the table is data. Columns are then called by their place, from 0, or as --names says.",
        names=("--no-header",),
        text=operator.not_,
    )
    names: tuple[str, ...] | None = option(
        "What the columns of a table without a header are called, with commas between."
    )
    prepare: str = option(
        "table: numbers standardised and empty cells filled with the median, categories one-hot encoded, dates and "
        "row numbers left out. none: numbers as they are. auto: table, unless every cell is a number and --max-norm "
        "is given.",
        "auto",
        section="Preparation of a table",
    )
    prepare_from: Path | None = option(
        "Learn the preparation from this table, which has no row of the source in it: then it knows nothing of those "
        "who will be forgotten, which is proven where the table is public."
    )
    preparation: str = option(
        "coarse: what is learnt from the source is rounded by chance and has no value of a few rows: hardly anything "
        "shows whether somebody was there; a practice and no proof. exact: a forgotten row can be worked out from it, "
        "and certificates say so.",
        "coarse",
    )
    rare: int = option("Values of a category that fewer rows have are one value, together with unknown ones.", 10)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is minimised, and how."""

    l2: float | None = option(
        "lambda of (lambda/2)||w||^2 beside the mean loss. Larger makes later certificates stronger. Default, of a "
        "table that is prepared: as scikit-learn's C = 1.",
        section="Model",
    )
    max_norm: float | None = option(
        "Rows longer than this are scaled down to it. Choose it before looking at the rows: a bound read off the data "
        "would itself tell about a person. Default, of a table that is prepared: 3 sqrt(features); with --deposit the "
        "longest row's length, rounded up to a power of two."
    )
    loss: str = option(
        "softmax, ridge or one-vs-rest; or logistic: two classes and one weight vector, half the weights of softmax "
        "and the same model at half its l2.",
        "softmax",
    )
    bias: bool | None = option(
        "Add a constant feature 1, regularised like the rest. Default: for a table that is prepared.",
        names=("--bias/--no-bias",),
    )
    store: str = option("What the weights are stored in: float64 or float32.", "float64")
    force: bool = option("Train although --max-norm scales more than half of the rows down to one length.")
    dtype: str = option("What rows are kept in while computing: float64 or float32.", "float64", section="Speed")
    device: str = option("Any torch device.", "cpu")


@command(quiet=True)
def train(
    data: Path = option(
        "The source: a table (.csv, .tsv, also .gz, .parquet), or .npz or .safetensors with X and y.", section="Source"
    ),
    reading: dict[str, Any] = options_of(TableOptions, build=dict),
    fit: dict[str, Any] = options_of(TrainOptions, build=dict),
    free_bias: bool = option(
        "Add a bias that is not regularised, as scikit-learn's intercept; only with --deposit, since without one it "
        "has no bound.",
        section="Model",
    ),
    target: Path = output_option("The model to write, a .safetensors file that does not exist yet.", ".safetensors"),
    deposit: Path | None = option(
        "Also keep a deposit of the source in this new file, which is private: what later deletions need of it; see "
        "expunge deposit.",
        new=(),
        text=private_name,
    ),
) -> Any:
    """Train a linear classifier to its optimum while the source still exists.

    Writes the weights with a training record: the number of rows, class counts, l2, loss, norm bound, and how far from
    the optimum training stopped. This record is all that is kept of the source, and what makes later certificates
    strong; with --deposit what makes them proven is kept too.

    A table is prepared (numbers standardised, categories one-hot encoded); every decision is printed and kept in the
    record, and later commands prepare their files by it, column by column. It is handed out with the model, and outside
    of what certificates prove: so it is coarse, or learnt from other rows altogether (--prepare-from).

    \b
    expunge train --data credit.csv --label default --out model.safetensors
    expunge train --data credit.csv --label default --out model.safetensors --deposit model.deposit
    expunge train --data source.npz --l2 1e-3 --max-norm 1 --out model.safetensors
    """
    from expunge.deposit.make import make_deposit
    from expunge.errors import OptionError
    from expunge.evaluate.metrics import describe_fit
    from expunge.rows.files import read_source
    from expunge.rows.output import write_file
    from expunge.train import LARGEST_ROW
    from expunge.train import train as run

    if free_bias and (deposit is None or fit["bias"] is False):
        raise OptionError(
            "--free-bias without --deposit, or with --no-bias",
            "without a deposit a bias that is not regularised has no bound: nothing could be forgotten later",
            "Give --deposit, for example model.deposit, and no --no-bias; or train with --bias.",
        )
    if free_bias:
        fit["bias"] = True
    source = read_source(data, **reading, bounded=fit["max_norm"] is not None)
    rows, prepared = source.rows, source.preparation
    if source.decisions:
        out.bold("preparation of the table")
        out.listing(source.decisions, "  ")
    if fit["max_norm"] is None and deposit is not None and prepared is not None:
        fit["max_norm"] = LARGEST_ROW
    with progress() as advance:
        model = run(
            rows.features,
            rows.labels,
            **fit,
            prepare="none" if prepared is None else prepared,
            learnt=source.learnt,
            encoder=rows.encoder,
            encoder_trained=rows.encoder_trained,
            feature_names=rows.feature_names,
            progress=advance,
        )
        if deposit is not None:
            execution = Execution(device=fit["device"], progress=advance)
            new, known = with_outlook(
                lambda: make_deposit(model, rows, execution=execution, free_bias=free_bias), advance
            )
            if free_bias:
                model = new.model(model.weight.dtype)
    told: dict[str, Any] = {}
    if deposit is None:
        write_file(target, model.to_bytes())
    else:
        told["deposit"] = write_deposit(deposit, new.deposit, known, (target, model.to_bytes()))
    assert model.record is not None
    described = describe_fit(model, rows)
    _print_model(model, described, target)
    if source.decisions:
        told["prepared"] = list(source.decisions)
    told |= {"model": str(target), "sha256": model.sha256()}
    told |= {"record": model.record.facts(), "fit": described.to_json()}
    return told if deposit is None else tell_deposit(new.deposit, told["deposit"], told)


def _print_model(model: Any, fit: Any, target: Path) -> None:
    """What was trained, how well it fits beside guessing and class by class, what is odd, and where it is."""
    record, scores, most = model.record, fit.scores, MOST_CLASSES["train"]
    bias = "a free bias" if record.free_bias else "a bias" if record.bias else "no bias"
    by_class = ", ".join(f"{each.label} {percent(each.right)}" for each in scores.classes[:most])
    more = f" and {len(scores.classes) - most} more" if len(scores.classes) > most else ""
    out.print(
        f"trained {record.loss} on {record.n_source:,} rows, {model.n_features} features, {len(record.classes)} classes"
    )
    out.print(
        f"l2 {record.l2:.3g}, rows at most {record.max_norm:.3g} long, {bias}; gradient norm at the stored weights: "
        f"{record.residual:.3g}"
    )
    guessing = f"always naming the most frequent class: {percent(scores.majority)}"
    out.print(f"accuracy on the source: {percent(scores.accuracy)}; {guessing}")
    out.print(f"by class: {by_class}{more}")
    for warning in fit.warnings:
        out.bold(f"warning: {warning}")
    out.print(f"written: {target}")


@command(quiet=True)
def deposit(
    model: Path = option("The trained model, .safetensors, whoever trained it.", section="Sets"),
    data: Path = option("The source: the rows it was trained on, as they were given then."),
    label: str | None = option(LABEL),
    columns: tuple[str, ...] | None = option(
        "Feature columns of tables, with commas between (default: all but the label's)."
    ),
    declared: Declared = options_of(Declared),
    execution: Execution = options_of(Execution, "device", "memory"),
    target: Path = output_option(
        "The deposit to write, such as model.deposit; a file that is there is never written over.", text=private_name
    ),
) -> Any:
    """Keep a deposit of the source before it goes, so that rows can be forgotten later with proven certificates.

    A deposit holds the gradient and the Hessian of the source at the trained weights, and keyed hashes of its rows: no
    row. With it, what retraining without some rows would give is known but for a remainder that is bounded: no
    surrogate is needed, and no distance. Make it any day before the source is deleted. It is PRIVATE.

    Since the source is there to rehearse on, the command says how many random rows can be forgotten at epsilon 0.1, 1
    and 5 (delta 1/n) before a point of accuracy is lost. The Hessian has as many rows as there are weights (classes x
    features; with ridge and one-vs-rest as many as features), and is refused beyond 12,000 (on a GPU: beyond what its
    memory holds).

    \b
    expunge deposit --model model.safetensors --data source.npz --out model.deposit
    expunge member  --deposit model.deposit --rows person.csv
    expunge unlearn --model model.safetensors --deposit model.deposit --forget forget.npz
                    --epsilon 0.1 --delta 1e-6 --out result/
    """
    from expunge.deposit.make import make_deposit
    from expunge.model import read_model
    from expunge.runtime.group import joined_group, local_device

    require_kinds(model, None, {"--data": data})
    trained, _ = read_model(model)
    source = open_rows(data, label, columns, execution.memory, trained)
    place = local_device(execution.device)
    with joined_group(place) as group:
        with progress(group.first) as advance:
            here = replace(execution, device=place, group=group, progress=advance)
            new, known = with_outlook(lambda: make_deposit(trained, source, declared=declared, execution=here), advance)
        if not group.first:
            raise SystemExit(0)  # the first process of the group writes
        content = write_deposit(target, new.deposit, known)
    return tell_deposit(new.deposit, content, content)


def with_outlook(keep: Callable[[], Any], progress: Any) -> tuple[Any, dict[str, Any]]:
    """A deposit of any model, and what is known of it."""
    from expunge.deposit.forecast import forecast

    start = time.monotonic()
    kept = keep()
    expected = forecast(kept.deposit, kept.people, kept.rows, progress=progress)
    return kept, {"seconds": round(time.monotonic() - start, 3), "outlook": expected.to_json()}


def write_deposit(
    target: Path, deposit: Any, known: dict[str, Any], public: tuple[Path, bytes] | None = None
) -> dict[str, Any]:
    """Write a file that must not be there yet and that nobody but its owner can read; what it is.

    `public` is a model that comes with it: both or neither.
    """
    from expunge.rows.output import write_together
    from expunge.runtime.files import PRIVATE, PUBLIC

    content = deposit.to_parts()
    beside = [] if public is None else [(*public, PUBLIC)]
    write_together(*beside, (target, content, PRIVATE))
    return {
        "deposit": str(target),
        "bytes": sum(map(len, content)),
        "n_rows": deposit.numbers.n_rows,
        "class_counts": list(deposit.numbers.class_counts),
        "levels": list(deposit.levels),
    } | known


def tell_deposit(deposit: Any, content: dict[str, Any], answer: dict[str, Any]) -> Any:
    """What was kept, what forgetting random rows would cost, whom it serves, and whether the source can go.

    Refused, where fewer than half of random people could leave: written it is, but nobody should rely on it.
    """
    record, expected = deposit.record, content["outlook"]
    wide = f"{deposit.model.n_features:,} {'tangent weights' if deposit.of_network else 'features'}"
    shape = f"{deposit.numbers.n_rows:,} rows, {wide}, {len(record.classes)} classes"
    out.print(f"deposit of {record.loss} on {shape}: {content['bytes']:,} bytes, made in {content['seconds']:.1f} s")
    for each in expected["affordable"]:
        out.print(
            f"epsilon {each['epsilon']:g}: {each['at_once']:,} rows at once, {each['one_at_a_time']:,} one at a time "
            "(a model for each), before a point of accuracy is lost (largest of the sizes tried)"
        )
    out.print(f"written: {content['deposit']}")
    out.listing(USES, "  ")
    verdict = expected["verdict"]
    share = percent(verdict["can_leave"] / verdict["people"], 0)
    out.bold((CAN_GO if verdict["serves"] else SERVES_NOBODY).format(**verdict, share=share))
    if (traces := expected["traces"]) is not None:
        out.print(
            "of a row that has left it: somebody with this file and a list of whole rows ranks the right one above "
            f"{percent(traces['ordinary'], 0)} of the others, one row in twenty above {percent(traces['unusual'], 0)} "
            "(50 % is guessing)"
        )
    return answer if verdict["serves"] else (answer | {"exit_status": REFUSED}, REFUSED)


@command()
def member(
    deposit: Path = option("What was kept of the source (expunge deposit)."),
    rows: Path = option("The rows to look up, with their labels."),
    label: str | None = option(LABEL),
) -> Any:
    """Is this person in the model? Whether each row is in what is left of the source, and how often.

    A row is known by its values and its label, as they were trained on; a copy in float32, or written with six
    decimals, is recognised. A row that is asked for twice must be there twice. Rows that were forgotten are gone.
    Exit status 0 if all rows are there, 1 if some are not. The answer is as private as the deposit.

    \b
    expunge member --deposit model.deposit --rows person.csv --label income
    """
    from expunge.deposit.file import read_deposit
    from expunge.deposit.membership import answers

    require_kinds(None, deposit, {})
    kept = read_deposit(deposit)
    found = answers(kept, read_prepared(rows) if kept.of_network else read_rows(rows, label, kept))
    there, left = sum(answer.there for answer in found), kept.numbers.n_rows
    cells = []
    for each in found[:MOST_ROWS]:
        said = ("yes", PRECISIONS[each.precision]) if each.there else ("no", "-")
        cells.append((str(each.row), *said, f"{each.times:,}"))
    out.table(("row", "in the source", "recognised", "times there"), cells, left=("in the source", "recognised"))
    if len(found) > MOST_ROWS:
        out.print(f"  and {len(found) - MOST_ROWS:,} more rows (--json lists all)")
    out.print(f"{there:,} of {len(found):,} rows are in what is left of the source ({left:,} rows)")
    if there < len(found):
        out.print(
            "a row that is not there was never trained on, or not with these values and this label, or is asked for "
            "more often than it is there, or was forgotten"
        )
    rows_told = [answer.to_json() for answer in found]
    content = {"n_rows": len(found), "members": there, "source_rows_left": left, "rows": rows_told}
    return content, int(there < len(found))


@command()
def predict(
    model: Path = option("The model, .safetensors, as trained or as published."),
    data: Path = option("The rows; they need no labels."),
    label: str | None = option(LABEL),
    target: Path = output_option("The .csv file to write; it must not exist yet.", ".csv"),
) -> Any:
    """A line for each row, in order: its predicted label, and the probability of each class (a ridge model has none).

    A table is prepared as the model's was at training. Cells that a spreadsheet would take for a formula begin with a
    quote.

    \b
    expunge predict --model model.safetensors --data new.csv --out predictions.csv
    """
    from expunge.model import read_model
    from expunge.report.tables import predictions
    from expunge.rows.files import read_unlabelled
    from expunge.rows.output import write_file

    require_kinds(model, None, {"--data": data})
    given, _ = read_model(model)
    content, count = predictions(given, read_unlabelled(data, label, given.record))
    write_file(target, content)
    out.print(f"{count:,} rows; written: {target}")
    return {"predictions": str(target), "rows": count, "classes": list(given.classes)}


@command()
def score(
    model: Path = option("The model, .safetensors, as trained or as published."),
    data: Path = option("Rows with their labels that the model was not trained on."),
    label: str | None = option(LABEL),
    before: Path | None = option("Another model, such as the one from before a deletion, to set beside it."),
) -> Any:
    """Accuracy, balanced accuracy (the mean over classes) and each class's, beside always naming the largest class.

    A table is prepared as the model's was at training.

    \b
    expunge score --model model.safetensors --data test.csv
    expunge score --model result/model.safetensors --before model.safetensors --data test.csv
    """
    from expunge.evaluate.metrics import score_model
    from expunge.model import read_model

    require_kinds(model, None, {"--data": data})
    paths = {"before": before, "after": model} if before is not None else {"model": model}
    models = {name: read_model(path)[0] for name, path in paths.items()}
    scores = {name: score_model(each, read_rows(data, label, each)) for name, each in models.items()}

    one, most = next(iter(scores.values())), MOST_CLASSES["score"]
    lines = {
        "accuracy": ([each.accuracy for each in scores.values()], percent(one.majority, 2)),
        "balanced accuracy": ([each.balanced for each in scores.values()], percent(1.0 / len(one.classes), 2)),
    }
    for place, own in enumerate(one.classes[:most]):
        rights = [each.classes[place].right for each in scores.values()]
        lines[f"class {own.label} ({own.rows:,} rows)"] = (rights, "")
    cells = [(name, *(percent(value, 2) for value in values), by) for name, (values, by) in lines.items()]
    out.table(("", *scores, "guessing"), cells, f"{one.rows:,} rows")
    out.print("guessing: always naming the most frequent class of these rows")
    if len(one.classes) > most:
        out.print(f"and {len(one.classes) - most} more classes (--json lists all)")
    return {name: each.to_json() for name, each in scores.items()}
