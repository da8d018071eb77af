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
from expunge.desk.entries import DeskCreated
from expunge.desk.ledger import Ledger
from expunge.desk.policy import Policy

PACKAGE = Path(expunge.__file__).parent
ORDER = [
    "errors", "runtime", "distance", "bounds", "noise", "record", "certificate", "heads", "data", "model", "solve", "request",
    "train", "estimate", "evidence", "mechanism", "unlearn", "networks", "evaluate", "report", "desk", "sklearn", "cli",
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


TESTS = Path(__file__).parent
# folders whose modules need no test file of their own name, and why
TESTED_ELSEWHERE = {"cli": "commands compute nothing: tests/cli and tests/test_bad_input.py run them as a user does"}
# test files that are named after what they check, since it is no one module
CROSS_CUTTING = {
    "test_architecture.py": "the source itself",
    "test_bad_input.py": "every kind of bad input, from the command line to the message",
    "test_documents.py": "links, commands and names in docs/",
    "test_encoder_digest.py": "one fact on its way through training, unlearning, desk and evaluation",
    "test_extending.py": "what a new loss or kind of distance touches",
    "test_reference.py": "results against stored ones",
    "test_soundness.py": "the bound against the truth",
    "test_streaming.py": "rows that do not fit in memory, and several processes, through the whole mechanism",
    "certificate/test_forgeries.py": "certificates that a forger made with the code at hand",
    "certificate/test_sentences.py": "what a certificate says in words: rounded up, and of an encoder",
    "cli/test_cli.py": "what all commands share",
    "cli/test_faults.py": "output that is lost, full disks, signals and damaged ledgers, in processes of their own",
    "cli/test_injected.py": "an error of the operating system at every place that touches a file, for every command",
    "cli/test_desk.py": "the group of commands `expunge desk`",
    "cli/test_mistakes.py": "ordinary mistakes, made as somebody who knows only the README",
    "cli/test_named_columns.py": "files with named columns, from training to desk and evaluation",
    "cli/test_reference.py": "docs/commands.md",
    "cli/test_systems.py": "docs/systems.md: completion, and systems without `fcntl`",
    "desk/test_deposit_game.py": "what everything that a deposit's desk publishes says of who left",
    "desk/test_many_deletions.py": "a deposit's desk over many deletions, beside refits, and a search of its folder",
    "desk/test_state_machine.py": "a desk under random work, beside a simple model of it",
    "desk/test_membership_game.py": "what everything that is published says of who left",
    "evaluate/test_planted_faults.py": "faults planted in the mechanism, which audits must find",
    "test_notebooks.py": "the notebooks, but for the one that needs other packages",
    "test_site.py": "the site: its pages, links, commands, formulas and search",
    "test_dependencies.py": "what is declared, locked and licensed",
    "test_hostile_files.py": "files made to hurt, through the commands that read them",
    "networks/test_libraries.py": "encoders of other libraries, where they are installed",
    "networks/test_memory.py": "the peak memory of a process",
    "networks/test_text_classifier.py": "the notebook on a Hugging Face classifier, where its packages are installed",
    "networks/test_onnx.py": "encoders in ONNX files, where onnxruntime is installed",
    "report/test_browser.py": "pages in a browser",
    "request/test_own_record.py": "a record of other weights, wherever a model comes in from Python",
    "request/test_one_vector.py": "two classes with one weight vector, unlearned as two rows, from the request to a desk",
    "request/test_forget_class.py": "a whole class forgotten, from the request to the predictions",
    "sklearn/test_ten_models.py": "scikit-learn models as people write them, from fit to a certificate, beside refits",
    "soundness/test_beside.py": "a surrogate beside a deposit against exact retraining, on thousands of problems",
    "soundness/test_deposits.py": "deposits beside exact retraining, on thousands of problems",
    "soundness/test_hard_families.py": "bounds beside exact retraining on the families that are hardest for them",
    "soundness/test_named_settings.py": "the settings in which certificates were once false",
    "mutation/test_changes.py": "the changes of `make mutants`",
}


def mirrored(module: Path) -> Path:
    """Where the tests of a module are: `solve/newton.py` has `solve/test_newton.py`."""
    place = module.relative_to(PACKAGE)
    return place.with_name(f"test_{place.name}")


MODULES = [file for file in FILES if file.name not in ("__init__.py", "__main__.py")]


@pytest.mark.parametrize("module", MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_module_has_tests_of_its_name(module: Path) -> None:
    assert (TESTS / mirrored(module)).is_file() or room(module) in TESTED_ELSEWHERE, (
        f"tests/{mirrored(module)} is missing"
    )


def test_every_test_file_is_named_after_a_module_or_says_what_it_checks() -> None:
    """So that a module that is renamed takes its tests along; experiments are no part of the package."""
    there = {file.relative_to(TESTS) for file in TESTS.rglob("test_*.py")} - {
        file.relative_to(TESTS) for file in (TESTS / "experiments").rglob("*.py")
    }
    assert {str(file) for file in there - {mirrored(module) for module in MODULES}} == set(CROSS_CUTTING)
    missing = {room(module) for module in MODULES if mirrored(module) not in there}
    assert missing == set(TESTED_ELSEWHERE), "an exception that is none"


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
    from expunge.evidence.measured import Measured
    from expunge.mechanism import Unlearned
    from expunge.request.door import Request
    from expunge.solve.equation import SurrogateEquation

    for kind in (Request, Measured, Unlearned, SurrogateEquation):
        assert not [name for name in kind.__dataclass_fields__ if name in ("source", "retain", "retained")]


# Sizes ----------------------------------------------------------------------------------------------------------------

MOST_LINES, MOST_FUNCTION_LINES, MOST_ENTRIES = 400, 60, 26
# functions whose signature or whose one pass is spelled out, with the reason beside them in the source
LONG_FOR_A_REASON = {
    "unlearn.py:unlearn",
    "train.py:train",
    "cli/unlearn.py:unlearn",
    "request/door.py:ask",
    "evidence/moments.py:change_moments",
}


def test_few_entries_at_the_top() -> None:
    entries = {entry.name for entry in PACKAGE.iterdir() if entry.name != "__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_no_module_is_long_and_the_mechanism_is_short() -> None:
    lengths = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}
    assert lengths["mechanism.py"] <= 150


def test_no_function_is_long() -> None:
    long = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MOST_FUNCTION_LINES:
                long.add(f"{file.relative_to(PACKAGE)}:{node.name}")
    assert long == LONG_FOR_A_REASON


def test_step_region_noise_and_certificate_meet_in_one_place() -> None:
    """Only the mechanism draws noise and builds a certificate."""
    for name, home in {
        "added_to": "noise.py",
        "build": "certificate/content.py",
        "refuse_unsound": "request/refusals.py",
    }.items():
        users = {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if f"{name}(" in file.read_text()}
        assert users <= {home, "mechanism.py", *({"evaluate/methods.py"} if name == "refuse_unsound" else ())}, name
