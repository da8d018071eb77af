"""What the numbers of a certificate are called on a page for somebody who is not a mathematician."""

from __future__ import annotations

import contextlib
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
    "row_bound": "longest a row can be",
    "sampling_failure": "probability that a sample was unlucky",
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
