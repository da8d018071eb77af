"""A certificate to look at."""

import numpy as np

import expunge
from expunge.distance import Distance


def made(distance: str | Distance = "same", seed: int = 0, **options: object) -> expunge.Unlearned:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((400, 5))
    y = (x @ generator.standard_normal((5, 3)) + generator.gumbel(size=(400, 3))).argmax(axis=1)
    model = expunge.train(x[:200], y[:200], l2=0.1, max_norm=2.0)
    surrogate = (x[:200], y[:200]) if distance == "source" else (x[200:], y[200:])
    return expunge.unlearn(
        model, (x[:3], y[:3]), surrogate, epsilon=1.0, delta=1e-3, distance=distance, force=True, **options
    )
