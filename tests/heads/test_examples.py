"""What every network, and every example given to one, must be."""

import pytest
import torch
from torch import Tensor, nn

from expunge.errors import DataError, ModelError
from expunge.heads.convolutions import UnfoldedConv2d
from expunge.heads.examples import (
    Examples,
    ProductsOnly,
    class_scores,
    frozen_copy,
    require_real,
    require_running_statistics,
)


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
