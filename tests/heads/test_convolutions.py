"""Convolutions as matrix products: the same outputs and derivatives, the same names, and nothing else touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import jvp, vjp, vmap

from expunge.heads.convolutions import UnfoldedConv2d, unfold_convolutions

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
