"""Noise as for so many rows: rehearsed on surrogate rows, before anybody asks and whoever asks.

Groups of that many surrogate rows are drawn at random; the one whose gradients together are longest is forgotten on
trial, up to the noise, which is not drawn. The scale that it needs, with a margin and rounded up
to a power of two, is the policy. Rows that ask to leave play no part in it, so the noise says nothing of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from expunge.bounds.scale import EXACTLY, LARGEST_SCALE, POLICY, REHEARSAL, Scale, level_above
from expunge.errors import DataError, OptionError, VacuousClaim
from expunge.evidence import Measurement, foresee
from expunge.heads import Rows, RowSet
from expunge.heads.rows import evenly
from expunge.request.request import Request
from expunge.runtime.progress import Progress, silent

GROUPS = 64  # drawn, of which the one with the longest gradient is rehearsed
MARGIN = 1.5  # rows that ask may need more than those rehearsed with; rounding up adds to it
MOST_ROWS = 65_536  # of the surrogate, to draw from

Measure = Callable[..., Measurement]  # `mechanism.measure`


def set_noise(request: Request, measure: Measure, *, progress: Progress = silent, seed: int | None = None) -> Request:
    """The request with its noise a number, where it was to be as for so many rows; `measure` is the mechanism's."""
    asked = request.promise.noise
    if asked.kind != REHEARSAL:
        return request
    if request.distance.matched:
        raise OptionError(
            f"noise as for {asked.rows} rows, with matched classes",
            "the weights of surrogate rows follow from who leaves, so a rehearsal now would too",
            "Set the noise as a number before anybody asks: expunge plan recommends one, a desk rehearses when opened.",
        )
    scale = Scale(POLICY, rehearsed_scale(request, asked.rows, measure, progress=progress, seed=seed), asked.rows)
    return replace(request, promise=replace(request.promise, noise=scale))


def rehearsed_scale(
    request: Request, n_rows: int, measure: Measure, *, progress: Progress = silent, seed: int | None = None
) -> float:
    """The scale for forgetting that many rows from this model, whoever they are; `seed` fixes the draw for tests."""
    trial, measured = rehearse(request, n_rows, measure, progress=progress, seed=seed)
    scale = scale_of(trial, measured)
    if scale is None:
        raise VacuousClaim(
            f"the bound for {n_rows:,} surrogate rows is infinite, or their noise is",
            "noise as for so many rows needs a finite one",
            "Rehearse with fewer rows, or use a larger surrogate.",
        )
    return scale


def rehearse(
    request: Request, n_rows: int, measure: Measure, *, progress: Progress = silent, seed: int | None = None
) -> tuple[Request, Measurement]:
    """A request to forget that many surrogate rows, measured as if it had been asked."""
    if 2 * n_rows > min(request.n_surrogate, request.n_source):
        raise DataError(
            f"noise as for {n_rows:,} rows, with {request.n_surrogate:,} surrogate rows and a source of "
            f"{request.n_source:,}",
            "a rehearsal forgets at most half of either",
            "Rehearse with fewer rows, or set the noise as a number.",
        )
    series = request.promise.series
    afresh = None if series is None else replace(series, past=None)
    promise = replace(request.promise, noise=EXACTLY, force=True, series=afresh)
    trial = replace(request, promise=promise, forget=_longest(request, n_rows, seed))
    return trial, measure(trial, progress=progress, seed=seed)


def scale_of(trial: Request, measured: Measurement) -> float | None:
    """The scale that a rehearsal recommends, at the request's epsilon and delta; None where there is none."""
    _, derived = foresee(trial, measured)
    scale = level_above(MARGIN * derived.required)
    return scale if scale <= LARGEST_SCALE else None


def _longest(request: Request, n_rows: int, seed: int | None) -> Any:
    """Of some groups of surrogate rows the one with the longest gradient: what is hardest to hide."""
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63) if seed is None else seed)
    surrogate = request.surrogate
    if isinstance(surrogate, RowSet):
        if surrogate.n_mine != len(surrogate):
            raise DataError(
                f"noise as for {n_rows:,} rows, with a surrogate shared out among processes",
                "a rehearsal needs all its rows in one",
                "Rehearse in one process (expunge plan), then set the noise as the number it recommends.",
            )
        kept = evenly(surrogate, max(MOST_ROWS, n_rows))
        surrogate = replace(kept, features=kept.features.double())
    groups = [_taken(surrogate, torch.randperm(len(surrogate), generator=generator)[:n_rows]) for _ in range(GROUPS)]
    lengths = [float(request.head.gradient(request.weights, group).norm()) for group in groups]
    return groups[max(range(GROUPS), key=lengths.__getitem__)]


def _taken(rows: Any, chosen: torch.Tensor) -> Any:
    if isinstance(rows, Rows):
        where = chosen.to(rows.features.device)
        return Rows(rows.features[where], rows.labels[where])
    return rows[chosen]
