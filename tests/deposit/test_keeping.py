"""Keeping a deposit: of arrays, of streams, of rows that are not the source's."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from expunge.deposit.file import read_deposit
from expunge.deposit.make import make_deposit
from expunge.errors import DataError, ModelError, OptionError
from expunge.model import LinearModel
from expunge.request.execution import Execution
from expunge.request.promise import Declared
from expunge.rows import stream
from expunge.rows.streams import StreamedRows
from expunge.runtime.group import Group
from expunge.train import train
from expunge.unlearn import unlearn
from reference_cases import together
from small_deposit import N_SOURCE, assert_same, kept, rows, source, trained, write_files

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_anchor_is_the_optimum_and_noise_and_says_so() -> None:
    deposit = kept().deposit
    record = deposit.record
    assert record.n_source == deposit.numbers.n_rows == N_SOURCE
    assert (record.residual, record.noised) == (None, True)
    assert float((kept().optimum - trained().matrix()).norm()) < 1e-8
    away = (deposit.anchor - kept().optimum) @ deposit.shape[0]
    assert 0.3 < float(away.norm()) / (deposit.numbers.anchor_noise * math.sqrt(10.0)) < 2.0  # 15 weights, 5 common
    stored = kept().model(torch.float64)
    assert stored.record is not None
    assert stored.record.residual is not None
    assert stored.record.residual < 1e-12


def test_a_stream_gives_what_arrays_give() -> None:
    features, labels = source()
    cuts = [slice(0, 150), slice(150, 151), slice(151, N_SOURCE)]
    blocks = stream(lambda: ((features[part], labels[part]) for part in cuts))
    streamed = make_deposit(trained(), blocks, seed=3)
    assert isinstance(streamed.rows, StreamedRows)
    assert_same(kept().deposit, streamed.deposit)


@pytest.mark.slow  # so does the command, in a group, among those that are not
def test_a_group_gives_what_one_process_gives(tmp_path: Path) -> None:
    """The driver reads small blocks, so that both processes have several."""
    write_files(tmp_path)
    (tmp_path / "rows").mkdir()
    for name, array in zip("Xy", source(), strict=True):
        np.save(tmp_path / "rows" / f"{name}.npy", array)
    driver = Path(__file__).parents[2] / "group_driver.py"
    together([sys.executable, str(driver), str(tmp_path), str(tmp_path / "made.deposit"), "deposit"], 2)
    assert_same(kept().deposit, read_deposit(tmp_path / "made.deposit"))


def test_other_rows_are_refused() -> None:
    features, labels = source()
    with pytest.raises(DataError, match="its own rows"):
        make_deposit(trained(), stream(lambda: [source()]), execution=Execution(group=Group(0, 2)))
    with pytest.raises(DataError, match="399 rows"):
        make_deposit(trained(), (features[1:], labels[1:]))
    with pytest.raises(DataError, match="gradient has norm"):
        make_deposit(trained(), (features * 1.001, labels))
    with pytest.raises(DataError, match="no labels"):
        make_deposit(trained(), (features, None))


def test_a_noised_model_is_refused() -> None:
    noised = unlearn(trained(), rows(1), epsilon=1.0, delta=1e-3, deposit=kept().deposit)
    with pytest.raises(ModelError, match="noised"):
        make_deposit(noised.model, source())


def test_a_bare_model_needs_what_it_minimised_and_nothing_else() -> None:
    bare = LinearModel(trained().weight, trained().bias)
    with pytest.raises(ModelError, match="l2"):
        make_deposit(bare, source())
    made = make_deposit(bare, source(), declared=Declared(l2=0.01, loss="softmax", max_norm=3.0), seed=3).deposit
    assert made.record.provenance == "measured"
    assert made.record.class_counts == trained().record.class_counts  # type: ignore[union-attr]
    result = unlearn(bare, rows(1), epsilon=1.0, delta=1e-3, deposit=made)
    assert result.certificate.status == "proven"


def test_rows_that_were_trained_on_in_float32_are_taken_as_they_are_given() -> None:
    model = train(*source(), l2=0.01, max_norm=3.0, bias=True, dtype="float32")
    assert make_deposit(model, source(), seed=3).deposit.numbers.n_rows == N_SOURCE


def test_a_hessian_that_is_too_large_is_refused_before_anything_is_read() -> None:
    wide = LinearModel(torch.zeros((10, 2000), dtype=torch.float64))
    with pytest.raises(ModelError, match="one-vs-rest or ridge"):
        make_deposit(wide, (np.zeros((5, 2000)), np.zeros(5)), declared=Declared(l2=1.0, loss="softmax", max_norm=1.0))


def test_a_model_of_another_record_is_another_model() -> None:
    record = trained().record
    assert record is not None
    other = replace(trained(), record=replace(record, n_source=N_SOURCE + 1, class_counts=None))
    with pytest.raises(DataError, match="trained on 401"):
        make_deposit(other, source())


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_a_freed_bias_is_scikit_learn_s_intercept(loss: str) -> None:
    generator = np.random.default_rng(4)
    features = generator.standard_normal((300, 3))
    labels = (features[:, 0] + generator.standard_normal(300) > 1.0).astype(int)
    model = train(features, labels, l2=0.2, max_norm=6.0, loss=loss, bias=True)
    made = make_deposit(model, (features, labels), free_bias=True, seed=1)
    freed, two = made.optimum, loss == "softmax"
    fitted = LogisticRegression(C=(2.0 if two else 1.0) / (0.2 * 300), solver="newton-cholesky", tol=1e-12)
    fitted.fit(features, labels)
    expected = np.concatenate([fitted.coef_[0], fitted.intercept_])
    found = freed[1] - freed[0] if two else freed[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)
    assert float((freed - model.matrix()).norm()) > 0.1, "the penalty was on it before"
    record = made.deposit.record
    assert (record.free_bias, record.provenance) == (True, "measured")


def test_a_freed_model_in_another_type_says_its_own_residual() -> None:
    features, labels = source()
    biased, none = (train(features, labels, l2=0.05, max_norm=4.0, bias=bias) for bias in (True, False))
    made = make_deposit(biased, (features, labels), free_bias=True, seed=1)
    assert torch.equal(made.model(torch.float64).matrix(), made.optimum)
    small = made.model(torch.float32)
    assert small.weight.dtype == torch.float32
    assert small.record is not None
    assert small.record.residual is not None
    assert 1e-10 < small.record.residual < 1e-5
    result = unlearn(small, (features[:2], labels[:2]), epsilon=1.0, delta=1e-3, deposit=made.deposit)
    assert result.statement.status == "proven"
    with pytest.raises(OptionError, match=r"without one.*--bias"):
        make_deposit(none, source(), free_bias=True)
