"""Options of an estimated distance, shared by the commands that can estimate one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--support",
        default="ball",
        show_default=True,
        help="Estimates: what makes the model's density over features integrable: ball (radius max_norm, by reflection), projected-ball, box, or gaussian (a reference density with --moments, or with the surrogate's own mean and covariance, which pulls the estimate toward the surrogate).",
    ),
    click.option("--box", type=float, help="Estimates: half-width of the box (default: max_norm)."),
    click.option(
        "--moments",
        type=click.Path(path_type=Path, readable=False),
        help="Estimates: .npz with mean and covariance of the Gaussian reference, where somebody knows the source's.",
    ),
    click.option("--chains", type=int, default=1000, show_default=True, help="Estimates: Langevin chains, one sample each."),
    click.option("--steps", type=int, default=4000, show_default=True, help="Estimates: steps of each chain."),
    click.option(
        "--step-size", type=float, help="Estimates: step (default: 0.02 in units of the support's variance per feature)."
    ),
    click.option("--metropolis", is_flag=True, help="Estimates: correct every step, for exactness."),
    click.option("--epochs", type=int, default=500, show_default=True, help="Estimates: epochs of the variational network."),
    click.option("--chain-seed", type=int, default=0, show_default=True, help="Estimates: seed of chains and network. It protects nothing, and has nothing to do with the noise."),
)  # fmt: skip


def estimate_options(function: Command) -> Command:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def estimation(
    distance: str,
    *,
    between: str = "populations",
    sampling: str = "seen",
    support: str,
    box: float | None,
    moments: Path | None,
    chains: int,
    steps: int,
    step_size: float | None,
    metropolis: bool,
    epochs: int,
    chain_seed: int,
) -> Any:
    """The distance the user wrote: declared, or to be estimated in the way the options say."""
    from expunge.data.files import read_moments
    from expunge.distance import Estimation, parse_distance, parse_route
    from expunge.errors import OptionError

    route = parse_route(distance)
    if route is None:
        usual = {"support": "ball", "chains": 1000, "steps": 4000, "epochs": 500, "metropolis": False, "chain_seed": 0}
        given = {"support": support, "chains": chains, "steps": steps, "epochs": epochs, "metropolis": metropolis}
        given |= {"chain_seed": chain_seed, "box": box, "moments": moments, "step_size": step_size}
        changed = [name for name, value in given.items() if value != usual.get(name)]
        if changed:
            raise OptionError(
                ", ".join("--" + name.replace("_", "-") for name in changed) + f" with distance {distance}",
                "only an estimated distance uses them",
                "Leave them out, or use --distance estimate.",
            )
        return parse_distance(distance, between=between, sampling=sampling)
    if between != "populations":
        raise OptionError(
            f"--between {between} with an estimated distance", "estimates are between populations", "Leave it out."
        )
    mean, covariance = (None, None) if moments is None else read_moments(moments)
    return Estimation(
        route=route,
        support=support,
        chains=chains,
        steps=steps,
        step_size=step_size,
        metropolis=metropolis,
        box=box,
        mean=mean,
        covariance=covariance,
        epochs=epochs,
        seed=chain_seed,
        sampling=sampling,
    )
