"""Figures: drawn without a screen, every part seen, nothing invented."""

from __future__ import annotations

import itertools
import math
import struct
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from expunge.evaluate.audit import Audit, LowerBounds
from expunge.evaluate.evaluation import MethodScores, summarise
from expunge.evaluate.metrics import Score
from expunge.heads import Rows
from expunge.report import figures as plots
from expunge.report.figures import (
    DOTS,
    SHOWN,
    WIDTH,
    audit_figure,
    frontier,
    methods_figure,
    new_figure,
    places_along,
    png,
    principal_components,
)
from expunge.report.page import noise_curve, stacked

# The geometry of the page's figures.


def test_the_bar_adds_up_and_every_part_is_seen() -> None:
    parts = stacked({"training": 0.0, "solver": 1e-12, "surrogate": 3.0, "sampling": 1.0})
    assert [round(part["share"], 6) for part in parts] == [0.0, 0.0, 75.0, 25.0]
    assert parts[0]["width"] == 0.0
    assert parts[1]["width"] > 0.3
    assert sum(part["width"] for part in parts) == pytest.approx(100.0)
    for part, following in itertools.pairwise(parts):
        assert following["start"] == pytest.approx(part["start"] + part["width"])
    assert stacked({"training": 0.0})[0]["width"] == 0.0


def test_the_curve_falls_and_the_mark_is_on_it() -> None:
    curve = noise_curve(0.01, 1.0, 1e-5)
    points = [tuple(map(float, pair.split(","))) for pair in curve["path"][1:].replace("L", "").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points), "down the page is less noise"
    nearest = min(points, key=lambda point: abs(point[0] - curve["x"]))
    assert abs(nearest[1] - curve["y"]) < 5


# Figures without a screen: the same data give the same bytes, of the size asked for.


def drawn(columns: int, height: float) -> bytes:
    figure, axes = new_figure(columns, height)
    assert len(axes) == columns
    for axis in axes:
        axis.plot([0, 1], [1, 0])
    return png(figure)


def test_the_same_data_give_the_same_bytes_of_the_size_asked_for() -> None:
    for columns in (1, 3):
        content = drawn(columns, 2.0)
        assert content == drawn(columns, 2.0)
        assert content.startswith(b"\x89PNG")
        assert struct.unpack(">II", content[16:24]) == (WIDTH * DOTS, 2 * DOTS)


def test_no_global_state_is_touched() -> None:
    program = (
        "import sys; from expunge.report.figures import new_figure, png; "
        "assert 'matplotlib' not in sys.modules; png(new_figure(1, 1.0)[0]); "
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# Figures of a plan: one panel or two, and hollow marks for what would be refused.


def outlook(epsilon: float, distance: str, **changed: Any) -> dict[str, Any]:
    plain = {"epsilon": epsilon, "distance": distance, "sigma": 1.0 / epsilon, "accuracy": 0.9, "refused": None}
    return plain | changed


def test_accuracy_has_a_panel_only_where_it_is_known() -> None:
    both = frontier([outlook(1.0, "same"), outlook(2.0, "same", accuracy=None)], 0.95)
    noise = frontier([outlook(1.0, "same", accuracy=None)], None)
    assert both.startswith(b"\x89PNG")
    width = [struct.unpack(">I", content[16:20])[0] for content in (both, noise)]
    assert width == [1200, 660]


def test_every_distance_has_a_line_and_what_is_refused_a_hollow_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(plots, "png", lambda figure: kept.append(figure) or b"")
    given = [
        outlook(2.0, "same"),
        outlook(1.0, "same", refused="noise"),
        outlook(1.0, "tv:0.1", sigma=math.inf),
        outlook(3.0, "tv:0.1"),
    ]
    frontier(given, 0.95)
    sigma, accuracy = kept[0].axes
    lines = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in sigma.lines}
    assert lines == {"same": [(1.0, 1.0), (2.0, 0.5)], "tv:0.1": [(3.0, 1.0 / 3.0)]}
    hollow = [mark for mark in sigma.collections if len(mark.get_offsets()) and (mark.get_facecolor()[0] == 1.0).all()]
    assert [tuple(mark.get_offsets()[0]) for mark in hollow] == [(1.0, 1.0)]
    assert any(list(line.get_ydata()) == [0.95, 0.95] for line in accuracy.lines), "accuracy before"
    said = [text.get_text() for text in sigma.get_legend().get_texts()]
    assert said[-1].startswith("hollow: unlearn would refuse")
    frontier(given[:1], 0.95)
    assert [text.get_text() for text in kept[1].axes[0].get_legend().get_texts()] == ["same"], "none is hollow"


# Sampled features against the surrogate's, along the surrogate's own principal components.


def rows(count: int, width: int, seed: int) -> Rows:
    drawn = np.random.default_rng(seed).normal(size=(count, width)) * (1.0 + np.arange(width))
    return Rows(torch.tensor(drawn), torch.zeros(count, dtype=torch.int64))


def test_places_are_those_of_scikit_learn_up_to_sign() -> None:
    given = rows(300, 5, 0)
    found = places_along(given, 4)(given)
    expected = PCA(2).fit_transform(given.features[:, :4].numpy())
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-8, atol=1e-10)


def test_of_many_rows_some_are_shown_evenly_and_the_bias_column_is_not() -> None:
    given = rows(3 * SHOWN, 3, 1)
    places = places_along(given, 2)
    found = places(given)
    assert found.shape == (SHOWN, 2)
    for shown, row in ((0, 0), (-1, len(given) - 1)):
        alone = places(Rows(given.features[[row]], given.labels[[row]]))[0]
        np.testing.assert_allclose(found[shown], alone, rtol=1e-12, atol=1e-14)
    other_bias = Rows(given.features * torch.tensor([1.0, 1.0, 7.0]), given.labels)
    assert np.array_equal(places(other_bias), found)


def test_a_picture_with_or_without_a_reference_and_of_one_feature_too() -> None:
    for width, reference in ((3, None), (3, rows(20, 3, 3)), (1, None)):
        sampled = SimpleNamespace(n_features=width, rows=rows(30, width, 2))
        found = SimpleNamespace(sampled=sampled, surrogate=rows(40, width, 1), reference=reference)
        assert principal_components(found).startswith(b"\x89PNG")


# Figures are whole PNG files of the size asked for, and the same for the same results.


def size(content: bytes) -> tuple[int, int]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    return struct.unpack(">II", content[16:24])


def test_methods_side_by_side() -> None:
    rows = [
        [MethodScores("a", {"test": Score(0.5), "mia": Score(None), "rt": Score(3.0), "fs1": Score(0.1)})]
        for _ in range(2)
    ]
    picture = methods_figure(summarise(rows))
    assert size(picture)[0] == WIDTH * DOTS
    assert methods_figure(summarise(rows)) == picture


def test_claimed_against_observed() -> None:
    lower = LowerBounds(0.3, 0.5, "projection", 0.0, True, 0.1, 0.1, 100, 0.999)
    assert size(audit_figure({"tight": Audit(1.0, 1e-3, 0.4, 1.0, 0.4, 0.4, lower)}))[0] == WIDTH * DOTS
