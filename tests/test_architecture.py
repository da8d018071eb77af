"""The house rules of docs/architecture.md, checked on the source itself."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import expunge
from expunge import errors
from expunge.bounds import residual
from expunge.desk.ledger import DeskCreated, Ledger
from expunge.desk.policy import Policy

PACKAGE = Path(expunge.__file__).parent
ORDER = [
    "errors", "runtime", "distance", "bounds", "noise", "record", "certificate", "heads", "rows", "model", "solve", "request",
    "train", "estimate", "surrogate", "deposit", "mechanism", "unlearn", "networks", "evaluate", "report", "desk", "sklearn", "cli",
]  # fmt: skip
WITHOUT_TORCH = ("errors", "runtime", "distance", "bounds", "noise", "record", "certificate")
HEAVY = ("torch", "pyarrow", "matplotlib", "sklearn", "dp_accounting", "mpmath", "pandas")
STORED = Path(__file__).parent / "stored"


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(file for file in PACKAGE.rglob("*.py") if room(file) not in ("__init__", "__main__"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_module_imports_only_from_those_above_it(file: Path) -> None:
    own = ORDER.index(room(file))
    for name in imports(file):
        if name.startswith("expunge."):
            assert ORDER.index(name.split(".")[1]) <= own, f"{room(file)} imports {name}"


CHECKERS = [file for file in FILES if room(file) in WITHOUT_TORCH and file != PACKAGE / "runtime" / "group.py"]


@pytest.mark.parametrize("file", CHECKERS, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_a_certificate_is_checked_with_knows_nothing_of_torch(file: Path) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imports(file))


def test_nor_does_anything_it_imports() -> None:
    names = sorted(f"expunge.{'.'.join(file.relative_to(PACKAGE).with_suffix('').parts)}" for file in CHECKERS)
    assert "expunge.certificate.verify" in names
    modules = [name.removesuffix(".__init__") for name in names]
    run_apart(f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)")


def run_apart(program: str) -> None:
    """Run a program in a process of its own; fails if it loads what checking a file or a ledger can do without."""
    asserted = f"{program}\nheavy = sorted(set({HEAVY!r}) & set(sys.modules))\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", asserted], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_every_room_is_in_the_architecture_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)(?:\.py|/)`", page, flags=re.MULTILINE)
    assert listed == ORDER


@pytest.mark.parametrize("name", ["expunge", "expunge.desk"])
def test_public_names_are_what_is_announced(name: str) -> None:
    package = importlib.import_module(name)
    announced = list(package.__all__)
    assert announced == sorted(set(announced))
    assert namespace(package) == {public for public in announced if not public.startswith("_")}
    assert package.homes == lazy_for_mypy(Path(package.__file__ or ""), name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def namespace(package: ModuleType) -> set[str]:
    """What can be had of a package, modules and the machinery of lazy loading apart."""
    names = {name for name in dir(package) if not name.startswith("_")} - {"annotations", "homes", "load_lazily"}
    return {name for name in names - {"TYPE_CHECKING"} if not isinstance(getattr(package, name), ModuleType)}


def lazy_for_mypy(file: Path, package: str) -> dict[str, str]:
    """Names and their modules as a type checker is told them."""
    blocks = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)]
    found = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module).removeprefix(f"{package}.") for node in found for alias in node.names}


def test_every_exception_is_public_and_drawn_in_the_tree() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    public = {name for name in expunge.__all__ if isinstance(getattr(expunge, name), type)}
    assert {name for name in public if issubclass(getattr(expunge, name), Exception)} == tree
    assert set(re.findall(r"\w+", errors.__doc__ or "")) >= tree


def test_the_superseded_bound_is_no_public_name() -> None:
    for name in ("residual_bound", "ResidualFacts"):
        assert name not in expunge.__all__
        assert not hasattr(expunge, name)
    assert "default" not in (residual.__doc__ or "").split("superseded")[0]


def test_a_function_stays_public_when_the_module_of_its_name_is_loaded() -> None:
    program = (
        "import expunge, expunge.train, expunge.desk, expunge.desk.run, expunge.desk.status; from expunge import train; "
        "assert all(map(callable, (expunge.train, train, expunge.desk.run, expunge.desk.status)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    "command", ["--help", "desk status --help", "desk status FOLDER", "desk verify FOLDER", "desk history FOLDER"]
)
def test_looking_at_a_ledger_does_not_load_torch(command: str, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger.sqlite")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.append(DeskCreated(Policy(1.0, 1e-5, "same"), "00", "00", "00", "float64"))
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "published").mkdir()
    (tmp_path / "private" / "key").write_bytes(bytes(32))
    run_command(command.replace("FOLDER", str(tmp_path)))


@pytest.mark.parametrize("case", ["balanced", "chi2", "paper", "same", "source", "strict"])
def test_checking_a_certificate_does_not_load_torch(case: str) -> None:
    run_command(f"verify {STORED}/certificate-1-{case}.json --model {STORED}/model-1-{case}.safetensors")


def run_command(line: str) -> None:
    run_apart(f"import sys; from expunge.cli import main; main({line.split()!r}, standalone_mode=False)")


def test_the_request_has_no_field_for_the_source() -> None:
    from expunge.mechanism import Unlearned
    from expunge.request.door import Request
    from expunge.solve.equation import SurrogateEquation
    from expunge.surrogate.measured import Measured

    for kind in (Request, Measured, Unlearned, SurrogateEquation):
        assert not [name for name in kind.__dataclass_fields__ if name in ("source", "retain", "retained")]


# Sizes ----------------------------------------------------------------------------------------------------------------

MOST_ENTRIES = 27


def test_few_entries_at_the_top() -> None:
    entries = {entry.name for entry in PACKAGE.iterdir() if entry.name != "__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_step_region_noise_and_certificate_meet_in_one_place() -> None:
    """Only the mechanism draws noise and builds a certificate."""
    for name, home in {
        "added_to": "noise.py",
        "build": "certificate/dossier.py",
        "refuse_unsound": "request/refusals.py",
    }.items():
        users = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if f"{name}(" in file.read_text()}
        assert users <= {home, "mechanism.py", *({"evaluate/methods.py"} if name == "refuse_unsound" else ())}, name
