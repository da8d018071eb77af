"""Convolutions as matrix products: the same outputs and derivatives, the same names, and nothing else touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev, jvp, vjp, vmap

from expunge.errors import DataError, ModelError
from expunge.heads.network import (
    Examples,
    ModuleObjective,
    ProductsOnly,
    UnfoldedConv2d,
    class_scores,
    frozen_copy,
    require_real,
    require_running_statistics,
    unfold_convolutions,
)
from small_networks import examples, trained

LAYERS = {
    "plain": nn.Conv2d(3, 4, 3),
    "padded": nn.Conv2d(3, 4, 3, padding=1),
    "strided": nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
    "dilated": nn.Conv2d(3, 4, 3, padding=2, dilation=2),
    "one by one, no bias": nn.Conv2d(3, 4, 1, stride=2, bias=False),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_outputs_and_derivatives_are_the_same(name: str) -> None:
    layer = LAYERS[name].double()
    unfolded = UnfoldedConv2d(layer)
    inputs = torch.randn(
        5, 3, 8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    expected, found = layer(inputs), unfolded(inputs)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), (inputs, layer.weight))
    given = torch.autograd.grad((found * weights).sum(), (inputs, unfolded.weight))
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("name", list(LAYERS))
def test_patches_for_a_gpu_are_the_same(name: str) -> None:
    unfolded = UnfoldedConv2d(LAYERS[name].double())
    inputs, direction = torch.randn(2, 5, 3, 8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, along = jvp(unfolded._unfolded, (inputs,), (direction,))
    found, moved = jvp(unfolded._shifted, (inputs,), (direction,))
    assert torch.equal(found, expected)
    assert torch.equal(moved, along)
    alone = vmap(lambda example: unfolded._shifted(example[None])[0])(inputs)
    assert torch.equal(alone, expected)
    back, wanted = (vjp(patches, inputs)[1](expected)[0] for patches in (unfolded._shifted, unfolded._unfolded))
    torch.testing.assert_close(back, wanted)


def test_only_plain_ones_are_replaced_and_names_stay() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding="same")),
        nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(2, 2, 3, padding=1),
    )
    names = [name for name, _ in module.named_parameters()]
    inputs = torch.randn(2, 2, 9, 9)
    expected = module(inputs)
    found = unfold_convolutions(module)
    torch.testing.assert_close(found(inputs), expected)
    assert [name for name, _ in found.named_parameters()] == names
    kinds = [type(part) for part in found.modules() if isinstance(part, nn.Conv2d | UnfoldedConv2d)]
    assert kinds == [UnfoldedConv2d, nn.Conv2d, nn.Conv2d, nn.Conv2d, UnfoldedConv2d]
    assert isinstance(unfold_convolutions(nn.Conv2d(1, 1, 1)), UnfoldedConv2d)


def test_a_layer_used_twice_stays_one() -> None:
    shared = nn.Conv2d(2, 2, 3, padding=1)
    found = unfold_convolutions(nn.Sequential(shared, nn.ReLU(), shared))
    assert found[0] is found[2]
    assert len(list(found.parameters())) == 2


def test_a_layer_with_hooks_is_left_as_it_is() -> None:
    """Hooks change what goes in or comes out, or, as in spectral_norm, make the weight from other parameters."""
    torch.manual_seed(0)
    before, after = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)
    before.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    after.register_forward_hook(lambda _, given, found: found.sin())
    module = nn.Sequential(before, after, nn.utils.spectral_norm(nn.Conv2d(2, 2, 3))).eval()
    names = [name for name, _ in module.named_parameters()]
    inputs = torch.randn(2, 2, 9, 9)
    with torch.no_grad():
        expected = module(inputs)
    found = unfold_convolutions(module)
    torch.testing.assert_close(found(inputs), expected)
    assert [name for name, _ in found.named_parameters()] == names


def test_what_a_network_asks_of_its_layer_is_still_there() -> None:
    layer = nn.Conv2d(3, 4, (3, 2), stride=2, padding=1)
    found = unfold_convolutions(nn.Sequential(layer))[0]
    for name in ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"):
        assert getattr(found, name) == getattr(layer, name)


def test_a_frozen_copy_is_a_copy_in_float64_that_nothing_trains() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten(), nn.Linear(8, 3)).train()
    inputs = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    copied = frozen_copy(module, "cpu")
    assert module.training
    assert all(part.dtype == torch.float32 and part.requires_grad for part in module.parameters())
    assert not copied.training
    assert all(part.dtype == torch.float64 and not part.requires_grad for part in copied.parameters())
    assert isinstance(copied[0], UnfoldedConv2d)
    torch.testing.assert_close(copied(inputs.double()), module.eval().double()(inputs.double()))


def test_an_output_that_depends_on_its_batch_is_refused() -> None:
    require_running_statistics(nn.BatchNorm1d(3))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm1d\) keeps no running statistics"):
        require_running_statistics(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_inputs_without_derivatives_are_refused(dtype: torch.dtype) -> None:
    require_real(torch.zeros(2))
    with pytest.raises(DataError, match="real numbers are needed"):
        require_real(torch.zeros(2, dtype=dtype))


def failing(inputs: Tensor) -> Tensor:
    raise KeyError("no such input")


def test_a_network_gives_one_row_of_scores_an_input() -> None:
    linear, inputs = nn.Linear(4, 3), torch.zeros(5, 4)
    assert class_scores(linear, inputs).shape == (5, 3)
    with pytest.raises(DataError, match=r"does not take inputs of shape \(5, 2\)"):
        class_scores(linear, torch.zeros(5, 2))
    with pytest.raises(DataError, match="no such input"):
        class_scores(failing, inputs)
    for odd in (lambda x: x.sum(dim=1), lambda x: x[:-1], lambda x: x[:, :, None]):
        with pytest.raises(ModelError, match="one row of class scores an input"):
            class_scores(odd, inputs)


def test_a_set_of_examples_is_whole_and_unweighted() -> None:
    given = Examples(torch.zeros(7, 2), torch.zeros(7, dtype=torch.int64))
    assert (len(given), given.effective, given.n_scaled, given.has_weights) == (7, 7.0, 0, False)
    value = torch.ones(1)
    assert given.agreed(value) is value
    with pytest.raises(NotImplementedError):
        ProductsOnly(lambda direction: direction).dense()


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
        rows = Examples(inputs, labels)
        products = objective.product(w, direction, rows)
        torch.testing.assert_close(objective.curvature(w, rows).product(direction), products)
        found.append(torch.cat([objective.gradient(w, rows), products]))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


def test_rows_labelled_by_the_network_itself_are_at_their_minimum() -> None:
    """Only the regulariser's gradient is left there, and the Hessian is Gauss-Newton's matrix."""
    exact, curved = (
        ModuleObjective(trained(), l2=0.1, curvature=kind, block=4) for kind in ("gauss-newton", "hessian")
    )
    rows = Examples(*examples(10, seed=2))
    own, w = curved.as_predicted(rows), curved.weights
    assert torch.equal(own.inputs, rows.inputs)
    torch.testing.assert_close(own.labels, curved.outputs(w, rows.inputs).softmax(dim=1))
    torch.testing.assert_close(curved.gradient(w, own), 0.1 * w)
    direction = torch.linspace(-1, 1, len(w), dtype=torch.float64)
    torch.testing.assert_close(curved.product(w, direction, own), exact.product(w, direction, rows))
