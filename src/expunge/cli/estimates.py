"""How an estimate is to be made: the options of `expunge distance` that tune it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from expunge.cli.sections import section
from expunge.cli.sets import FILE

estimate_options = section(
    "The estimate",
    click.option(
        "--support",
        default="ball",
        show_default=True,
        help="What makes the model's density over features integrable: ball (radius max_norm, by reflection), "
        "projected-ball, box, or gaussian (a reference density with --moments, or with the surrogate's own mean and "
        "covariance, which pulls the estimate toward the surrogate: good for a look, refused by unlearn).",
    ),
    click.option("--box", type=float, help="Half-width of the box (default: max_norm)."),
    click.option(
        "--moments",
        type=FILE,
        help=".npz with mean and covariance of the Gaussian reference, where somebody knows the source's.",
    ),
    click.option("--chains", type=int, default=1000, show_default=True, help="Langevin chains, one sample each."),
    click.option("--steps", type=int, default=4000, show_default=True, help="Steps of each chain."),
    click.option(
        "--step-size", type=float, help="Step (default: 0.02 in units of the support's variance per feature)."
    ),
    click.option("--metropolis", is_flag=True, help="Correct every step, for exactness."),
    click.option("--epochs", type=int, default=500, show_default=True, help="Epochs of the variational network."),
    click.option(
        "--chain-seed",
        type=int,
        default=0,
        show_default=True,
        help="Seed of chains and network. It protects nothing, and has nothing to do with the noise.",
    ),
)


def estimation(*, moments: Path | None, chain_seed: int, matched: bool, **settings: Any) -> Any:
    """An Estimation in the way the options say."""
    from expunge.distance import Estimation
    from expunge.rows.files import read_moments

    mean, covariance = (None, None) if moments is None else read_moments(moments)
    return Estimation(mean=mean, covariance=covariance, seed=chain_seed, matched=matched, **settings)
