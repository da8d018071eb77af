"""Products of a linearised network against a dense Jacobian."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from expunge import DataError, ModelError, OptionError
from expunge.heads.tangent import NETWORK_ROUNDOFFS, Tangent, TangentRows, last_parameters


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Dropout(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)
    )  # fmt: skip
    made(torch.randn(20, 1, 3, 3))
    return made


def examples(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 3, 3, generator=generator), torch.arange(count) % 3


def dense(module: nn.Module, names: tuple[str, ...], inputs: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """Scaled outputs and Jacobian (rows x K x P) by autograd, one row at a time."""
    copied = network().double().eval() if module is None else module
    known = {name: value.detach() for name, value in copied.named_parameters()}
    blocks = []
    for example in inputs.double():
        found = jacrev(lambda at, x=example: functional_call(copied, {**known, **at}, (x[None],))[0])(
            {name: known[name] for name in names}
        )
        blocks.append(torch.cat([found[name].reshape(3, -1) for name in names], dim=1))
    jacobian = torch.stack(blocks)
    norms = jacobian.flatten(1).norm(dim=1)
    scale = max_norm / norms.clamp(min=max_norm)
    return copied(inputs.double()).detach() * scale[:, None], jacobian * scale[:, None, None]


@pytest.mark.parametrize("last", [None, 2, 4])
@pytest.mark.parametrize("max_norm", [0.7, 3.0, 1e3])
def test_products_are_those_of_the_dense_jacobian(last: int | None, max_norm: float) -> None:
    module = network()
    names = tuple(name for name, _ in module.named_parameters()) if last is None else last_parameters(module, last)
    objective = Tangent(module, l2=0.1, max_norm=max_norm, names=names, block=4)
    assert module.training, "the caller's network is not touched"
    inputs, labels = examples(11)
    rows = objective.rows(inputs, labels)
    offsets, jacobian = dense(network().double().eval(), names, inputs, max_norm)
    torch.testing.assert_close(rows.offsets, offsets)
    torch.testing.assert_close(rows.lengths, jacobian.flatten(1).norm(dim=1))
    assert float(rows.lengths.max()) <= max_norm
    generator = torch.Generator().manual_seed(2)
    v, u = (torch.randn(objective.n_parameters, dtype=torch.float64, generator=generator) for _ in range(2))
    torch.testing.assert_close(objective.features_times(v, rows), jacobian @ v)
    residual = offsets + jacobian @ v - (nn.functional.one_hot(labels, 3).double() * 2 - 1)
    torch.testing.assert_close(
        objective.gradient(v, rows), torch.einsum("nkp,nk->p", jacobian, residual) / 11 + 0.1 * v
    )
    each = torch.einsum("nkp,nk->np", jacobian, jacobian @ u)
    torch.testing.assert_close(objective.change_mean(u, u, rows), each.mean(dim=0))
    torch.testing.assert_close(objective.product(u, rows), each.mean(dim=0) + 0.1 * u)
    difference = objective.gradient(v + u, rows) - objective.gradient(v, rows)
    torch.testing.assert_close(difference, objective.product(u, rows))
    assert float(each.norm(dim=1).max()) <= objective.change_sup(u)


def test_a_parameter_in_two_places_counts_once_with_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.tanh(self.one(x)))

    torch.manual_seed(0)
    module = Tied().double()
    objective = Tangent(module, l2=1.0, max_norm=1e9)
    assert objective.names == ("one.weight", "one.bias", "two.bias")
    direction = torch.randn(objective.n_parameters, dtype=torch.float64)
    inputs, step = torch.randn(4, 3, dtype=torch.float64), 1e-6
    pieces = direction.split([9, 3, 3])

    def moved(by: float) -> Tensor:
        fresh = Tied().double()
        with torch.no_grad():
            fresh.one.weight.copy_(module.one.weight + by * pieces[0].reshape(3, 3))
            fresh.one.bias.copy_(module.one.bias + by * pieces[1])
            fresh.two.bias.copy_(module.two.bias + by * pieces[2])
            return fresh(inputs)

    torch.testing.assert_close(
        objective.push(inputs, direction), (moved(step) - moved(-step)) / (2 * step), atol=1e-7, rtol=1e-6
    )


def test_a_lone_example_has_its_own_derivatives() -> None:
    """Batch normalisation after a transpose: with one example torch's own derivatives are wrong in some releases."""

    class Turned(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).reshape(inputs.shape)

    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 2, 2), Turned(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    made(torch.randn(20, 1, 3, 3))
    objective = Tangent(made, l2=0.1, max_norm=1e9)
    inputs = examples(3)[0].double()
    cotangents = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    each = objective.pull_each(inputs, cotangents)
    torch.testing.assert_close(objective.pull(inputs, cotangents), each.sum(dim=0))
    torch.testing.assert_close(objective.pull(inputs[:1], cotangents[:1]), each[0])


def test_what_is_refused() -> None:
    objective = Tangent(network(), l2=0.1, max_norm=1.0)
    inputs, labels = examples(4)
    with pytest.raises(DataError, match=r"x\.float\(\) / 255"):
        objective.rows(inputs.to(torch.uint8), labels)
    with pytest.raises(DataError, match="does not take"):
        objective.rows(inputs[:, :, :2], labels)
    with pytest.raises(DataError, match="a label each"):
        objective.rows(inputs, labels[:3])
    with pytest.raises(OptionError, match="nothing"):
        Tangent(network(), l2=0.1, max_norm=1.0, names=["nothing"])
    with pytest.raises(OptionError, match="from 1 to 8"):
        last_parameters(network(), 9)
    with pytest.raises(ModelError, match="running statistics"):
        Tangent(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), l2=0.1, max_norm=1.0)
    with pytest.raises(ModelError, match="class scores"):
        Tangent(nn.Sequential(nn.Conv2d(1, 2, 2)), l2=0.1, max_norm=1.0).rows(inputs, labels)
    assert isinstance(objective.rows(inputs, labels)[:2], TangentRows)


class Hardwired(nn.Module):
    """What evaluation mode does not switch off."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer, self.last = kind, nn.Conv2d(1, 2, 2), nn.Linear(2, 3)
        self.attention = nn.MultiheadAttention(2, 2, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.layer(inputs)
        if self.kind == "batch":
            found = nn.functional.batch_norm(found, None, None, training=True).relu()
        elif self.kind == "dropout":
            found = nn.functional.dropout(found, 0.5, training=True)
        elif self.kind == "attribute":
            found = found * inputs.nothing
        elif self.kind == "attention":  # its fast path has no forward derivative
            turned = found.flatten(2).transpose(1, 2)
            return self.last(self.attention(turned, turned, turned)[0].mean(dim=1))
        return self.last(found.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("batch", ModelError, "alone in its batch"),
        ("dropout", ModelError, "drawn at random"),
        ("attention", ModelError, "forward AD"),
        ("attribute", DataError, "nothing"),
    ],
)
def test_networks_whose_jacobian_is_not_one_an_example(kind: str, error: type[Exception], match: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(error, match=match):
        Tangent(Hardwired(kind), l2=0.1, max_norm=1.0).rows(*examples(4))


def deep(kind: str) -> tuple[nn.Module, Tensor]:
    """A network of many layers with sane statistics, and inputs for it."""
    torch.manual_seed(3)
    if kind == "linear":
        layers = [part for _ in range(24) for part in (nn.Linear(48, 48), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(48, 5)), torch.randn(64, 48)
    body = [part for _ in range(8) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    made = nn.Sequential(nn.Conv2d(3, 8, 3), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    inputs = torch.randn(64, 3, 8, 8)
    made.train()(inputs)
    return made.eval(), inputs


def test_rounding_by_hand() -> None:
    objective = Tangent(network(), l2=0.5, max_norm=2.0)
    inputs, labels = examples(7)
    v = torch.randn(objective.n_parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    offsets, jacobian = dense(network().double().eval(), objective.names, inputs, 2.0)
    targets = nn.functional.one_hot(labels, 3).double() * 2 - 1
    longest = float((offsets + jacobian @ v - targets).norm(dim=1).max())
    length = float(v.norm())
    lost = 2.0 * (7 + NETWORK_ROUNDOFFS) * (longest + 2.0 * length) + 4 * 0.5 * length
    found = objective.rounding(v, objective.rows(inputs, labels))
    assert found == pytest.approx(2.0**-53 * lost, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("kind", ["linear", "convolutions"])
def test_a_pass_through_a_network_loses_far_less_than_is_charged(kind: str) -> None:
    """The same products in float32, where the error can be seen, in units of that type's own roundoff.

    How many roundoffs are lost depends on the order of operations, not on their precision. What is charged for a row's gradient is
    `NETWORK_ROUNDOFFS` units of `max_norm (largest residual + max_norm ||v||)`; see `Tangent.rounding`.
    """
    module, inputs = deep(kind)
    exact = Tangent(module, l2=0.1, max_norm=1.0)
    rows = exact.rows(inputs, torch.arange(64) % 5)
    coarse = Tangent(module, l2=0.1, max_norm=1.0)
    coarse.module = coarse.module.float()
    coarse.at = {name: value.float() for name, value in coarse.at.items()}
    v = torch.randn(exact.n_parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    v = v.float().double()
    residuals = exact.predictions(v, rows) - exact.targets(rows, slice(None))
    scales, values = rows.scales[:, None], rows.inputs.double()
    gradients = exact.pull_each(values, scales * residuals)
    found = scales.float() * (coarse.outputs(inputs) + coarse.push(inputs, v.float()))
    found = found - exact.targets(rows, slice(None)).float()
    rough = coarse.pull_each(inputs, scales.float() * found).double()
    charged = residuals.norm(dim=1).max() + v.norm()
    lost = float((rough - gradients).norm(dim=1).max() / charged) / 2.0**-24
    assert lost < NETWORK_ROUNDOFFS / 64, f"{lost:.1f} roundoffs"
