"""Any module: curvature products against autograd's, one step against a dense solve, and a certificate that claims nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev

from expunge import DataError, ModelError, OptionError, verify
from expunge.heads.examples import Examples
from expunge.heads.module import ModuleObjective
from expunge.networks.unproven.whole import DAMPINGS, unlearn_module
from expunge.solve.balanced import searched_step
from expunge.solve.equation import SurrogateEquation
from expunge.solve.newton import newton_step


def trained(seed: int = 0) -> nn.Module:
    """One convolutional layer and a linear layer, trained together."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Dropout(), nn.Linear(8, 3)).double().eval()
    inputs, labels = examples(60)
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        loss = loss + 0.05 * sum(value.square().sum() for value in module.parameters())
        loss.backward()
        return loss

    optimiser.step(closure)
    return module


def examples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randn(count, 1, 3, 3, generator=generator, dtype=torch.float64)
    return images + labels[:, None, None, None], labels


@pytest.mark.parametrize("curvature", ["gauss-newton", "hessian"])
def test_products_are_those_of_the_dense_matrices(curvature: str) -> None:
    objective = ModuleObjective(trained(), l2=0.1, curvature=curvature, block=4)
    inputs, labels = examples(10)

    def loss(at: Tensor) -> Tensor:
        return nn.functional.cross_entropy(objective.outputs(at, inputs), labels) + 0.05 * at.square().sum()

    w = objective.weights
    torch.testing.assert_close(objective.gradient(w, Examples(inputs, labels)), jacrev(loss)(w))
    if curvature == "hessian":
        dense = hessian(loss)(w)
    else:
        jacobian = jacrev(lambda at: objective.outputs(at, inputs))(w)
        p = objective.outputs(w, inputs).softmax(dim=1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        dense = torch.einsum("nkp,nkl,nlq->pq", jacobian, middle, jacobian) / 10 + 0.1 * torch.eye(len(w)).double()
    direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
    torch.testing.assert_close(objective.product(w, direction, Examples(inputs, labels)), dense @ direction)


@pytest.mark.parametrize("curvature", ["gauss-newton", "hessian"])
def test_blocks_do_not_matter(curvature: str) -> None:
    """Neither does a block of one example, whose derivatives torch gets wrong for some layers."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
    module(torch.randn(20, 1, 3, 3))
    inputs, labels = examples(7)
    found = []
    for block in (1, 3, 100):
        objective = ModuleObjective(module, l2=0.1, curvature=curvature, block=block)
        w = objective.weights
        direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
        products = objective.product(w, direction, Examples(inputs, labels))
        found.append(torch.cat([objective.gradient(w, Examples(inputs, labels)), products]))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


def test_a_step_that_would_lead_away_is_not_taken() -> None:
    """Several dampings: that with the smallest residual, and no step where all of them raise it."""
    objective = ModuleObjective(trained(), l2=0.1)
    inputs, labels = examples(60)
    source, forget = Examples(inputs, labels), Examples(inputs[:6], labels[:6])
    equation = SurrogateEquation(objective, objective.weights, forget, source, 60)
    steps = [searched_step(equation, (damping,)) for damping in DAMPINGS]
    best = searched_step(equation, DAMPINGS)
    assert best.residual == min(step.residual for step in steps)
    assert best.residual < best.residual_at_start
    assert best.pull in DAMPINGS
    elsewhere = Examples(5.0 * inputs, (labels + 1) % 3)  # a surrogate that has nothing to do with the source
    far = searched_step(SurrogateEquation(objective, objective.weights, forget, elsewhere, 60), DAMPINGS)
    assert far.residual <= far.residual_at_start


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
    before = objective.gradient(objective.weights, retain).norm()
    assert objective.gradient(objective.weights + update, retain).norm() < 0.5 * before


def test_the_certificate_is_an_estimate_with_its_reason() -> None:
    module = trained().float()
    stored = {name: value.clone() for name, value in module.state_dict().items()}
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
    assert all(torch.equal(value, stored[name]) for name, value in module.state_dict().items())
    assert not torch.equal(result.model[0].weight, module[0].weight)
    assert result.model[0].weight.dtype == torch.float32
    assert result.model(inputs.float()).shape == (60, 3)


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
    with pytest.raises(DataError, match="at least one must be retained"):
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
