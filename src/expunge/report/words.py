"""What the numbers of a certificate are called on a page for somebody who is not a mathematician."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from jinja2 import TemplateError

from expunge.errors import FileError, OptionError

STATUS = {
    "proven": "Proven: nothing but checked facts stands behind it.",
    "conditional": "Conditional: true if the facts listed under “assumed” are true. Nobody checked those.",
    "estimated": "Estimated: some number behind it is a heuristic estimate. Do not treat it as a proof.",
}


def status_words(status: object) -> str:
    """What a status means; whatever is unknown raises."""
    if not isinstance(status, str) or status not in STATUS:
        raise OptionError(f"status {status!r}", f"it is one of {', '.join(STATUS)}", "Do not rely on this certificate.")
    return STATUS[status]


@contextlib.contextmanager
def showing(what: str) -> Iterator[None]:
    """What cannot be shown as Expunge's own error: a file may hold odd things in fields that no check recomputes."""
    try:
        yield
    except (TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise FileError(
            f"{what} cannot be shown ({type(error).__name__}: {error})",
            "every field must be there and of its kind (docs/certificate.md)",
            "Use the file as it was written.",
        ) from error


PROVENANCE = {
    "measured": "computed from data that was at hand",
    "derived": "follows from other numbers by a formula",
    "declared": "stated by whoever ran Expunge; not checked",
    "estimated": "a heuristic estimate",
}
FACTS = {
    "n_source": "rows the model was trained on",
    "n_forget": "rows forgotten since training, these included",
    "n_surrogate": "rows of the stand-in data",
    "l2": "regularisation strength",
    "training_residual": "how far from its optimum the starting model was (norm of the gradient)",
    "solver_residual": "what the update left unsolved",
    "rounding": "largest possible arithmetic error",
    "change_mean": "by how much the update changes the stand-in rows' mean gradient",
    "change_eigenvalue": "how much that change varies over stand-in rows, in the direction in which it varies most",
    "change_trace": "how much that change varies over stand-in rows, in all directions together",
    "change_fourth": "how heavy the tails of that change are (its mean fourth power)",
    "change_fourth_eigenvalue": "how heavy its tails are in one direction",
    "change_largest": "largest distance of that change from its mean, seen on a stand-in row",
    "change_longest": "largest such change, seen on a stand-in row",
    "change_supremum": "largest such change that any row can show",
    "change_each": "largest such change that any retained row can show, by the deposit",
    "change_together": "largest such change that all retained rows can show together, by the deposit",
    "longest_row": "longest row of the stand-in data",
    "row_bound": "longest a row can be",
    "directions": "numbers that a row has",
    "sampling_failure": "probability that a sample was unlucky",
    "weight_largest": "most that a stand-in row counts (the mean is 1)",
    "sampled_trace": "how much the weighted change varies, in all directions together",
    "sampled_eigenvalue": "how much the weighted change varies, in the direction in which it varies most",
    "sampled_largest": "largest weighted change seen",
    "alpha": "least curvature of the objective",
    "beta": "largest curvature of the objective",
    "gamma": "how fast its curvature can change",
    "lipschitz": "longest gradient of a row",
    "lipschitz_power": "power with which that length enters (the paper's theorem and corollary differ)",
    "gradient_norm": "length of the forgotten rows' gradient",
    "tv_upper": "total variation between stand-in and source, at most",
    "solver": "what the step left of the retained rows' linearised gradient",
    "shape_ratio": "how the norm of the bound and the shape of the noise compare",
    "reach": "furthest that the update moves the outputs of a row apart",
    "update_curved": "length of the update by the retained rows' curvature",
    "concordance": "how fast curvature can change over the bound's own length",
    "gauge": "length of the update by an ellipsoid around the source's rows",
    "kappa": "how far the outermost source row lies by that ellipsoid",
    "curvature_ratio": "curvature of the retained rows by the norm of the bound",
    "spread": "size of that ellipsoid by the norm of the bound",
    "weight_ratio": "curvature of long rows by the norm of the bound",
    "shape_largest": "steepest direction of the shape of the noise",
    "shape_least": "flattest direction of the shape of the noise",
    "shape_inverse_trace": "sum over directions of the noise's variance at sigma 1",
    "weights_length": "length of the weights before noise",
    "output_noise": "what noise of sigma 1 adds to an output of a typical row",
    "output_spread": "size of the model's own outputs on a typical row",
}
FAILURES = {
    "sampling": "an unlucky sample of rows",
    "eigenvalue": "an unlucky start in measuring how much gradients vary",
    "sequence": "the other models of the same desk",
    "arithmetic": "what float64 makes of the drawing of the noise",
}
LISTED = "These facts were declared, not checked: "
UNDERSCORED = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b")


def plain(sentence: object) -> str:
    """A sentence of a certificate with words in place of the names of facts. The file itself keeps its own.

    >>> plain("These facts were declared, not checked: l2, solver_residual.")
    'These facts were declared, not checked: regularisation strength; what the update left unsolved.'
    """
    said = str(sentence)
    if said.startswith(LISTED) and said.endswith("."):
        names = said.removeprefix(LISTED)[:-1].split(", ")
        return LISTED + "; ".join(FACTS.get(name, name) for name in names) + "."
    return UNDERSCORED.sub(lambda found: f"“{FACTS[found[0]]}”" if found[0] in FACTS else found[0], said)
