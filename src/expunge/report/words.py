"""What the numbers of a certificate are called on a page for somebody who is not a mathematician."""

from __future__ import annotations

from expunge.errors import OptionError

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


PROVENANCE = {
    "measured": "computed from data that was at hand",
    "derived": "follows from other numbers by a formula",
    "declared": "stated by whoever ran Expunge; not checked",
    "estimated": "a heuristic estimate",
}
FACTS = {
    "n_source": "rows the model stood for before this deletion",
    "n_forget": "rows forgotten now",
    "n_surrogate": "rows of the stand-in data",
    "l2": "regularisation strength",
    "training_residual": "how far from its optimum the starting model was (norm of the gradient)",
    "solver_residual": "what the update left unsolved",
    "rounding": "largest possible arithmetic error",
    "row_bound": "longest a row can be",
    "sampling_failure": "probability that a sample was unlucky",
}
