"""Rows that the norm bound squashes: said from one in a hundred on, refused from half on, at every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import expunge
from expunge.desk import Policy, accept, create_desk
from expunge.errors import UselessModel
from expunge.evaluate.plan import plan
from expunge.heads.scaling import scaling_of
from expunge.request.scaling import refuse_squashed
from expunge.rows.features import bound_rows
from expunge.rows.streams import Form, StreamedRows, stream
from expunge.runtime.memory import Memory
from expunge.train import train

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
LABELS = np.arange(600) % 2
RAW = 40.0 * RNG.normal(size=(600, 5)) + 100.0 * LABELS[:, None]  # a table as it comes: rows some hundreds long
SMALL = RAW / 1000.0
UNLEARN = {"epsilon": 5.0, "delta": 1e-4, "distance": "same"}


def lengths(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_streams_count_what_whole_sets_count() -> None:
    table, labels = torch.from_numpy(RAW), torch.from_numpy(LABELS)
    whole = bound_rows(table, labels, max_norm=150.0, bias=False, dtype=torch.float64, device=CPU, name="x")
    form = Form((0, 1), 150.0, False, torch.float64, CPU, 5, "x")
    blocks = stream(lambda: ((RAW[part : part + 70], LABELS[part : part + 70]) for part in range(0, 600, 70)))
    streamed = StreamedRows(blocks, form, Memory.of(None))
    assert len(streamed) == 600
    assert streamed.scaling == whole.scaling
    assert whole.scaling is not None
    assert whole.scaling.n_scaled == whole.n_scaled == streamed.n_scaled > 0


def test_nothing_is_said_of_few_and_more_than_half_are_refused() -> None:
    few, some, most = (scaling_of(lengths(*([3.0] * k), *([0.5] * (100 - k))), 1.0) for k in (1, 2, 51))
    assert refuse_squashed(few, "the set", 1.0, force=False) == ()
    (note,) = refuse_squashed(some, "the set", 1.0, force=False)
    assert note == (
        "the set: 2 of 100 rows (2 %) were longer than the norm bound and were scaled down to it, half of them to 34 % of "
        "their length or less"
    )
    with pytest.raises(UselessModel, match=r"51 of 100 rows .* --max-norm of 3\.1 would scale one row in a hundred"):
        refuse_squashed(most, "the set", 1.0, force=False)
    (note,) = refuse_squashed(most, "the set", 1.0, force=True)
    assert note.startswith("FORCED: the set: 51 of 100 rows")
    # a person whose own rows are long may still ask
    assert len(refuse_squashed(scaling_of(lengths(3.0), 1.0), "the forget set", 1.0, force=False)) == 1


def test_training_on_a_raw_table_is_refused_with_a_bound_that_works() -> None:
    """As it was: a model that names one class, without a word."""
    with pytest.raises(UselessModel, match="the source: 600 of 600 rows") as raised:
        train(RAW, LABELS, l2=1e-3, max_norm=1.0)
    bound = float(raised.value.remedy.split("--max-norm of ")[1].split(" ")[0])
    assert (np.linalg.norm(RAW, axis=1) > bound).mean() <= 0.01
    assert train(RAW, LABELS, l2=1e-3, max_norm=bound).record is not None
    assert train(RAW, LABELS, l2=1e-3, max_norm=1.0, force=True).record is not None


def test_every_later_step_says_or_refuses() -> None:
    model = train(SMALL[:300], LABELS[:300], l2=0.05, max_norm=1.0)
    good, raw = (SMALL[300:], LABELS[300:]), (RAW[300:], LABELS[300:])
    forget = (SMALL[:2], LABELS[:2])
    with pytest.raises(UselessModel, match="the surrogate set: 300 of 300 rows"):
        expunge.unlearn(model, forget, raw, **UNLEARN)
    forced = expunge.unlearn(model, forget, raw, **UNLEARN, force=True).certificate.content["notes"]
    assert any(note.startswith("FORCED: the surrogate set: 300 of 300 rows") for note in forced)
    with pytest.raises(UselessModel, match="the forget set: 30 of 30 rows"):
        expunge.unlearn(model, (RAW[:30], LABELS[:30]), good, **UNLEARN)
    mixed = (np.concatenate([SMALL[300:], RAW[:6]]), np.concatenate([LABELS[300:], LABELS[:6]]))
    notes = expunge.unlearn(model, forget, mixed, **UNLEARN, force=True).certificate.content["notes"]
    assert any(note.startswith("the surrogate set: 6 of 306 rows (1.96 %)") for note in notes)
    planned = plan(model, forget, raw, delta=1e-4, epsilons=(5.0,), distances=("same",))
    assert planned.outlooks[0].refused
    assert any("the surrogate set: 300 of 300 rows" in note for note in planned.notes)


def test_a_desk_that_could_never_run_is_not_opened(tmp_path) -> None:
    model = train(SMALL[:300], LABELS[:300], l2=0.05, max_norm=1.0)
    policy = Policy(epsilon=5.0, delta=0.01, distance="same", planned=2)
    with pytest.raises(UselessModel, match="every run of this desk would be refused"):
        create_desk(tmp_path / "desk", model, (RAW[300:], LABELS[300:]), policy)
    with pytest.raises(UselessModel, match="no row of class 1"):
        create_desk(tmp_path / "desk", model, (SMALL[300::2], LABELS[300::2]), policy)
    assert not (tmp_path / "desk").exists()
    said: list[str] = []
    desk = create_desk(tmp_path / "desk", model, (SMALL[300:], LABELS[300:]), policy, say=said.append)
    noted, cost = said
    assert noted.startswith("delta 0.01 is above 1/n")
    assert cost.startswith("of the surrogate's rows")
    with pytest.raises(UselessModel, match="the rows to forget: 30 of 30 rows"):
        accept(desk, RAW[:30], LABELS[:30], "case-1")
