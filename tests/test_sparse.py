"""Sparse rows are the rows they hold, from training to the deletion and its audit, and take the memory of what is
stored of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import expunge
import expunge.sklearn
from expunge.deposit.make import make_deposit
from expunge.deposit.matrices import gram_of
from expunge.deposit.membership import answers
from expunge.deposit.sums import Gauge, gauges_of
from expunge.deposit.verify import verify_deposits
from expunge.errors import DataError, FileError
from expunge.heads import Rows
from expunge.heads.linear import Softmax
from expunge.rows import as_features, bound_rows
from expunge.rows.features import row_norms, to_engine
from expunge.rows.files import read_data, read_unlabelled
from expunge.rows.hashes import hash_rows
from expunge.runtime.arrays import engine_dtype, is_sparse, to_numpy

pytestmark = pytest.mark.usefixtures("one_thread")
KEY = bytes(range(32))
LOSSES = ("softmax", "logistic", "one-vs-rest", "ridge")


def drawn(n: int = 300, d: int = 60, share: float = 0.05, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Rows of which some are longer than 2, one is empty, and labels that they explain in part."""
    generator = np.random.default_rng(seed)
    X = scipy.sparse.random(n, d, density=share, random_state=seed, format="csr")
    X.data = generator.normal(size=X.nnz)
    X.data[X.indptr[5] : X.indptr[6]] = 0.0
    return X, (X @ generator.normal(size=d) + generator.normal(size=n) > 0.0).astype(int)


@pytest.mark.parametrize(("loss", "bias"), [(loss, loss in ("logistic", "one-vs-rest")) for loss in LOSSES])
def test_everything_made_of_sparse_rows_is_made_of_dense_ones(loss: str, bias: bool) -> None:
    X, y = drawn(200, 40)
    gone = np.array([0, 6, 7])
    options: dict[str, Any] = {"l2": 0.05, "max_norm": 2.0, "loss": loss, "bias": bias}
    sparse, dense = expunge.train(X, y, **options), expunge.train(X.toarray(), y, **options)
    np.testing.assert_allclose(sparse.matrix(), dense.matrix(), atol=1e-12)
    assert (sparse.predict(X) == dense.predict(X.toarray())).all()
    one, other = expunge.deposit(sparse, X, y, seed=1), expunge.deposit(sparse, X.toarray(), y, seed=1)
    for own, its in zip(one.hashes.digests, other.hashes.digests, strict=True):
        assert (own == its).all()
    for name in ("parts", "support", "off"):
        assert (getattr(one.gram, name) == getattr(other.gram, name)).all(), name
    np.testing.assert_allclose(one.sums.gradient, other.sums.gradient, atol=1e-15)
    np.testing.assert_allclose(one.sums.curvature.values, other.sums.curvature.values, atol=1e-15)
    if one.sums.third is not None:
        np.testing.assert_allclose(one.sums.third, other.sums.third, atol=1e-15)
    assert len(one.gauges) == len(other.gauges)
    for a, b in zip(one.sums.weighted, other.sums.weighted, strict=True):
        np.testing.assert_allclose(a.values, b.values, rtol=1e-11, atol=1e-13)
    assert [each.there for each in answers(one, (X[:3], y[:3]))] == [True] * 3
    made = [
        expunge.unlearn(None, (rows[gone], y[gone]), deposit=kept, epsilon=2.0, delta=1e-3, force=True)
        for rows, kept in ((X, one), (X.toarray(), one), (X.toarray(), other))
    ]
    for each in made[1:]:
        assert each.certificate.content["sigma"] == made[0].certificate.content["sigma"]
        assert abs(each.certificate.total / made[0].certificate.total - 1.0) < 1e-6
    for rows in (X, X.toarray()):
        verify_deposits(made[0].certificate, made[0].deposit, one, (rows[gone], y[gone]))
    assert [each.there for each in answers(made[0].deposit, (X[gone], y[gone]))] == [False] * 3
    retained = np.delete(X.toarray(), gone, axis=0), np.delete(y, gone)
    never = expunge.deposit(expunge.train(*retained, **options), *retained, seed=1)
    for name in ("parts", "support", "off"):
        assert (getattr(made[0].deposit.gram, name) == getattr(never.gram, name)).all(), f"{name}: a trace is left"
    for own, its in zip(made[0].deposit.hashes.digests, never.hashes.digests, strict=True):
        assert (own == its).all()


entries = st.one_of(
    st.just(0.0), st.just(-0.0), st.sampled_from([5e-7, 1.5e-6, 1e-3, 1e39, 2.5e-310]), st.floats(-1e6, 1e6)
)


@given(st.lists(st.lists(entries, min_size=4, max_size=4), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_row_has_the_same_hashes_whichever_way_it_is_given(rows: list[list[float]], order: Any) -> None:
    """With zeros that are stored, columns in any order, a value in two parts."""
    dense = np.zeros((len(rows), 80))
    dense[:, [3, 17, 18, 79]] = rows
    values, places, starts = [], [], [0]
    for row in dense:
        stored = [(column, row[column]) for column in (3, 17, 18, 79) if row[column] or order.random() < 0.5]
        stored += [(40, 8.0), (40, -8.0)] if order.random() < 0.5 else []
        order.shuffle(stored)
        places += [column for column, _ in stored]
        values += [value for _, value in stored]
        starts.append(len(values))
    sparse = scipy.sparse.csr_array((np.array(values), np.array(places, int), starts), shape=dense.shape)
    labels = np.arange(len(rows))
    one, other = hash_rows(KEY, sparse, labels), hash_rows(KEY, dense, labels)
    assert all((own == its).all() for own, its in zip(one.digests, other.digests, strict=True))


def test_rows_are_sparse_where_few_of_their_entries_are_stored() -> None:
    X, y = drawn()
    before = X.copy()
    assert is_sparse(as_features(X, "rows", sparse=True))
    assert not is_sparse(as_features(X, "rows"))
    assert not is_sparse(as_features(drawn(share=0.1)[0], "rows", sparse=True))
    expunge.train(X, y, l2=0.1, max_norm=2.0, bias=True)
    for name in ("data", "indices", "indptr"):
        assert (getattr(X, name) == getattr(before, name)).all(), "the caller's own"
    X.data[7] = np.inf
    with pytest.raises(DataError, match=r"row 1, column \d+ is inf"):
        as_features(X, "rows", sparse=True)


def test_a_gpu_s_engine_gets_them_written_out() -> None:
    pytest.importorskip("torch")
    X, _ = drawn()
    kept = to_engine(as_features(X, "rows", sparse=True), engine_dtype("float64", "cuda"))
    assert (to_numpy(kept) == X.toarray()).all()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", [False, True])
def test_long_rows_are_cut_as_dense_ones_are(dtype: str, bias: bool) -> None:
    X, y = drawn()
    sizes = np.ones(X.shape[0])
    sizes[:6] = 1e300, 1e160, 1e-20, 7.0, 1e38, 0.0
    X = (scipy.sparse.diags_array(sizes) @ X).tocsr()
    table, kept = as_features(X, "rows", sparse=True), engine_dtype(dtype, "cpu")
    np.testing.assert_allclose(row_norms(table), row_norms(X.toarray()), rtol=1e-14)
    one, other = (
        bound_rows(rows, y, max_norm=1.5, bias=bias, dtype=kept, device="cpu", name="rows")
        for rows in (table, X.toarray())
    )
    assert one.features.has_canonical_format
    assert one.features.dtype == other.features.dtype
    assert one.n_scaled == other.n_scaled > 10
    np.testing.assert_allclose(one.features.toarray(), other.features, rtol=1e-6 if dtype == "float32" else 1e-14)
    assert (np.linalg.norm(one.features.toarray()[:, : X.shape[1]].astype(float), axis=1) <= 1.5).all()


@pytest.mark.parametrize("power", [0.0, 3.0, 6.0])
def test_squares_of_a_gauge_lose_no_more_than_is_said(power: float) -> None:
    """However few digits its factor leaves: against forward substitution in more digits."""
    generator = np.random.default_rng(3)
    X, width = drawn(400, 50, 0.1)[0], 50
    turned = np.linalg.qr(generator.normal(size=(width, width)))[0] * 10.0 ** -np.linspace(0.0, power, width)
    gauge = Gauge(np.linalg.cholesky(turned @ turned.T), 1.0)
    exact = np.zeros((width, X.shape[0]), np.longdouble)
    factor, columns = gauge.factor.astype(np.longdouble), X.toarray().T.astype(np.longdouble)
    for row in range(width):
        exact[row] = (columns[row] - factor[row, :row] @ exact[:row]) / factor[row, row]
    true = (exact * exact).sum(axis=0)
    assert (abs(gauge.squares(scipy.sparse.csr_array(X)) - true) <= 2.0 * gauge.lost * true).all()


def test_many_blocks_are_one_set(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = drawn()
    whole = Rows(scipy.sparse.csr_array(X), y)
    assert len(whole.blocks()) == 1
    monkeypatch.setattr("expunge.heads.rows.BLOCK_BYTES", 1 << 12)
    parts = Rows(scipy.sparse.csr_array(X), y)
    assert len(parts.blocks()) > 5
    assert (np.concatenate([block.features.toarray() for block in parts.blocks()]) == X.toarray()).all()
    head, weights = Softmax(0.1, 2, 60, 9.0), np.random.default_rng(1).normal(size=(2, 60))
    for made in (lambda rows: head.gradient(weights, rows), lambda rows: head.curvature(weights, rows).dense()):
        np.testing.assert_allclose(made(parts), made(whole), atol=1e-15)
        np.testing.assert_allclose(made(parts), made(Rows(X.toarray(), y)), atol=1e-15)
    generators = (np.random.default_rng(2), np.random.default_rng(2))
    one, other = (gauges_of(rows, gram_of(rows), own)[0] for rows, own in zip((parts, whole), generators, strict=True))
    np.testing.assert_allclose(one.factor, other.factor, atol=1e-14)


def test_blocks_of_a_stream_are_written_out_one_at_a_time() -> None:
    X, y = drawn()
    model = expunge.train(X, y, l2=0.05, max_norm=2.0)
    parts = expunge.stream(lambda: ((X[start : start + 70], y[start : start + 70]) for start in range(0, 300, 70)))
    one, other = (expunge.deposit(model, X, y, seed=1), make_deposit(model, parts, seed=1).deposit)
    for own, its in zip(one.hashes.digests, other.hashes.digests, strict=True):
        assert (own == its).all()
    assert (one.gram.parts == other.gram.parts).all()


# Files and pipelines --------------------------------------------------------------------------------------------------


def test_a_matrix_as_scipy_saves_it_has_its_labels_beside_it(tmp_path: Path) -> None:
    X, y = drawn()
    scipy.sparse.save_npz(tmp_path / "docs-X.npz", X)
    with pytest.raises(FileError, match="sparse rows without labels"):
        read_data(tmp_path / "docs-X.npz")
    np.save(tmp_path / "docs-y.npy", y)
    features, labels = read_data(tmp_path / "docs-X.npz")
    assert (features.toarray() == X.toarray()).all()
    assert (labels == y).all()
    assert (read_unlabelled(tmp_path / "docs-X.npz", None, None).toarray() == X.toarray()).all()
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": X.shape, "format": "csr", "y": y}
    np.savez(tmp_path / "one.npz", **parts)
    assert (read_data(tmp_path / "one.npz")[0].toarray() == X.toarray()).all()
    for wrong, message in (
        ({"format": "csc"}, "format csr"),
        ({"shape": np.array([300])}, "shape"),
        ({"shape": np.array([299, 60])}, "do not fit together"),
        ({"shape": np.array([300, 59])}, "not a whole .npz file"),
        ({"shape": np.array([300, 2**55])}, "a row, written out"),
        ({"indices": X.indices - 1}, "not a whole .npz file"),
        ({"indptr": X.indptr[::-1]}, "do not fit together"),
        ({"indptr": -X.indptr}, "do not fit together"),
        ({"indices": X.indices + 0.5}, "do not fit together"),
        ({"data": X.data[1:]}, "do not fit together"),
        ({"data": X.data.astype(str)}, "real numbers"),
        ({"y": y[1:]}, "299 labels for 300 rows"),
    ):
        np.savez(tmp_path / "wrong.npz", **parts | wrong)
        with pytest.raises((FileError, DataError), match=message):
            expunge.train(*read_data(tmp_path / "wrong.npz"), l2=0.1, max_norm=1.0)


def test_a_pipeline_of_texts_forgets() -> None:
    generator, words = np.random.default_rng(0), np.array([f"word{each}" for each in range(80)])
    texts = [" ".join(generator.choice(words, 4)) for _ in range(300)]
    y = np.array([("word1" in text.split()) ^ (generator.random() < 0.3) for text in texts], int)
    fitted = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, y)
    kept = expunge.sklearn.deposit(fitted, texts, y, preparation="learnt elsewhere", seed=1)
    table = fitted[0].transform(texts).toarray()
    dense = expunge.sklearn.deposit(fitted[-1], table, y, seed=1)
    assert (kept.gram.parts == dense.gram.parts).all()
    assert all((own == its).all() for own, its in zip(kept.hashes.digests, dense.hashes.digests, strict=True))
    made = expunge.sklearn.unlearn(fitted, (texts[:2], y[:2]), kept, epsilon=1.0, delta=1e-3, force=True)
    assert made.certificate.status == "proven"
    assert made.deposit.numbers.n_rows == 298
    assert len(made.estimator.predict(texts)) == 300


PEAK = """
import resource
import numpy as np, scipy.sparse
import expunge
n, d = 300_000, 400
rng = np.random.default_rng(0)
places = np.repeat(np.arange(n), 3), rng.integers(d, size=3 * n)
X = scipy.sparse.csr_array((rng.normal(size=3 * n), places), shape=(n, d))
y = (X @ rng.normal(size=d) > 0.0).astype(int)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = expunge.train(X, y, l2=1e-3, max_norm=8.0, loss="logistic", bias=True)
made = expunge.deposit(model, X, y, seed=0)
expunge.unlearn(None, (X[:1], y[:1]), deposit=made, epsilon=1.0, delta=1e-6, force=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (8 * n * d))
"""


@pytest.mark.slow
def test_they_take_a_small_part_of_the_memory_of_dense_ones() -> None:
    told = subprocess.run([sys.executable, "-c", PEAK], check=True, capture_output=True)
    assert float(told.stdout) < 0.25, "of what the rows alone would take, written out"
