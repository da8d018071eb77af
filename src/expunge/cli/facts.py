"""Options that stand for a training record, shared by the commands that take a model without one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from expunge.cli.sections import section

Function = TypeVar("Function", bound=Callable[..., Any])

_options = section(
    "A model without a record",
    click.option("--n-source", type=int, help="Number of training rows."),
    click.option("--l2", type=float, help="The lambda of (lambda/2)||w||^2 beside the mean loss."),
    click.option("--max-norm", type=float, help="Largest norm of a training row."),
    click.option("--loss", help="softmax or ridge."),
    click.option("--class-counts", help="Training rows of each class, e.g. 120,80."),
    click.option("--training-residual", type=float, help="Norm of the training gradient at these weights."),
)


def record_facts(function: Function) -> Function:
    """Add the options and hand them over as one `declared`; goes below `reporting`, so that errors are reported."""

    @functools.wraps(function)
    def wrapper(
        *args: Any,
        n_source: int | None,
        l2: float | None,
        max_norm: float | None,
        loss: str | None,
        class_counts: str | None,
        training_residual: float | None,
        **options: Any,
    ) -> Any:
        from expunge.request.declared import Declared

        counts = whole_numbers(class_counts)
        declared = Declared(n_source, l2, loss, max_norm, training_residual, class_counts=counts)
        return function(*args, declared=declared, **options)

    decorated: Function = _options(wrapper)  # type: ignore[assignment]
    return decorated


def whole_numbers(text: str | None) -> tuple[int, ...] | None:
    """`120,80` as (120, 80)."""
    from expunge.errors import OptionError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"class counts {text!r}", "whole numbers with commas between are needed", "Write for example 120,80."
        ) from error
