"""Three classes that a linear model tells apart roughly."""

import numpy as np


def three_classes(n: int = 300, d: int = 6, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((2 * n, d)) / 2  # hardly a row is longer than 2
    y = (4 * x @ generator.standard_normal((d, classes)) + generator.gumbel(size=(2 * n, classes))).argmax(axis=1)
    return x, y
