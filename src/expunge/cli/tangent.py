"""`expunge tangent`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, out, progress, quiet, reporting, written_to
from expunge.cli.deposits import exit_status, print_deposit, with_outlook, write_deposit
from expunge.cli.results import told_result, write_result
from expunge.cli.sections import Group, section
from expunge.cli.sets import FILE, deposit_option, model_option, read_prepared

NETWORK = click.option(
    "--network",
    required=True,
    help="module:function for a torch module that Python can import, with the weights it is linearised at. It is run: "
    "use only one you trust.",
)
BLOCK = section(
    "Speed", click.option("--block", default=64, show_default=True, type=click.IntRange(1), help="Examples at a time.")
)


@click.group(cls=Group, short_help="Networks linearised at their weights: train, and unlearn.")
def tangent() -> None:
    """Mixed-linear networks: linearise a pretrained network, train its tangent weights, forget rows of them.

    Data are examples before the network, as expunge embed reads them; bytes become floats from 0 to 1, anything else is
    the network's own business.

    \b
    expunge tangent train --data images.npz --network mynets:pretrained --last 2
                          --l2 1e-3 --max-norm 1 --out model.safetensors --json
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained
                            --forget forget.npz --surrogate surrogate.npz
                            --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/

    Where the tangent weights are a few thousand, a deposit can be kept of the source before it goes: no surrogate is
    needed then, and any number of examples can be forgotten.

    \b
    expunge tangent deposit --model model.safetensors --network mynets:pretrained --data images.npz
                            --out model.deposit
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained --forget forget.npz
                            --deposit model.deposit --epsilon 0.1 --delta 1e-6 --out result/
    """


@tangent.command(short_help="While the source exists: train tangent weights to the optimum.")
@click.option("--data", required=True, type=FILE, help="The source, labelled.")
@NETWORK
@click.option("--last", type=click.IntRange(1), help="Train the tangent weights of the last so many parameters alone.")
@click.option("--l2", required=True, type=float, help="The lambda of (lambda/2)||v||^2 beside the mean loss.")
@click.option("--max-norm", required=True, type=float, help="Longer Jacobians are scaled down to this norm.")
@BLOCK
@on_device
@written_to("The model to write, .safetensors; it must not exist yet.")
@quiet
@as_json
@reporting
def train(
    data: Path,
    network: str,
    last: int | None,
    l2: float,
    max_norm: float,
    block: int,
    device: str,
    target: Path,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Train tangent weights to the optimum while the source still exists.

    \b
    expunge tangent train --data images.npz --network mynets:pretrained
                          --l2 1e-3 --max-norm 1 --out model.safetensors
    """
    from expunge.heads.tangent import last_parameters
    from expunge.networks.encoders import imported_module
    from expunge.networks.tangent import train_tangent
    from expunge.rows.output import require_absent, write_file

    require_absent(target)
    module = imported_module(network)
    source = read_prepared(data)
    with progress(not quiet) as advance:
        model = train_tangent(
            module,
            *source,
            l2=l2,
            max_norm=max_norm,
            names=None if last is None else last_parameters(module, last),
            block=block,
            device=device,
            progress=advance,
        )
    write_file(target, model.to_bytes())
    if not json_output:
        out.print(f"trained {len(model.weights):,} tangent weights on {model.record.n_source:,} examples")
        out.print(f"gradient norm at the stored weights: {model.record.residual:.3g}")
        out.print(f"written: {target}", markup=False)
    return {
        "model": str(target),
        "sha256": model.sha256(),
        "parameters": list(model.names),
        "record": model.record.facts(),
    }


@tangent.command(short_help="Before the source goes: keep what later deletions need of it.")
@section(
    "Sets",
    model_option("The tangent weights that expunge tangent train wrote."),
    NETWORK,
    click.option("--data", required=True, type=FILE, help="The source: the examples they were trained on."),
)
@BLOCK
@on_device
@written_to("The deposit to write, such as model.deposit; a file that is there is never written over.")
@quiet
@as_json
@reporting
def deposit(
    model_file: Path,
    network: str,
    data: Path,
    block: int,
    device: str,
    target: Path,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Keep a deposit of the source before it goes: of tangent weights that are a few thousand. It is PRIVATE.

    It holds a matrix of as many rows and columns as there are weights, and no example; more than 12,000 are refused
    (--last of expunge tangent train). Whether an example is in it, expunge member says.

    \b
    expunge tangent deposit --model model.safetensors --network mynets:pretrained --data images.npz
                            --out model.deposit
    """
    from expunge.networks.encoders import imported_module
    from expunge.networks.tangent import keep_tangent, read_tangent
    from expunge.rows.output import require_absent

    require_absent(target)
    model, module, source = read_tangent(model_file), imported_module(network), read_prepared(data)
    with progress(not quiet) as advance:
        kept, known = with_outlook(
            lambda: keep_tangent(module, model, *source, block=block, device=device, progress=advance), advance
        )
    made = write_deposit(target, kept) | known
    if not json_output:
        print_deposit(target, kept, made)
    return made | exit_status(known["outlook"])


@tangent.command(short_help="Later, without it: forget examples, with a certificate.")
@section(
    "Sets",
    model_option("The tangent weights that expunge tangent train wrote."),
    NETWORK,
    click.option("--forget", required=True, type=FILE, help="Examples to forget, labelled."),
    deposit_option("What was kept of the source (expunge tangent deposit): the examples leave it."),
    click.option("--surrogate", type=FILE, help="Without a deposit: examples that resemble the source, labelled."),
)
@section(
    "Guarantee",
    click.option("--epsilon", required=True, type=float, help="Smaller protects more; 0.1 to 5 is usual."),
    click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n."),
    click.option(
        "--distance", help="Without a deposit: same, tv:0.2, chi2:0.1, kl:0.5 or source; see expunge unlearn."
    ),
    click.option(
        "--noise", default="request", show_default=True, help="A number, rows:10, or request; see expunge unlearn."
    ),
    click.option(
        "--force", is_flag=True, help="Hand over a model even if the noise swamps its weights, or epsilon is above 10."
    ),
)
@BLOCK
@on_device
@written_to("A new folder for model, statement and, private, the dossier.")
@quiet
@as_json
@reporting
def unlearn(
    model_file: Path,
    network: str,
    forget: Path,
    deposit: Path | None,
    surrogate: Path | None,
    target: Path,
    quiet: bool,
    json_output: bool,
    noise: str,
    **as_given: Any,
) -> dict[str, Any]:
    """Forget examples of a source that is gone, with a certificate; a whole class by giving all its rows.

    \b
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained
                            --forget forget.npz --surrogate surrogate.npz
                            --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/
    expunge tangent unlearn --model model.safetensors --network mynets:pretrained --forget forget.npz
                            --deposit model.deposit --epsilon 0.1 --delta 1e-6 --out result/
    """
    from expunge.bounds.scale import publishable
    from expunge.deposit.contents import read_deposit
    from expunge.networks.encoders import imported_module
    from expunge.networks.tangent import read_tangent, unlearn_tangent
    from expunge.rows.output import require_absent

    require_absent(target)
    model, module = read_tangent(model_file), imported_module(network)
    rows = read_prepared(forget), None if surrogate is None else read_prepared(surrogate)
    kept = None if deposit is None else read_deposit(deposit)
    with progress(not quiet) as advance:
        result = unlearn_tangent(
            module, model, *rows, **as_given, deposit=kept, noise=publishable(noise), progress=advance
        )
    return told_result(target, result, write_result(target, result), json_output, before=deposit)
