"""What methods are compared on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.shared.paper_noise import PaperNoise
from expunge.errors import DataError, ModelError
from expunge.evaluate.case import Case, make_case
from expunge.evaluate.methods import GivenModel, UnlearnMinus
from expunge.model import from_matrix


def test_what_does_not_fit_together_is_refused(case: Case) -> None:
    with pytest.raises(DataError, match="surrogate"):
        UnlearnMinus(PaperNoise()).run(case)
    with pytest.raises(DataError, match="trained on 900"):
        make_case(replace(case.splits, retain=case.splits.forget), trained=case.trained)
    with pytest.raises(ModelError, match="l2 and max_norm"):
        make_case(case.splits)
    with pytest.raises(ModelError, match="record"):
        make_case(case.splits, trained=from_matrix(case.weights, bias=False, dtype=torch.float64))
    record = replace(case.record, bias=True, free_bias=True)
    with pytest.raises(ModelError, match=r"free bias.*without --free-bias"):
        make_case(case.splits, trained=replace(case.trained, record=record))
    with pytest.raises(ModelError, match="shape"):
        GivenModel("odd", from_matrix(torch.zeros(3, 3), bias=False, dtype=torch.float64)).run(case)
