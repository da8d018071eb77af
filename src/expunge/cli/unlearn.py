"""`expunge unlearn`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, progress, quiet, reporting, written_to
from expunge.cli.distances import stated_distance
from expunge.cli.facts import record_facts
from expunge.cli.results import told_result, write_result
from expunge.cli.sections import Command, section
from expunge.cli.sets import (
    FILE,
    FORGET,
    TRAINED,
    columns,
    deposit_option,
    forget_class,
    label_column,
    memory,
    model_option,
    read_forget_and_surrogate,
)

promise = section(
    "Guarantee",
    click.option("--epsilon", required=True, type=float, help="Smaller protects more; 0.1 to 5 is usual."),
    click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n."),
    click.option(
        "--distance",
        help="How far the surrogate is from the source: same, tv:0.2, chi2:0.1, kl:0.5 (of the source relative to the "
        "surrogate); without a deposit also source, if it is the source itself. Where nobody knows, and there is no "
        "deposit: estimate.npz, written by expunge distance --out (the difference of means that the bound needs, at "
        "this update), or estimate.npz:kl (the paper's way). An estimate proves nothing and the certificate says so.",
    ),
    click.option(
        "--match-classes",
        is_flag=True,
        help="Weight surrogate rows so that its class proportions are the source's; --distance is then the source's "
        "from that.",
    ),
    click.option(
        "--between",
        default="populations",
        show_default=True,
        help="What the distance is between: populations (both sets are samples; adds a sampling term) or samples (the "
        "two sets themselves).",
    ),
    click.option(
        "--sampling",
        default="strict",
        show_default=True,
        help="What is taken for retained rows unlike any surrogate row: strict (they are counted and charged the "
        "worst) or seen (the surrogate shows all there is: less noise, but false for categorical rows).",
    ),
    click.option(
        "--noise",
        default="request",
        show_default=True,
        help="The noise's standard deviation, which everybody sees: set before anybody asks, as a number or as for so "
        "many rows (rows:10, rehearsed on surrogate rows), and a request that needs more is refused; or request: it "
        "chooses a power of two, which says something of who left. expunge plan recommends a number.",
    ),
    click.option(
        "--force",
        is_flag=True,
        help="Write the model even if it is of little use (noise above the weights, more than half forgotten, an "
        "epsilon above 10, which the statement then says first). Never overrides a vacuous claim.",
    ),
)
step_and_bound = section(
    "Step and bound",
    click.option(
        "--step",
        help="converged (the default); newton: one step, the paper's Algorithm 1; balanced: the update, or none, that "
        "makes the bound smallest (slower, pays where the distance is large).",
    ),
    click.option(
        "--bound", default="residual", show_default=True, help="residual, or paper: Theorem 4.2 and Corollary 4.4."
    ),
    click.option(
        "--constants",
        help="For --bound paper: derived (closed forms), paper (what its experiments set; false for any loss), or "
        "alpha=..,beta=..,L=..,gamma=..",
    ),
    click.option(
        "--sizes",
        default="source",
        show_default=True,
        help="For --bound paper: source (Algorithm 1) or surrogate (the appendix) as the weight of the surrogate's "
        "Hessian.",
    ),
)
speed = section(
    "Speed",
    click.option(
        "--dtype",
        default="float64",
        show_default=True,
        help="What surrogate rows are kept in: float64 or float32. Evidence is summed in float64 either way.",
    ),
    memory,
)


@click.command(cls=Command, short_help="Later, without the source: forget rows, with a certificate.")
@section(
    "Sets",
    model_option(TRAINED),
    click.option("--forget", required=True, type=FILE, help=FORGET),
    deposit_option("What was kept of the source (expunge deposit): the rows are looked up in it, and leave it."),
    click.option(
        "--surrogate",
        type=FILE,
        help="Rows that resemble the source. Needed without a deposit; beside one, with --distance, used where the "
        "deposit alone would need more noise, or cannot do it.",
    ),
    forget_class,
    label_column,
    columns,
)
@promise
@step_and_bound
@speed
@on_device
@written_to(
    "The folder to write model.safetensors, statement.json and private/dossier.json in, with a deposit also "
    "private/model.deposit; it must not exist yet."
)
@section(
    "Output",
    click.option(
        "--sign-key",
        type=FILE,
        help="An Ed25519 private key (expunge keygen): also write statement.signed.json.",
    ),
)
@quiet
@as_json
@reporting
@record_facts
def unlearn(  # over 60 lines: click hands over each of its options by name
    model_file: Path,
    forget: Path,
    deposit: Path | None,
    surrogate: Path | None,
    label: str | None,
    columns: str | None,
    forget_class: str | None,
    epsilon: float,
    delta: float,
    distance: str | None,
    match_classes: bool,
    between: str,
    sampling: str,
    noise: str,
    force: bool,
    step: str | None,
    bound: str,
    constants: str | None,
    sizes: str,
    declared: Any,
    dtype: str,
    memory: str | None,
    device: str,
    target: Path,
    sign_key: Path | None,
    quiet: bool,
    json_output: bool,
) -> dict[str, Any]:
    """Forget rows of a source that is gone, with a certificate: a public statement and a private dossier.

    Needs the model, the rows to forget, and what is known of the source: a deposit that was kept of it, or a surrogate
    (rows that resemble it) with a distance. Facts about the training come from the model's record, or from options that
    the certificate then marks as declared.

    With a deposit each row must have been in the source. The certificate is proven (conditional where a surrogate had
    a part in it), the deposit of what is retained lies in private/, written together with the rest, and the one that
    was given is to be destroyed.

    \b
    expunge unlearn --model model.safetensors --deposit model.deposit --forget forget.npz
                    --epsilon 0.1 --delta 1e-6 --out result/
    expunge unlearn --model model.safetensors --deposit model.deposit --forget forget.npz
                    --surrogate surrogate.npz --distance same --epsilon 1 --delta 1e-6 --out result/
    expunge unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                    --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/
    """
    from expunge.bounds.scale import publishable
    from expunge.cli.swaps import require_deposit, require_model
    from expunge.mechanism import carry_out
    from expunge.model import read_model
    from expunge.request.execution import Execution
    from expunge.rows.output import require_absent
    from expunge.runtime.group import joined_group, local_device

    require_absent(target)
    require_model(model_file, {"--forget": forget, "--deposit": deposit, "--surrogate": surrogate})
    require_deposit(deposit, model_file)
    key = None if sign_key is None else _key(sign_key)
    terms = {"step": step, "bound": bound, "constants": _constants(constants), "sizes": sizes}
    scale = publishable(noise)
    if deposit is None:
        stated = _stated(surrogate, distance, between, sampling)
        asking = _by_surrogate(
            epsilon, delta, stated, match_classes, terms | {"force": force, "noise": scale}, declared
        )
    else:
        from expunge.deposit.asking import require_fitting

        require_fitting(declared, terms | {"dtype": dtype})
        stated = None if distance is None else stated_distance(distance, between=between, sampling=sampling)
        asking = _by_deposit(deposit, epsilon, delta, force, scale, stated, match_classes)
    model, digest = read_model(model_file)
    rows = read_forget_and_surrogate(forget, surrogate, label, columns, memory, model)
    place = local_device(device)
    with joined_group(place) as group:
        with progress(group.first and not quiet) as advance:
            execution = Execution(dtype, place, memory, group, advance)
            request = asking(model, *rows, forget_class=forget_class, execution=execution, model_sha256=digest)
            result = carry_out(request, group=group, progress=advance)
        if result is None:
            raise SystemExit(0)  # the first process of the group writes
        names = write_result(target, result, key)
    return told_result(target, result, names, json_output, before=deposit)


def _stated(surrogate: Path | None, distance: str | None, between: str, sampling: str) -> Any:
    """The distance of the surrogate, without which, or a deposit, nothing is known of the source."""
    from expunge.errors import OptionError

    if surrogate is None or distance is None:
        missing = [name for name, value in (("--surrogate", surrogate), ("--distance", distance)) if value is None]
        raise OptionError(
            f"no {' and no '.join(missing)}",
            "without a deposit of the source, rows that resemble it are needed, and how much they do",
            "Give both, or --deposit if one was kept (expunge deposit).",
        )
    return stated_distance(distance, between=between, sampling=sampling)


def _by_surrogate(
    epsilon: float, delta: float, stated: Any, match_classes: bool, terms: dict[str, Any], declared: Any
) -> Callable[..., Any]:
    """How to ask with a surrogate."""
    from expunge.request.door import ask
    from expunge.request.promise import Promise, wanted_distance

    wanted, estimate = wanted_distance(stated, match_classes)
    promise = Promise(epsilon, delta, wanted, estimate=estimate, **terms)
    return lambda model, forget, surrogate, **options: ask(
        model, forget, surrogate, promise, declared=declared, **options
    )


def _by_deposit(
    path: Path, epsilon: float, delta: float, force: bool, scale: Any, stated: Any, match_classes: bool
) -> Callable[..., Any]:
    """How to ask with a deposit, and a surrogate beside it where one is given."""
    from expunge.deposit.adding import with_surrogate
    from expunge.deposit.asking import ask_deposit, deposit_promise
    from expunge.deposit.contents import read_deposit
    from expunge.request.rows import Reading
    from expunge.runtime.memory import Memory

    promise = deposit_promise(epsilon, delta, force=force, noise=scale)
    kept = read_deposit(path)

    def asking(model: Any, forget: Any, surrogate: Any, *, execution: Any, **options: Any) -> Any:
        request = ask_deposit(kept, forget, promise, model=model, execution=execution, **options)
        reading = Reading(Memory.of(execution.memory), progress=execution.progress)
        return with_surrogate(request, forget, surrogate, stated, match_classes=match_classes, reading=reading)

    return asking


def _key(file: Path) -> Any:
    from expunge.certificate.sign import read_private_key

    return read_private_key(file)


def _constants(text: str | None) -> Any:
    """`derived`, `paper`, or `alpha=1,beta=2,L=1,gamma=1`."""
    from expunge.bounds import PaperConstants
    from expunge.errors import OptionError
    from expunge.runtime.strict_json import without_duplicates

    if text is None or "=" not in text:
        return text
    try:
        pairs = [part.split("=") for part in text.split(",")]
        by_name = without_duplicates([(name.strip(), float(value)) for name, value in pairs])
        constants = PaperConstants(by_name.pop("alpha"), by_name.pop("beta"), by_name.pop("L"), by_name.pop("gamma"))
        if by_name:
            raise KeyError(*by_name)
    except (ValueError, KeyError) as error:
        raise OptionError(
            f"constants {text!r}",
            "alpha, beta, L and gamma are needed, each a number",
            "Write alpha=0.01,beta=1,L=1,gamma=1.",
        ) from error
    return constants
