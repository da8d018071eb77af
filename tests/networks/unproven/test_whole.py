"""Any module: curvature products against autograd's, one step against a dense solve, and a certificate that claims nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from expunge import DataError, ModelError, OptionError, verify
from expunge.bounds import PaperConstants
from expunge.heads.network import Examples, ModuleObjective
from expunge.mechanism import measure
from expunge.networks.module import module_request, unlearn_module
from expunge.request.promise import Promise
from expunge.runtime.arrays import copy, equal, norm, zeros
from expunge.solve.linear import Ending
from expunge.solve.newton import SurrogateEquation, newton_step
from small_networks import examples, trained


@pytest.mark.parametrize("curvature", ["gauss-newton", "hessian"])
def test_the_step_is_algorithm_one_and_moves_toward_retraining(curvature: str) -> None:
    objective = ModuleObjective(trained(), l2=0.1, curvature=curvature)
    inputs, labels = examples(60)
    source, forget, retain = (Examples(inputs[part], labels[part]) for part in (slice(60), slice(2), slice(2, 60)))
    gradient = objective.gradient(objective.weights, forget)
    equation = SurrogateEquation(objective, objective.weights, forget, source, 60)
    update = newton_step(equation, single=True, safeguarded=False).update
    basis = torch.eye(objective.n_parameters, dtype=torch.float64)
    matrix = torch.stack(
        [
            60 * objective.product(objective.weights, d, source) - 2 * objective.product(objective.weights, d, forget)
            for d in basis
        ]
    )
    torch.testing.assert_close(update, torch.linalg.solve(matrix, 2 * gradient), atol=1e-6, rtol=1e-5)
    before = norm(objective.gradient(objective.weights, retain))
    assert norm(objective.gradient(objective.weights + update, retain)) < 0.5 * before


def test_the_certificate_is_an_estimate_with_its_reason() -> None:
    module = trained().float()
    stored = {name: copy(value) for name, value in module.state_dict().items()}
    inputs, labels = examples(60)
    result = unlearn_module(
        module, (inputs[:2], labels[:2]), (inputs, labels), n_source=60, l2=0.1, epsilon=0.9, delta=1e-2, distance="tv:0.01",
        damping=0.01,
    )  # fmt: skip
    content = result.certificate.content
    assert content["status"] == "estimated"
    assert "not convex" in content["notes"][0]
    assert any(sentence.startswith("FALSE for this model") for sentence in content["assumptions"])
    assert all(check.passed for check in verify(result.certificate))
    assert all(equal(value, stored[name]) for name, value in module.state_dict().items())
    assert not equal(result.model[0].weight, module[0].weight)
    assert result.model[0].weight.dtype == torch.float32
    assert result.model(inputs.float()).shape == (60, 3)


@pytest.mark.parametrize("distance", ["source", "tv:0.01"])
def test_without_a_damping_one_percent_is_left(distance: str) -> None:
    """The certificate has what was left; with the source at hand the retained rows' gradient falls with it."""
    module, (inputs, labels) = trained(), examples(60)
    standing = (inputs, labels) if distance == "source" else examples(60, seed=2)
    request = module_request(
        module, (inputs[:6], labels[:6]), standing,
        Promise(0.9, 1e-2, distance, bound="paper", constants=PaperConstants.of_the_experiments(0.1)),
        n_source=60, l2=0.1,
    )  # fmt: skip
    step = measure(request).step
    assert step.ending is Ending.REACHED
    assert step.residual < 0.01 * step.residual_at_start
    described = request.subject.describe_step(step, "newton")
    assert (described["residual"], described["iterations"]) == (step.residual, step.iterations)
    retain, head = Examples(inputs[6:], labels[6:]), request.head
    left, before = (norm(head.gradient(head.weights + u, retain)) for u in (step.update, zeros(step.update)))
    assert distance != "source" or left < 0.011 * before


def test_running_statistics_are_noted() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9), nn.Linear(9, 3))
    inputs, labels = examples(60)
    result = unlearn_module(
        module, (inputs[:2], labels[:2]), (inputs, labels), n_source=60, l2=0.1, epsilon=0.9, delta=1e-2, distance="same",
        force=True,
    )  # fmt: skip
    assert any("running statistics" in note for note in result.certificate.content["notes"])


def test_what_is_refused() -> None:
    module, (inputs, labels) = trained(), examples(60)
    options = {"n_source": 60, "l2": 0.1, "epsilon": 0.9, "delta": 1e-2, "distance": "same"}
    with pytest.raises(DataError, match=r"x\.float\(\)"):
        unlearn_module(module, (inputs[:2].to(torch.int64), labels[:2]), (inputs, labels), **options)
    with pytest.raises(DataError, match="does not take"):
        unlearn_module(module, (inputs[:2, :, :2], labels[:2]), (inputs, labels), **options)
    with pytest.raises(DataError, match="at least one row must be retained"):
        unlearn_module(module, (inputs, labels), (inputs, labels), **options)
    with pytest.raises(OptionError, match="3 outputs"):
        unlearn_module(module, (inputs[:2], labels[:2]), (inputs, labels), classes=(1, 2), **options)
    with pytest.raises(OptionError, match="damping"):
        unlearn_module(module, (inputs[:2], labels[:2]), (inputs, labels), damping=-1.0, **options)
    with pytest.raises(OptionError, match="curvature"):
        ModuleObjective(module, l2=0.1, curvature="newton")
    with pytest.raises(ModelError, match="running statistics"):
        ModuleObjective(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), l2=0.1)
    with pytest.raises(ModelError, match="no parameters"):
        ModuleObjective(nn.Flatten(), l2=0.1)
