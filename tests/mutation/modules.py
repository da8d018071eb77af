"""Which modules are changed, and which tests are to notice: those that are about them first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A file of the package (or all of a folder), what of it is changed (all, if nothing is said), and its tests."""

    pattern: str
    tests: tuple[str, ...]
    only: tuple[str, ...] = ()


BOUNDS = ("tests/bounds/test_*.py",)
CERTIFICATES = (  # of what is verified, that stored numbers still follow from their facts
    "tests/certificate/test_derive.py",
    "tests/certificate/test_verify.py::test_what_is_stored_opens_and_verifies",
    "tests/test_reference.py",
)
RETRAINED = "tests/test_soundness.py::"
WHOLE = (  # of what takes long, the tests whose numbers leave least room
    "tests/test_mechanism.py::test_the_claimed_delta_is_what_sigma_gives",
    "tests/test_mechanism.py::test_float32_rows_and_weights_keep_the_bound",
    RETRAINED + "test_known_and_chi_square_are_attained",
    RETRAINED + "test_kullback_leibler_is_nearly_attained",
    RETRAINED + "test_total_variation_is_attained_but_for_the_factor_of_two",
    RETRAINED + "test_no_update_is_further_from_retraining_than_the_bound_says[0]",
    "tests/soundness/test_hard_families.py::test_a_series_of_ten",
)
NOISE = ("tests/test_noise.py", "tests/bounds/test_calibration.py")
EVIDENCE = ("tests/surrogate/test_*.py",)
HEADS = ("tests/heads/test_*.py", "tests/solve/test_*.py")

TARGETS = (
    Target("bounds/*.py", (*BOUNDS, *NOISE[1:], *CERTIFICATES, *EVIDENCE, *WHOLE)),
    Target("distance.py", ("tests/distance/test_*.py", *BOUNDS, *CERTIFICATES, *WHOLE)),
    Target("noise.py", (*NOISE, *CERTIFICATES, *WHOLE)),
    Target(
        "surrogate.py",
        (
            *EVIDENCE,
            "tests/solve/test_linear.py",
            *CERTIFICATES,
            "tests/request/test_*.py",
            "tests/networks/test_tangent.py",
            *WHOLE,
        ),
    ),
    Target("curvature.py", ("tests/test_curvature.py", "tests/soundness/test_curvature.py")),
    Target(
        "deposit/matrices.py",
        ("tests/deposit/test_shape.py", "tests/deposit/test_matrices.py", "tests/deposit/test_make.py"),
    ),
    Target(
        "solve/linear.py",
        ("tests/solve/test_*.py", *EVIDENCE, *WHOLE),
        only=("", "lanczos_steps", "largest_eigenvalue_upper", "lanczos"),
    ),
    Target("heads/tangent.py", (*HEADS, "tests/networks/test_tangent.py")),
    Target("heads/linear.py", (*HEADS, "tests/test_train.py", *WHOLE)),
    Target(
        "record.py",
        ("tests/test_record.py", "tests/bounds/test_paper.py", *HEADS[:1], *CERTIFICATES),
        only=("", "Constants", "Loss", "softmax_constants", "ridge_constants"),
    ),
    Target("certificate/derive.py", (*CERTIFICATES, *BOUNDS, *NOISE, *EVIDENCE, *WHOLE)),
)


def files_of(target: Target, package: Path) -> list[Path]:
    return sorted(package.glob(target.pattern))


def suites_of(target: Target, root: Path) -> list[str]:
    """The test files that there are, in the order of their patterns; tests of a file that are named stay as they are."""
    found: dict[str, None] = {}
    for pattern in target.tests:
        file, named, test = pattern.partition("::")
        found |= dict.fromkeys(f"{path.relative_to(root)}{named}{test}" for path in sorted(root.glob(file)))
    return list(found)


def text_of(suite: str, root: Path) -> str:
    """The file of a suite."""
    return (root / suite.partition("::")[0]).read_text()
