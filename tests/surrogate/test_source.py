"""The source itself: measured, not believed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import expunge
from asking import asked
from expunge.certificate.claim import Fact
from expunge.mechanism import gather, measure
from expunge.surrogate.evidence import SourceEvidence
from expunge.train import train


def test_rows_that_are_not_the_source_are_not_taken_for_it(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    other = np.concatenate([x[:299], x[299:] + 0.5])
    with pytest.raises(expunge.DataError, match="not the rows"):
        expunge.unlearn(model, parts["forget"], (other, y), epsilon=1.0, delta=1e-3, distance="source", force=True)


def test_the_source_itself_gives_a_tiny_bound_that_rests_on_its_being_the_source(parts) -> None:
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    certificate = expunge.unlearn(
        model, parts["forget"], parts["source"], epsilon=1.0, delta=1e-3, distance="source"
    ).certificate
    assert certificate.status == "conditional"
    assert any("the source's own" in sentence for sentence in certificate.content["assumptions"])
    assert certificate.total < 1e-6


def test_what_is_charged_for_rounding_is_of_the_sums_that_were_made(parts) -> None:
    """The change over the WHOLE source, before and after, and the forget rows' gradient after."""
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    request = asked(model, (x[:140], y[:140]), (x, y), epsilon=1.0, delta=1e-3, distance="source", force=True)
    measured = measure(request)
    head, before, after = request.head, request.weights, request.weights + measured.step.update
    charged = sum(300 * head.rounding(at, request.surrogate) for at in (before, after))
    charged += 140 * head.rounding(after, request.forget)
    assert measured.facts["rounding"].value == pytest.approx(charged, rel=1e-12, abs=0.0)


def evidence_of(parts, **options):
    model = train(*parts["source"], l2=0.05, max_norm=2.0)
    x, y = parts["source"]
    chosen = {"epsilon": 1.0, "delta": 1e-3, "distance": "source", "force": True, **options}
    return gather(asked(model, (x[:4], y[:4]), (x, y), **chosen))


def test_the_forget_rows_are_charged_at_the_weights_after(parts) -> None:
    """An update as long as the weights: before, after and the other way round are far apart."""
    evidence = evidence_of(parts)
    request = evidence.request
    step = SimpleNamespace(update=request.weights.clone())
    charged = sum(300 * request.head.rounding(at, request.surrogate) for at in (request.weights, 2 * request.weights))
    charged += 4 * request.head.rounding(2 * request.weights, request.forget)
    assert evidence.rounding(step).value == pytest.approx(charged, rel=1e-12, abs=0.0)


@pytest.mark.parametrize(("above", "fine"), [(0.9e-6, True), (1.1e-6, False)])
def test_a_gradient_a_millionth_above_the_recorded_one_is_the_source_s_and_no_more(parts, above, fine) -> None:
    known = evidence_of(parts).request
    head, weights = known.head, known.weights + 1e-3  # so that there is a gradient
    lost = head.rounding(weights, known.surrogate)
    measured = float(head.gradient(weights, known.surrogate).norm()) + lost

    def found(residual: float, provenance: str) -> Fact:
        record = SimpleNamespace(residual=residual, provenance=provenance)
        request = SimpleNamespace(head=head, weights=weights, surrogate=known.surrogate, record=record)
        return SourceEvidence(request).training_residual()

    recorded = (measured - 2 * lost) / (1 + above)
    found((measured - 1.5 * lost) / (1 + 1e-6), "measured")
    with pytest.raises(expunge.DataError, match="not the rows the model was trained on"):
        found((measured - 2.5 * lost) / (1 + 1e-6), "measured")
    if fine:
        assert found(recorded, "measured") == Fact(measured, "measured")
    else:
        with pytest.raises(expunge.DataError, match="not the rows the model was trained on"):
            found(recorded, "measured")
    assert found(0.0, "declared") == Fact(measured, "measured"), "what was declared is measured, not compared"


@pytest.mark.parametrize(
    ("residual", "gradient", "fine"),
    [
        (1.0, 1 + 1e-6, True),
        (1.0, math.nextafter(1 + 1e-6, 2.0), False),
        (0.0, 0.0, True),
        (0.0, 1e-9, False),
    ],
)
def test_the_gradient_at_training_and_a_millionth_more_is_the_limit(residual, gradient, fine) -> None:
    """With arithmetic that loses nothing, exactly; also where training left nothing at all."""
    head = SimpleNamespace(rounding=lambda *_: 0.0, gradient=lambda *_: torch.tensor([gradient], dtype=torch.float64))
    record = SimpleNamespace(residual=residual, provenance="measured")
    evidence = SourceEvidence(SimpleNamespace(head=head, weights=None, surrogate=None, record=record))
    if fine:
        assert evidence.training_residual() == Fact(gradient, "measured")
    else:
        with pytest.raises(expunge.DataError, match="not the rows the model was trained on"):
            evidence.training_residual()
