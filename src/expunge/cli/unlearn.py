"""`expunge unlearn`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.console import as_json, on_device, out, print_certificate, progress, quiet, reporting, written_to
from expunge.cli.estimation import estimate_options, estimation
from expunge.cli.facts import record_facts
from expunge.cli.streaming import rows_from, streaming


@click.command()
@click.option(
    "--model",
    "model_file",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The trained model, .safetensors with weight (K x d) and, where there is one, bias (K).",
)
@click.option(
    "--forget",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The rows to forget, with their labels.",
)
@click.option(
    "--surrogate", required=True, type=click.Path(path_type=Path, readable=False), help="Rows that resemble the source."
)
@click.option(
    "--forget-class",
    help="Forget a whole class: of the rows in --forget, those with this label, which must be all the source had of it.",
)
@click.option("--label", help="Label column of .csv and .parquet files (default: y, or label).")
@click.option("--epsilon", required=True, type=float, help="Smaller protects more; 0.1 to 5 is usual.")
@click.option("--delta", required=True, type=float, help="Probability that the guarantee fails; at most 1/n.")
@click.option(
    "--distance",
    required=True,
    help="How far the surrogate is from the source: same, tv:0.2, chi2:0.1, kl:0.5 (of the source relative to the surrogate), or source if it is the source itself. Where nobody knows: estimate (from the model and the surrogate; the difference of means that the bound needs) or estimate:kl (the paper's way). An estimate proves nothing and the certificate says so; see expunge distance.",
)
@click.option(
    "--match-classes",
    is_flag=True,
    help="Weight surrogate rows so that its class proportions are the source's; --distance is then the source's from that.",
)
@estimate_options
@click.option(
    "--between",
    default="populations",
    show_default=True,
    help="What the distance is between: populations (both sets are samples; adds a sampling term) or samples (the two sets themselves).",
)
@click.option(
    "--sampling",
    default="seen",
    show_default=True,
    help="What is taken for source rows unlike any surrogate row: seen (the surrogate's rows are typical) or strict (such rows are counted and charged the worst; a larger bound that assumes less).",
)
@click.option(
    "--step",
    help="converged (the default); newton: one step, the paper's Algorithm 1; balanced: the update, or none, that makes the bound smallest (slower, pays where the distance is large).",
)
@click.option(
    "--bound", default="residual", show_default=True, help="residual, or paper: Theorem 4.2 and Corollary 4.4."
)
@click.option(
    "--constants",
    help="For --bound paper: derived (closed forms), paper (what its experiments set; false for any loss), or alpha=..,beta=..,L=..,gamma=..",
)
@click.option(
    "--sizes",
    default="source",
    show_default=True,
    help="For --bound paper: source (Algorithm 1) or surrogate (the appendix) as the weight of the surrogate's Hessian.",
)
@click.option(
    "--dtype",
    default="float64",
    show_default=True,
    help="What surrogate rows are kept in: float64 or float32. Evidence is summed in float64 either way.",
)
@on_device
@streaming
@click.option(
    "--force",
    is_flag=True,
    help="Write the model even if it is of little use (noise above the weights, more than half forgotten). Never overrides a vacuous claim.",
)
@click.option(
    "--sign-key",
    type=click.Path(path_type=Path, readable=False),
    help="An Ed25519 private key (expunge keygen): also write certificate.signed.json.",
)
@written_to("The folder to write model.safetensors and certificate.json in; it must not exist yet.")
@quiet
@as_json
@reporting
@record_facts
def unlearn(
    model_file: Path,
    forget: Path,
    surrogate: Path,
    forget_class: str | None,
    label: str | None,
    epsilon: float,
    delta: float,
    distance: str,
    between: str,
    sampling: str,
    match_classes: bool,
    step: str | None,
    bound: str,
    constants: str | None,
    sizes: str,
    facts: dict[str, Any],
    dtype: str,
    device: str,
    memory: str | None,
    columns: str | None,
    force: bool,
    sign_key: Path | None,
    target: Path,
    quiet: bool,
    json_output: bool,
    **estimating: Any,
) -> dict[str, Any]:
    """Forget rows of a source that is gone, with a certificate.

    Needs the model, the rows to forget, and a surrogate: rows that resemble the source. Facts about the training come
    from the model's record, or from options that the certificate then marks as declared.

    \b
    expunge unlearn --model model.safetensors --forget forget.npz --surrogate surrogate.npz
                    --epsilon 1 --delta 1e-5 --distance chi2:0.1 --out result/
    """  # fmt: skip
    from expunge.certificate.sign import read_private_key, seal
    from expunge.data.output import require_absent, write_folder
    from expunge.mechanism import carry_out
    from expunge.model import read_model
    from expunge.request.declared import Declared
    from expunge.request.door import ask
    from expunge.request.execution import Execution
    from expunge.request.guarantee import Guarantee, wanted_distance
    from expunge.runtime.group import joined_group, local_device

    require_absent(target)
    key = None if sign_key is None else read_private_key(sign_key)
    wanted, _ = wanted_distance(estimation(distance, between=between, sampling=sampling, **estimating), match_classes)
    guarantee = Guarantee(
        epsilon, delta, wanted, step=step, bound=bound, constants=_constants(constants), sizes=sizes, force=force
    )
    model, digest = read_model(model_file)
    leaving, standing = rows_from(forget, surrogate, label, columns, memory)
    device = local_device(device)
    with joined_group(device) as group:
        with progress(group.first and not quiet) as advance:
            request = ask(
                model,
                leaving,
                standing,
                guarantee,
                forget_class=forget_class,
                declared=Declared(**facts),
                execution=Execution(dtype, device, memory, group, advance),
                model_sha256=digest,
            )
            result = carry_out(request, group=group, progress=advance)
        if result is None:
            raise SystemExit(0)  # the first process of the group writes
        files = {
            "model.safetensors": result.model.to_bytes(),
            "certificate.json": result.certificate.to_json().encode(),
        }
        if key is not None:
            files["certificate.signed.json"] = seal(result.certificate, key)
        write_folder(target, files)
    if not json_output:
        print_certificate(result.certificate.content)
        out.print("written: " + ", ".join(str(target / name) for name in files), markup=False)
    return {
        "model": str(target / "model.safetensors"),
        "certificate_file": str(target / "certificate.json"),
        "certificate": result.certificate.content,
    }


def _constants(text: str | None) -> Any:
    """`derived`, `paper`, or `alpha=1,beta=2,L=1,gamma=1`."""
    from expunge.bounds import PaperConstants
    from expunge.errors import OptionError
    from expunge.runtime.strict_json import without_duplicates

    if text is None or "=" not in text:
        return text
    try:
        pairs = [part.split("=") for part in text.split(",")]
        given = without_duplicates([(name.strip(), float(value)) for name, value in pairs])
        constants = PaperConstants(given.pop("alpha"), given.pop("beta"), given.pop("L"), given.pop("gamma"))
        if given:
            raise KeyError(*given)
    except (ValueError, KeyError) as error:
        raise OptionError(
            f"constants {text!r}",
            "alpha, beta, L and gamma are needed, each a number",
            "Write alpha=0.01,beta=1,L=1,gamma=1.",
        ) from error
    return constants
