"""A whole experiment in seconds: MNIST and USPS, played by scikit-learn's digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

CONFIG = """
[about]
title = "Small"
paper = "Table 7"
order = 1
needs = ["mnist", "usps"]
minutes = 0.1

[run]
l2 = 0.1
forget = 0.1

[[run.variants]]
name = "8 x 8"
size = 8
low = -1.0
high = 1.0
rows = 0

[paper]
within = 3.0

[paper.table7."M -> U"]
"Retrain" = [94.2, 91.4, 94.3, 92.5, 51.23, 11]
"Unlearn (-)" = [94.1, 91.1, 94.1, 91.5, 50.54, 13]
"""


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    return (images * 255.0 / 16.0).round().astype(np.uint8).reshape(-1, 8, 8), labels.astype(np.uint8)


def make_folder(folder: Path) -> tuple[Path, Path]:
    """A config folder and a data folder."""
    configs, data = folder / "configs", folder / "data"
    configs.mkdir()
    data.mkdir()
    (configs / "mnist-usps.toml").write_text(CONFIG)
    images, labels = digits()
    fractions = (images.astype(np.float32) / 127.5 - 1.0).round(3)
    np.savez(data / "mnist.npz", X=images[:300], y=labels[:300], X_test=images[300:400], y_test=labels[300:400])
    np.savez(
        data / "usps.npz", X=fractions[400:700], y=labels[400:700], X_test=fractions[700:800], y_test=labels[700:800]
    )
    return configs, data
