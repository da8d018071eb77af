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
from expunge.desk.ledger import Ledger

PACKAGE = Path(expunge.__file__).parent
ORDER = [
    "errors", "runtime", "distance", "bounds", "noise", "record", "certificate", "heads", "data", "model", "solve", "request",
    "train", "estimate", "evidence", "mechanism", "unlearn", "networks", "evaluate", "report", "desk", "sklearn", "cli",
]  # fmt: skip
WITHOUT_TORCH = ("bounds", "noise", "distance", "errors")


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


@pytest.mark.parametrize("file", [file for file in FILES if room(file) in WITHOUT_TORCH], ids=lambda file: file.name)
def test_bounds_and_noise_know_nothing_of_torch(file: Path) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imports(file))


def test_every_room_is_in_the_architecture_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)(?:\.py|/)`", page, flags=re.MULTILINE)
    assert listed == ORDER


@pytest.mark.parametrize("name", ["expunge", "expunge.desk"])
def test_public_names_are_what_is_announced(name: str) -> None:
    package = importlib.import_module(name)
    assert sorted(package.__all__) == package.__all__ or len(set(package.__all__)) == len(package.__all__)
    assert set(package.homes) <= set(package.__all__)
    for public in package.__all__:
        value = getattr(package, public)
        assert not isinstance(value, ModuleType), public
        assert public in dir(package)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def test_a_function_stays_public_when_the_module_of_its_name_is_loaded() -> None:
    program = (
        "import expunge, expunge.train, expunge.desk, expunge.desk.run, expunge.desk.status; from expunge import train; "
        "assert all(map(callable, (expunge.train, train, expunge.desk.run, expunge.desk.status)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("command", ["--help", "status --help", "status desk", "ledger verify desk", "history desk"])
def test_looking_at_a_ledger_does_not_load_torch(command: str, tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger.sqlite")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.append("created", {"policy": {"epsilon": 1.0, "delta": 1e-5, "distance": "same"}})
    (tmp_path / "private").mkdir()
    (tmp_path / "published").mkdir()
    (tmp_path / "private" / "key").write_bytes(bytes(32))
    line = command.replace("desk", str(tmp_path)).split()
    program = f"import sys; from expunge.cli import main; main({line!r}, standalone_mode=False); assert 'torch' not in sys.modules, 'torch'"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_request_has_no_field_for_the_source() -> None:
    from expunge.evidence.measured import Measured
    from expunge.mechanism import Unlearned
    from expunge.request.door import Request
    from expunge.solve.equation import SurrogateEquation

    for kind in (Request, Measured, Unlearned, SurrogateEquation):
        assert not [name for name in kind.__dataclass_fields__ if name in ("source", "retain", "retained")]
