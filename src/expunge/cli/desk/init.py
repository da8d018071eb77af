"""`expunge desk init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, out, reporting
from expunge.cli.desk.options import desk_folder
from expunge.cli.facts import record_facts
from expunge.cli.sections import Command, section
from expunge.cli.sets import FILE, label_column, model_option

promise = section(
    "Guarantee of each model",
    click.option("--epsilon", required=True, type=float, help="Of each published model; smaller protects more."),
    click.option("--delta", required=True, type=float, help="Probability that the promise fails; at most 1/n."),
    click.option(
        "--distance", required=True, help="How far the surrogate is from the source: same, tv:0.2, chi2:0.1 or kl:0.5."
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
        "request: each chooses a power of two, which says something of who left. expunge plan recommends a number.",
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
    model_option("The trained model with its record (expunge train). The desk keeps its own private copy."),
    click.option(
        "--surrogate",
        required=True,
        type=FILE,
        help="Rows that resemble the source. The desk keeps its own private copy.",
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
    model_file: Path,
    surrogate: Path,
    label: str | None,
    noise: str,
    declared: Any,
    json_output: bool,
    **policy_options: Any,
) -> dict[str, Any]:
    """Open a deletion desk: a new folder with a ledger, private state and published models.

    What it promises is fixed now: epsilon and delta of each model, how many are planned, what all of them together may
    say.

    \b
    expunge desk init desk/ --model model.safetensors --surrogate surrogate.npz
                      --epsilon 1 --delta 1e-5 --distance chi2:0.1
    """
    from expunge.bounds.scale import publishable
    from expunge.data import read_data
    from expunge.desk import Policy, create_desk
    from expunge.model import read_model

    policy = Policy(**policy_options).checked()
    model, digest = read_model(model_file)
    notes: list[str] = []
    rows = read_data(surrogate, label).rows
    opened = create_desk(desk, model, rows, policy, digest, declared, notes.append, noise=publishable(noise))
    policy = opened.policy
    if not json_output:
        for note in notes:
            out.print(f"note: {note}", markup=False)
        if policy.noise is not None:
            rehearsed = "" if policy.noise_rows is None else f", rehearsed with {policy.noise_rows:,} surrogate rows"
            out.print(f"noise of every model: {policy.noise:g}{rehearsed}")
        out.print(f"opened: {desk}; {desk / 'private'} must never leave", markup=False)
        out.print(
            f"the desk has its own copy of {model_file}: remove the file, it is the model before deletion", markup=False
        )
    return {"desk": str(desk), "policy": policy.to_json(), "notes": notes}
