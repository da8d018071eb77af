"""What the numbers of a certificate are called on a page for somebody who is not a mathematician."""

from __future__ import annotations

TERMS = {
    "training": ("Training and earlier deletions", "how far the starting model may have been from its own optimum"),
    "solver": ("Unsolved remainder", "what the computation of the update left over; measured"),
    "surrogate": ("Surrogate differs", "the stand-in data is not distributed like the source"),
    "sampling": ("Finite samples", "source and stand-in are samples, and samples deviate"),
    "rounding": ("Arithmetic", "computers round; this is the most it can have done"),
    "grid": ("Noise grid", "weights are rounded before the noise is added, so that no digit leaks"),
    "newton": ("One step only", "what a single Newton step leaves out"),
}
STATUS = {
    "proven": "Proven: nothing but checked facts stands behind it.",
    "conditional": "Conditional: true if the facts listed under “assumed” are true. Nobody checked those.",
    "estimated": "Estimated: some number behind it is a heuristic estimate. Do not treat it as a proof.",
}
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
