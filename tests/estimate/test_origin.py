"""An estimate says nothing of another model, and its KL nothing of another surrogate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from expunge import train, unlearn
from expunge.distance import Estimation
from expunge.errors import DataError, ModelError
from expunge.estimate.source import SourceEstimate

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = Estimation(support="ball", chains=200, steps=400, step_size=0.005, epochs=3)
OPTIONS: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-3, "force": True, "insecure_test_seed": 3}


def test_samples_serve_any_surrogate_the_kl_only_its_own(digits: dict[str, Any], estimate: SourceEstimate) -> None:
    X, y = digits["surrogate"]
    fewer = (X[:600], y[:600])
    unlearn(digits["model"], digits["forget"], fewer, distance=estimate, **OPTIONS)
    by_kl = replace(estimate, wanted=replace(QUICK, route="kl"))
    with pytest.raises(DataError, match="KL is that of another surrogate"):
        unlearn(digits["model"], digits["forget"], fewer, distance=by_kl, **OPTIONS)
    with pytest.raises(DataError, match="KL is that of another surrogate"):
        unlearn(digits["model"], digits["forget"], (X, y), distance=by_kl, match_classes=True, **OPTIONS)
    with pytest.raises(DataError, match="has no KL"):
        unlearn(digits["model"], digits["forget"], (X, y), distance=replace(by_kl, kl=None), **OPTIONS)


def test_an_estimate_of_another_model_is_refused(digits: dict[str, Any], estimate: SourceEstimate) -> None:
    other = train(*digits["source"], l2=0.03, max_norm=1.0, bias=True)
    with pytest.raises(ModelError, match=r"made of another model \(weights"):
        unlearn(other, digits["forget"], digits["surrogate"], distance=estimate, **OPTIONS)
    longer = replace(digits["model"], record=replace(digits["model"].record, max_norm=2.0))
    with pytest.raises(ModelError, match=r"made of another model \(max_norm 1\.0\)"):
        unlearn(longer, digits["forget"], digits["surrogate"], distance=estimate, **OPTIONS)
