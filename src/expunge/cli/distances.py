"""The distance a user writes for a certificate: declared, or the file of an estimate made earlier."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

ESTIMATED = re.compile(r"(?P<file>.+\.npz)(?::(?P<route>.*))?", re.IGNORECASE)


def stated_distance(text: str, *, between: str = "populations", sampling: str = "strict") -> Any:
    """`chi2:0.1` as a Distance; `estimate.npz` or `estimate.npz:kl`, which `expunge distance` wrote, as an estimate.

    An estimate is looked at before a certificate rests on it, so none is made here on the way. Whether classes are
    matched is said where it is used.
    """
    from expunge.distance import parse_distance, parse_route
    from expunge.errors import OptionError

    route = parse_route(text)
    if route is not None:
        raise OptionError(
            f"--distance {text.strip()} names no estimate",
            "a certificate rests on an estimate that was made and looked at before",
            "Run expunge distance --out estimate.npz first, then give --distance estimate.npz"
            + (":kl." if route == "kl" else "."),
        )
    saved = ESTIMATED.fullmatch(text.strip())
    if saved is None:
        return parse_distance(text, between=between, sampling=sampling)
    if between != "populations":
        raise OptionError(
            f"--between {between} with an estimated distance", "estimates are between populations", "Leave it out."
        )
    from expunge.estimate.source import read_estimate

    estimate = read_estimate(Path(saved["file"]))
    chosen = estimate.wanted.route if saved["route"] is None else saved["route"]
    return replace(estimate, wanted=replace(estimate.wanted, route=chosen, sampling=sampling, matched=False))
