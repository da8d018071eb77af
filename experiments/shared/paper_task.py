"""The paper's synthetic task: its seven rows of Table 1, for one seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from experiments.datasets.splits import random_split
from experiments.datasets.synthetic import (
    L2,
    MAX_NORM,
    N_CLASSES,
    N_FEATURES,
    N_ROWS,
    ZETAS,
    angle_labels,
    source_rows,
    surrogate_kl,
    surrogate_rows,
)
from experiments.shared.paper_noise import PaperNoise
from expunge.evaluate.case import Splits, make_case
from expunge.evaluate.evaluation import N_MODELS, MethodScores, evaluate
from expunge.evaluate.methods import Method, Original, Retrain, UnlearnMinus, UnlearnPlus
from expunge.runtime.progress import Progress, silent

TEST_SHARE, FORGET_SHARE = 0.1, 0.1
PUBLISHED_SEED = 42
PRINTED = {None: 0.02, 0.02: 0.23, 0.04: 0.31, 0.06: 0.37, 0.08: 0.4, 0.1: 0.41}  # Delta by zeta, None for Unlearn (+)


def paper_splits(seed: int, n_rows: int = N_ROWS) -> Splits:
    """15,000 rows, of which a tenth is the test set and a tenth of the rest the forget set, at random."""
    generator = np.random.default_rng(seed)
    features, labels = source_rows(generator, n_rows)
    rest, test = random_split(n_rows, TEST_SHARE, generator)
    retain, forget = random_split(len(rest), FORGET_SHARE, generator)
    parts = [rest[retain], rest[forget], test]
    return Splits(*((features[index], labels[index]) for index in parts))


def published_splits() -> Splits:
    """The one data set behind the paper's table: its authors' seed, generators and order of drawing.

    NumPy's legacy generator with seed 42 draws the rows, kept in float32; torch's, with the same seed, parts test and
    then forget set off the end of a permutation each. Table 1 is about this data set and forget set alone.
    """
    drawn = np.random.RandomState(PUBLISHED_SEED).multivariate_normal(np.zeros(N_FEATURES), np.eye(N_FEATURES), N_ROWS)
    features = drawn.astype(np.float32).astype(np.float64)
    labels = angle_labels(features, N_CLASSES)
    generator = torch.Generator().manual_seed(PUBLISHED_SEED)
    order = torch.randperm(N_ROWS, generator=generator).numpy()
    rest, test = order[: -int(TEST_SHARE * N_ROWS)], order[-int(TEST_SHARE * N_ROWS) :]
    inner = torch.randperm(len(rest), generator=generator).numpy()
    n_forget = int(FORGET_SHARE * len(rest))
    parts = [rest[inner[:-n_forget]], rest[inner[-n_forget:]], test]
    return Splits(*((features[index], labels[index]) for index in parts))


def paper_methods(
    seed: int, zetas: Sequence[float] = ZETAS, n_rows: int = N_ROWS, printed: bool = False
) -> list[Method]:
    """Original (a yardstick), Retrain, Unlearn (+), and Unlearn (-) with a fresh surrogate for each zeta.

    Noise is that of the paper's theorem with its constants or, if `printed`, of the Deltas in its appendix's table.
    """
    methods: list[Method] = [Original(), Retrain(), UnlearnPlus(PaperNoise(error=PRINTED[None] if printed else None))]
    for number, zeta in enumerate(zetas):
        surrogate = surrogate_rows(np.random.default_rng([seed, number, 1]), zeta, n_rows)
        noise = PaperNoise(kl=surrogate_kl(zeta), error=PRINTED[zeta] if printed else None)
        methods.append(UnlearnMinus(noise, f"Unlearn (-) zeta {zeta:g}", surrogate))
    return methods


def paper_task(
    seed: int,
    zetas: Sequence[float] = ZETAS,
    *,
    n_rows: int = N_ROWS,
    n_models: int = N_MODELS,
    printed: bool = False,
    published: bool = False,
    progress: Progress = silent,
) -> list[MethodScores]:
    """Table 1 for one seed: of a data set of its own or, if `published`, of the paper's.

    Surrogates, noise and attacks are the seed's own either way.
    """
    splits = published_splits() if published else paper_splits(seed, n_rows)
    case = make_case(splits, l2=L2, max_norm=MAX_NORM, progress=progress)
    return evaluate(case, paper_methods(seed, zetas, n_rows, printed), seed, n_models=n_models, progress=progress)
