"""`expunge distance`: how far may a source that is gone be from the surrogate?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from expunge.cli.console import out, progress
from expunge.cli.files import LABEL, read_rows
from expunge.cli.options import command, options_of, output_option
from expunge.distance import Estimation
from expunge.request.promise import Declared, Execution
from expunge.runtime.values import option


@command(quiet=True)
def distance(
    model: Path = option("The trained model, .safetensors.", section="Sets"),
    surrogate: Path = option("Rows that resemble the source, with labels."),
    forget: Path | None = option(
        "Rows to forget: then the difference of means that the bound needs is estimated too, at the update they call "
        "for; with --match-classes they are not counted."
    ),
    reference: Path | None = option(
        "Rows of the source, where somebody does have some: every estimate is repeated on them for comparison."
    ),
    label: str | None = option(LABEL),
    match_classes: bool = option(
        "Weight surrogate rows so that its class proportions are the source's, --forget left out."
    ),
    estimation: dict[str, Any] = options_of(Estimation, build=dict),
    moments: Path | None = option(
        ".npz with mean and covariance of the Gaussian reference, where somebody knows the source's.",
        section="The estimate",
    ),
    declared: Declared = options_of(Declared),
    execution: Execution = options_of(Execution, "device"),
    target: Path | None = output_option(
        "A new .npz file for the estimate: the sampled features, their settings and diagnostics. expunge unlearn "
        "--distance takes it.",
        ".npz",
    ),
) -> Any:
    """How far may a source that is gone be from the surrogate? A heuristic: none of it is a guarantee.

    Langevin chains draw features from the density that the model implies; a network tells them from the
    surrogate's (Donsker-Varadhan); a model trained on the surrogate gives the part of the labels. A classifier is not
    trained to know its features' density, so the samples may be far from the source. Where they cannot tell, this says
    so, with the reason, and gives no number. A certificate that rests on an estimate has the status `estimated`,
    whatever the numbers.

    \b
    expunge distance --model model.safetensors --surrogate surrogate.npz --forget forget.npz
    expunge distance --model model.safetensors --surrogate surrogate.npz --reference source-sample.npz
    expunge distance --model model.safetensors --surrogate surrogate.npz --out estimate.npz
    expunge unlearn  --model model.safetensors --surrogate surrogate.npz --forget forget.npz
                     --epsilon 1 --delta 1e-5 --distance estimate.npz --out result/
    """
    from expunge.estimate.comparison import compare
    from expunge.estimate.source import estimate_bytes
    from expunge.model import one_row_a_class, read_model
    from expunge.request.request import record_for
    from expunge.rows.arrays import read_moments
    from expunge.rows.output import write_file
    from expunge.rows.tables import is_table

    mean, covariance = (None, None) if moments is None else read_moments(moments)
    wanted = Estimation(**estimation, mean=mean, covariance=covariance, matched=match_classes)
    given = read_model(model)[0]
    if given.record is None:
        # an estimate is about softmax alone; without rows to forget the source's size plays no part, nor how far
        # training stopped
        usual: dict[str, Any] = {"n_source": None if forget is not None else sum(declared.class_counts or (2,))}
        usual |= {"loss": "softmax", "training_residual": 0.0}
        declared = replace(declared, **{name: own for name, own in usual.items() if getattr(declared, name) is None})
    record, rowwise = record_for(given, declared), one_row_a_class(given)  # as a request has it
    if rowwise is not given and rowwise.record is not None:
        record = rowwise.record
    sets = {"surrogate": surrogate, "forget": forget, "reference": reference}
    rows: dict[str, Any] = {
        name: read_rows(each, label if is_table(each) else None, rowwise)
        for name, each in sets.items()
        if each is not None
    }
    with progress() as advance:
        settings: dict[str, Any] = {"wanted": wanted, "device": execution.device, "progress": advance}
        comparison = compare(rowwise, rows.pop("surrogate"), record=record, **rows, **settings)

    _print_comparison(comparison)
    content: dict[str, Any] = comparison.to_dict()
    if target is None:
        return content
    if not comparison.tells:
        out.print(f"not written: {target}; what tells nothing is no ground for a certificate")
        return content
    write_file(target, estimate_bytes(comparison.estimate))
    out.print(f"written: {target}")
    return content | {"estimate_file": str(target)}


def _print_comparison(comparison: Any) -> None:
    """The numbers; or why there are none, what to do instead, and what real rows of the source say; what was done."""
    from expunge.estimate.comparison import INSTEAD, TELLS_NOTHING

    if comparison.tells:
        _print_lines(comparison.lines)
    else:
        out.bold(f"How far the surrogate is from the source: {TELLS_NOTHING}")
        out.listing(comparison.reasons)
        out.print("What to do instead")
        out.listing(INSTEAD)
        if comparison.reference is not None:
            _print_lines([line for line in comparison.lines if line.source == "reference"])
    chains, sampled = comparison.sampled.diagnostics, comparison.sampled
    out.print(
        f"chains: {len(sampled.rows):,} of {sampled.steps:,} steps; split R-hat {chains.r_hat:.3f}, effective samples "
        f"{chains.effective_samples:,.0f}, drift of norms {chains.drift:+.2f} sd"
    )
    out.print(f"support: {sampled.support}; step {sampled.step_size:.3g}")
    network = comparison.kl.marginal
    out.print(
        f"network: best of {network.epochs} epochs was {network.best_epoch}; "
        f"{network.n_nu:,} surrogate and {network.n_rho:,} sampled rows"
    )
    rows = comparison.surrogate
    if rows.weights is not None:
        out.print(
            f"classes matched: {len(rows):,} surrogate rows count as {rows.effective:,.0f}; "
            f"largest weight {rows.largest_weight:.3g}"
        )
    out.listing(comparison.notes, "note: ")


def _print_lines(lines: list[Any]) -> None:
    from expunge.estimate.comparison import TELLS_NOTHING

    cells = []
    for line in lines:
        numbers = (line.value, line.standard_error, line.upper)
        values = ["" if number is None else f"{number:.3g}" for number in numbers]
        cells.append((line.name, line.source, *(values if line.tells else (TELLS_NOTHING, "", "")), line.direction))
    out.table(
        ("estimate", "source", "value", "s.e.", "upper", "side"),
        cells,
        "How far the surrogate is from the source: ESTIMATES, nothing is proven",
        ("estimate", "source", "side"),
    )
    for line in lines:
        if line.remark and line.tells:
            out.print(f"  - {line.name}, {line.source}: {line.remark}")
    out.print("source: samples = drawn from the model, reference = real rows of the source, model = its probabilities")
    out.print("side: lower = below the truth in the limit, upper = above it, neither = may be either")
