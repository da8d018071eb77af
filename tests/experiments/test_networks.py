"""Tables 5 and 6, small: every row and column is there, steps with the source are retraining, bounds hold."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

from experiments import architectures, kept_tangent, mixed_linear
from experiments.datasets.folder import DataFolder
from experiments.protocol.config import config_of
from experiments.protocol.experiment import Record
from experiments.shared.as_written import NAME as AS_WRITTEN
from experiments.shared.pretraining import moved, network
from expunge.runtime.progress import silent

METRICS = {"train", "test", "retain", "forget", "mia", "rt"}
SMALL = {"images": 120, "width": 2, "epochs": 4, "batch": 30}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """Images of ten classes, each of a colour and brightness of its own."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    labels = np.arange(520) % 10
    tones = generator.integers(40, 215, (10, 3, 1, 1))
    pixels = np.clip(tones[labels] + generator.normal(0, 30, (520, 3, 32, 32)), 0, 255).astype(np.uint8)
    np.savez(folder / "cifar10-images.npz", X=pixels[:420], y=labels[:420], X_test=pixels[420:], y_test=labels[420:])
    return DataFolder(folder)


def small(name: str, **changes: Any) -> dict[str, Any]:
    config = copy.deepcopy(dict(config_of(name)))
    config["run"] |= changes
    config["run"]["public"] |= SMALL
    return config


def records_of(module: Any, config: dict[str, Any], data: DataFolder) -> list[Record]:
    found: list[Record] = []
    for case in module.cases(config, 1):
        result = json.loads(json.dumps(module.run(case, config, data, device="cpu", progress=silent), allow_nan=False))
        options = dict(case.options)
        found.append({"key": case.key, "seed": 0, "options": options, "result": result, "seconds": 0.0, "run": 0})
    return found


def test_table_5_has_every_row_and_its_bounds_hold(images: DataFolder) -> None:
    config = small("mixed-linear", private=300, l2=0.01, block=64, epsilons=[1.0])
    (record,) = records_of(mixed_linear, config, images)
    settings = record["result"]["settings"]
    assert set(settings) == {"0.1", "0"}
    for name, setting in settings.items():
        without = {mixed_linear.WITHOUT} if name == "0" else set()
        assert set(setting["scores"]) == {"Original", "Retrain", "Unlearn (+)", "Unlearn (-)", AS_WRITTEN} | without
        assert setting["scores"][AS_WRITTEN]["left"] < 1e-3
        assert all(set(scores) >= METRICS for scores in setting["scores"].values())
    assert settings["0"]["scores"]["Unlearn (+)"]["mia"] is None
    assert settings["0"]["n_forget"] > 0
    for check in record["result"]["checks"]:
        assert check["true"] <= check["residual"]
        if check["what"].startswith("Unlearn (+)"):
            assert check["true"] < 1e-6, "with the source's Hessian the step is retraining"
    written, kept = (settings["0"]["scores"][method] for method in (AS_WRITTEN, "Unlearn (-)"))
    assert written["distance"] < kept["distance"], "without the class's own Hessian the step falls short"
    assert settings["0"]["scores"][mixed_linear.WITHOUT]["distance"] < kept["distance"]
    whole, without = (
        float(check["distance"].removeprefix("chi2:"))
        for check in record["result"]["checks"]
        if check["what"].startswith("Unlearn (-)") and check["what"].endswith(", 0")
    )
    assert without < 0.1 < whole, "the retained rows have none of a class that is a tenth of the surrogate"
    first, *_ = mixed_linear.tables(config, [record])
    assert first.rows[0][:2] == ("0.1", "Retrain")
    assert first.rows[3][:2] == ("0.1", AS_WRITTEN)
    assert "paper" in first.columns


def test_a_tangent_head_with_a_deposit_is_retraining(images: DataFolder) -> None:
    """Of a class too, which moves the weights far; a region below the truth is told."""
    config = small("kept-tangent", private=300, l2=0.01, block=64)
    (record,) = records_of(kept_tangent, config, images)
    result = record["result"]
    assert result["weights"] == 2 * 8 + 8 * 10 + 10
    for (name, found), checked in zip(result["settings"].items(), result["checks"], strict=True):
        assert checked["what"] == f"With a deposit, {name}"
        assert 0.0 < checked["true"] <= checked["residual"] == found["radius"] < 1e-4 * found["moved"]
        assert found["noise_length"] < 1e-2 * found["moved"]
        assert found["scores"]["With a deposit"] == found["scores"]["Retrain"]
        assert found["status"] == "conditional"
    assert result["settings"]["0"]["moved"] > 0.1, "forgetting must have something to do"
    outside = [one | {"true": 2.0 * one["residual"]} for one in result["checks"]]
    other = record | {"seed": 1, "result": result | {"checks": outside}}
    (table,) = kept_tangent.tables(config, [record, other])
    assert [row[:2] for row in table.rows[3:]] == [("0", name) for name in ("Original", "Retrain", "With a deposit")]
    assert "BatchNorm2d and Linear" in table.notes[0]
    assert "0.00 points" in table.notes[1]
    assert "2 of 4" in table.notes[2]
    assert kept_tangent.tables(config, []) == []


def test_table_6_has_every_architecture_and_its_steps_come_to_rest(images: DataFolder) -> None:
    config = small(
        "architectures",
        l2=dict.fromkeys(architectures.ARCHITECTURES, 0.2),  # at half of it a last digit decides whether steps stall
        private=300,
        components=4,
        components_from=60,
        channels=3,
        splits=5,
        epochs=2,
        batch=30,
    )
    records = records_of(architectures, config, images)
    assert [record["key"] for record in records] == ["L", "C+L", "2C+L"]
    for record in records:
        result = record["result"]
        assert all(set(scores) >= METRICS for scores in result["scores"].values())
        assert max(result["training_gradient"], result["retraining_gradient"]) < 0.01 * result["retain_gradient"]
        exact = result["steps"]["Unlearn (+)"]
        assert exact["ending"] == "reached"
        assert exact["retain_gradient"] < 0.02 * result["retain_gradient"]
        assert result["steps"]["Unlearn (-)"]["residual_ratio"] < 1.0
    linear = records[0]["result"]
    assert linear["steps"]["Unlearn (+)"]["to_retrained"] < 0.05 * linear["to_retrained"], "a convex loss has one rest"
    table, apart, steps = architectures.tables(config, records)
    assert [len(one.rows) for one in (table, apart, steps)] == [12, 9, 6]
    assert "in one seed" in apart.notes[0]


def test_differences_from_retraining_are_by_seed() -> None:
    """Means of 2 and -1 points of opposite sign: the one in the note is the largest, seeds apart."""
    blank = dict.fromkeys(METRICS, 0.5)
    made = {"Original": 0.08, "Retrain": 0.0, "Unlearn (+)": 0.02, "Unlearn (-)": -0.01}
    ours = {
        ("L", method): [blank | {"forget": 0.5 + more}, blank | {"forget": 0.5 + more / 2, "mia": None}]
        for method, more in made.items()
    }
    table = architectures._apart(ours)
    assert [row[:2] for row in table.rows] == [("L", "Original"), ("L", "Unlearn (+)"), ("L", "Unlearn (-)")]
    assert table.rows[1][5] == "1.5 ± 0.7"
    assert "1.5 points in the mean over seeds, 2.0 in one seed" in table.notes[0]
    assert "4.0 (L) points" in table.notes[0]


def test_layers_on_patches_are_convolutions() -> None:
    torch.manual_seed(0)
    maps = torch.randn(5, 3, 4, 4)
    first, second = torch.nn.Conv2d(3, 2, 3, padding=1), architectures.Convolution(2)
    by_patches = torch.nn.functional.linear(architectures.laid_out(maps, "C+L"), first.weight.flatten(1), first.bias)
    plain = first(maps)
    torch.testing.assert_close(by_patches, plain.flatten(2).transpose(1, 2))
    again = torch.nn.functional.conv2d(plain, second.weight, second.bias, padding=1)
    torch.testing.assert_close(second(by_patches), again.flatten(2).transpose(1, 2))


def test_components_are_centred_uncorrelated_and_of_variance_one() -> None:
    torch.manual_seed(0)
    maps = torch.randn(50, 6, 4, 4) * torch.arange(1.0, 7.0)[:, None, None] + 3.0
    found = architectures.components(maps, 2)(maps).transpose(0, 1).flatten(1)
    torch.testing.assert_close(torch.cov(found), torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(found.mean(dim=1), torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0.0)


def test_images_are_moved_by_at_most_four_pixels() -> None:
    image = torch.zeros(1, 3, 32, 32)
    image[0, :, 10, 20] = 1.0
    seen = set()
    for seed in range(300):
        found = moved(image, torch.Generator().manual_seed(seed))
        assert found.shape == image.shape
        seen |= {tuple(place) for place in found[0, 0].nonzero().tolist()}
    down, across = {place[0] for place in seen}, {place[1] for place in seen}
    assert down == set(range(6, 15))
    assert across == set(range(16, 25)) | set(range(7, 16)), "20 and its mirror image 11, four either way"


def test_the_network_is_small() -> None:
    parts = network(32)
    assert sum(value.numel() for part in parts for value in part.parameters()) < 1_000_000
    assert parts[1](parts[0](torch.zeros(2, 3, 32, 32))).shape == (2, 128)
