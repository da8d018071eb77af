"""`expunge desk init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, deposit_option, label_column, model_option, read_rows

promise = section(
    "Guarantee of each model",
    click.option("--epsilon", required=True, type=float, help="Of each published model; smaller protects more."),
    click.option("--delta", required=True, type=float, help="Probability that the promise fails; at most 1/n."),
    click.option(
        "--distance",
        help="Without a deposit: how far the surrogate is from the source: same, tv:0.2, chi2:0.1 or kl:0.5.",
    ),
    click.option(
        "--between",
        default="populations",
        show_default=True,
        help="What the distance is between: populations or samples.",
    ),
    click.option("--sampling", default="strict", show_default=True, help="seen or strict; see expunge unlearn."),
    click.option(
        "--match-classes", is_flag=True, help="Weight surrogate rows to the source's class counts; see expunge unlearn."
    ),
    click.option("--step", default="converged", show_default=True, help="converged, newton or balanced."),
    click.option(
        "--noise",
        default="rows:1",
        show_default=True,
        help="Of every model, set now, before anybody asks: a standard deviation, or as for so many rows a model "
        "(rows:10, rehearsed on surrogate rows for all planned models). A request that needs more is refused: retrain. "
        "request: each chooses a power of two, which says something of who left. expunge plan recommends a number. "
        "With a deposit, unless it is a number: what moves outputs by at most a hundredth.",
    ),
    click.option("--force", is_flag=True, help="Publish models of little use too; see expunge unlearn."),
)
over_time = section(
    "Over time",
    click.option(
        "--planned",
        default=50,
        show_default=True,
        help="Models to be published before the next training; they share the probability that a bound fails.",
    ),
    click.option(
        "--total-epsilon",
        type=float,
        help="Of all published models together, at the same delta (default: 10 x epsilon).",
    ),
    click.option("--days", default=30, show_default=True, help="How long a request may wait."),
)


@click.command(cls=Command, short_help="Open a desk: a new folder, with what it promises.")
@desk_folder
@section(
    "Sets",
    model_option(
        "The trained model with its record (expunge train). The desk keeps its own private copy. With a deposit it may "
        "be left out: the deposit has one.",
        required=False,
    ),
    deposit_option(
        "What was kept of the source (expunge deposit): requests are looked up in it, rows leave it with every run. "
        "The desk keeps its own private copy."
    ),
    click.option(
        "--surrogate",
        type=FILE,
        help="Without a deposit: rows that resemble the source. The desk keeps its own private copy.",
    ),
    label_column,
)
@promise
@over_time
@as_json
@reporting
@record_facts
def init(
    desk: Path,
    model_file: Path | None,
    deposit: Path | None,
    surrogate: Path | None,
    label: str | None,
    noise: str,
    declared: Any,
    json_output: bool,
    **policy_options: Any,
) -> dict[str, Any]:
    """Open a deletion desk: a new folder with a ledger, private state and published models.

    What it promises is fixed now: epsilon and delta of each model, how many are planned, what all of them together may
    say. With a deposit of the source no surrogate is needed and certificates are proven; without one, a surrogate and
    its distance are.

    \b
    expunge desk init desk/ --deposit model.deposit --epsilon 0.1 --delta 1e-6
    expunge desk init desk/ --model model.safetensors --surrogate surrogate.npz
                      --epsilon 1 --delta 1e-5 --distance chi2:0.1
    """
    from expunge.bounds.scale import publishable
    from expunge.desk import Policy, create_desk
    from expunge.model import read_model

    if deposit is not None:
        _require_alone(surrogate, policy_options)
    elif model_file is None or surrogate is None or policy_options["distance"] is None:
        raise _too_little()
    policy = Policy(**policy_options).checked()
    model, digest = (None, None) if model_file is None else read_model(model_file)
    notes: list[str] = []
    opened = create_desk(
        desk,
        model,
        None if surrogate is None else read_rows(surrogate, label, model),
        policy,
        digest,
        declared,
        notes.append,
        noise=publishable(noise),
        deposit=_read_deposit(deposit),
    )
    policy = opened.policy
    if not json_output:
        before = model is not None and (model.record is None or not model.record.noised)
        copied = [deposit, model_file if before else None]  # one that was published may stay
        _print_opened(desk, policy, notes, [str(path) for path in copied if path is not None])
    return {"desk": str(desk), "policy": policy.to_json(), "notes": notes}


def _read_deposit(path: Path | None) -> Any:
    from expunge.evidence.deposit.contents import read_deposit

    return None if path is None else read_deposit(path)


def _require_alone(surrogate: Path | None, policy: dict[str, Any]) -> None:
    """Refuse a surrogate and a distance with a deposit; its policy says that it is for one."""
    from expunge.desk.policy import KEPT
    from expunge.evidence.deposit.asking import require_alone

    require_alone(surrogate=surrogate, distance=policy["distance"])
    policy["distance"] = KEPT


def _too_little() -> Any:
    from expunge.errors import OptionError

    return OptionError(
        "no --model, no --surrogate or no --distance",
        "a desk needs a deposit of the source, or a model and rows that resemble the source, and how much they do",
        "Give --deposit if one was kept (expunge deposit), or all three.",
    )


def _print_opened(desk: Path, policy: Any, notes: list[str], copied: list[str]) -> None:
    for note in notes:
        out.print(f"note: {note}", markup=False)
    if policy.noise is not None:
        rehearsed = "" if policy.noise_rows is None else f", rehearsed with {policy.noise_rows:,} surrogate rows"
        out.print(f"noise of every model: {policy.noise:g}{rehearsed}")
    out.print(f"opened: {desk}; {desk / 'private'} must never leave", markup=False)
    out.print(
        f"the desk has its own copy of {' and '.join(copied)}: remove {'it' if len(copied) == 1 else 'them'}, since "
        "what is forgotten from now on is still in there",
        markup=False,
    )
