"""Estimates and constants that are asked for, refused before any work is done where they cannot be had."""

from __future__ import annotations

import math

from expunge.bounds.paper import PaperConstants
from expunge.distance import Estimation
from expunge.errors import DataError, OptionError
from expunge.heads import LinearHead
from expunge.record import SOFTMAX, TrainingRecord
from expunge.runtime.checks import positive


def require_estimable(wanted: Estimation, record: TrainingRecord, labelled: bool, bound: str) -> None:
    """Refuse what cannot be estimated before any chain is run."""
    if record.loss != SOFTMAX.name:
        raise OptionError(
            f"distance {wanted} for loss {record.loss}",
            "only softmax implies a density over features and probabilities of labels",
            "Declare a distance.",
        )
    if bound == "paper" and wanted.route != "kl":
        raise OptionError(
            f"distance {wanted} with the paper's bound",
            "it takes a total variation",
            "Use --distance estimate.npz:kl (distance='estimate:kl').",
        )
    if wanted.route == "kl" and not labelled:
        raise DataError(
            "the surrogate has no labels",
            "the conditional part of the KL needs them",
            "Give labels, or use --distance estimate.npz (distance='estimate'), which needs none.",
        )


def require_own_source(wanted: Estimation) -> None:
    """A certificate cannot rest on an estimate whose source was made of the surrogate."""
    if wanted.support == "gaussian" and wanted.mean is None:
        raise OptionError(
            "an estimate on a Gaussian reference with the surrogate's own moments",
            "it finds the surrogate near itself, whatever the source was; a certificate needs more",
            "Use --support ball (support='ball'), or --moments (mean=, covariance=) with what is known of the "
            "source; expunge distance shows the difference.",
        )


def paper_constants(
    constants: PaperConstants | str | None, objective: LinearHead, record: TrainingRecord
) -> PaperConstants:
    """The paper bound's constants: given, the paper's own (`paper`), or the objective's closed forms (`derived`)."""
    if isinstance(constants, PaperConstants):
        remedy = "Give constants that hold for every example, or --constants derived (constants='derived')."
        positive(constants.strong_convexity, "alpha", remedy)
        positive(constants.smoothness, "beta", remedy)
        positive(constants.lipschitz, "L", remedy)
        if constants.hessian_lipschitz != 0:
            positive(constants.hessian_lipschitz, "gamma", remedy)
        return constants
    if constants == "paper":
        return PaperConstants.of_the_experiments(record.l2)
    if constants in (None, "derived"):
        weights_norm = math.sqrt(2.0 * math.log(objective.n_classes) / record.l2)
        closed = objective.constants(
            weights_norm if record.loss == SOFTMAX.name else math.sqrt(objective.n_classes / record.l2)
        )
        return PaperConstants(closed.strong_convexity, closed.smoothness, closed.lipschitz, closed.hessian_lipschitz)
    raise OptionError(f"constants {constants!r}", "they are 'derived', 'paper' or a PaperConstants", "Use derived.")
