"""The rules of docs/architecture.md, checked on the source itself: imports, torch, public names."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import expunge
from expunge import errors
from expunge.desk.ledger import DeskCreated, Ledger
from expunge.desk.policy import Policy

PACKAGE = Path(expunge.__file__).parent
STORED = Path(__file__).parent / "stored"
ORDER = [
    "errors", "runtime", "distance", "bounds", "noise", "record", "certificate", "heads", "rows", "model", "solve", "request",
    "evidence", "train", "estimate", "surrogate", "deposit", "curvature", "door", "mechanism", "unlearn", "networks", "evaluate",
    "report", "desk", "sklearn", "cli",
]  # fmt: skip
WITHOUT_TORCH = ORDER[: ORDER.index("heads")]
HEAVY = ("torch", "pyarrow", "matplotlib", "sklearn", "dp_accounting", "mpmath", "pandas")


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(file for file in PACKAGE.rglob("*.py") if room(file) not in ("__init__", "__main__"))
CHECKERS = [file for file in FILES if room(file) in WITHOUT_TORCH and file != PACKAGE / "runtime" / "group.py"]
LOADER = PACKAGE / "runtime" / "arrays.py"  # loads torch where a user asks for what only torch does


def imports(node: ast.AST) -> Iterator[str]:
    """Modules that are imported when the code runs: not those that only a type checker is told."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        else:
            yield from imports(child)


def test_imports_go_one_way_and_none_below_heads_is_torch() -> None:
    for file in FILES:
        for name in imports(ast.parse(file.read_text())):
            if name.startswith("expunge."):
                assert ORDER.index(name.split(".")[1]) <= ORDER.index(room(file)), f"{file} imports {name}"
            assert file not in CHECKERS or file == LOADER or name.split(".")[0] != "torch", file


def run_apart(program: str) -> None:
    """Run a program in a process of its own; fails if it loads what checking a file or a ledger can do without."""
    asserted = f"{program}\nheavy = sorted(set({HEAVY!r}) & set(sys.modules))\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", asserted], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_below_heads_loads_torch_by_a_detour() -> None:
    parts = (file.relative_to(PACKAGE).with_suffix("").parts for file in CHECKERS)
    modules = [f"expunge.{'.'.join(each)}".removesuffix(".__init__") for each in parts]
    assert "expunge.certificate.verify" in modules
    run_apart(f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)")


def model_of(certificate: Path) -> Path:
    return certificate.with_name(certificate.name.replace("dossier", "model")).with_suffix(".safetensors")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk as far as looking at it needs one."""
    folder = tmp_path_factory.mktemp("desk")
    Ledger.create(folder / "ledger.sqlite")
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.append(DeskCreated(Policy(1.0, 1e-5, "same"), "00", "00", "00", "float64"))
    (folder / "private").mkdir(mode=0o700)
    (folder / "published").mkdir()
    (folder / "private" / "key").write_bytes(bytes(32))
    return folder


def test_verifying_and_looking_at_a_desk_do_not_load_torch(desk: Path) -> None:
    commands = [
        "--help",
        "unlearn --help",
        "desk status --help",
        *(f"desk {look} {desk}" for look in ("status", "verify", "history")),
    ]
    commands += [f"verify {file} --model {model_of(file)}" for file in sorted(STORED.glob("dossier-3-*.json"))]
    assert len(commands) > 5
    calls = [f"main({line.split()!r}, standalone_mode=False)" for line in commands]
    run_apart("\n".join(["import sys; from expunge.cli import main", *calls]))


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, *_):
        if name.partition('.')[0] == 'torch':
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Without())
"""  # importing torch fails, as where it is not installed


def test_training_deposits_requests_and_desks_do_without_torch(tmp_path: Path) -> None:
    """And what needs it says how to get it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), np.arange(300) % 3
    X[:, 0] += y
    np.savez(tmp_path / "source.npz", X=X, y=y)
    np.savez(tmp_path / "forget.npz", X=X[:1], y=y[:1])
    np.savez(tmp_path / "surrogate.npz", X=X[150:], y=y[150:])
    given = f"--forget {tmp_path}/forget.npz --epsilon 1 --delta 1e-3 --force"
    model, deposit, desk = tmp_path / "model.safetensors", tmp_path / "model.deposit", tmp_path / "desk"
    train = f"train --data {tmp_path}/source.npz --l2 0.1 --max-norm 3 --out {tmp_path}"
    beside = f"--model {model} --surrogate {tmp_path}/surrogate.npz --distance same"
    program = [
        WITHOUT,
        "from expunge.cli import main",
        *(
            f"main({line.split()!r}, standalone_mode=False)"
            for line in (
                f"{train}/model.safetensors --deposit {deposit}",
                f"unlearn --model {model} --deposit {deposit} {given} --out {tmp_path}/kept",
                f"unlearn {beside} {given} --out {tmp_path}/beside",
                f"verify {tmp_path}/kept/statement.json --model {tmp_path}/kept/model.safetensors",
                f"desk init {desk} {beside} --epsilon 1 --delta 1e-3 --force",
                f"desk request {desk} --forget {tmp_path}/forget.npz --reference case",
                f"desk run {desk}",
                f"desk verify {desk}",
            )
        ),
        f"main('{train}/another.safetensors --device cuda'.split())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "torch is not installed" in done.stderr
    assert 'pip install "expunge[torch]"' in " ".join(done.stderr.split())
    assert len(list((desk / "published").rglob("model.safetensors"))) == 1


@pytest.mark.parametrize("name", ["expunge", "expunge.desk"])
def test_public_names_are_what_is_announced(name: str) -> None:
    package = importlib.import_module(name)
    announced = list(package.__all__)
    assert announced == sorted(set(announced))
    names = {name for name in dir(package) if not name.startswith("_")}
    names -= {"annotations", "homes", "load_lazily", "TYPE_CHECKING"}
    own = {name for name in names if not isinstance(getattr(package, name), ModuleType)}
    assert own == {public for public in announced if not public.startswith("_")}
    assert package.homes == lazy_for_mypy(Path(package.__file__ or ""), name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = package.nothing


def lazy_for_mypy(file: Path, package: str) -> dict[str, str]:
    """Names and their modules as a type checker is told them."""
    blocks = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If)]
    imported = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module).removeprefix(f"{package}.") for node in imported for alias in node.names}


def test_every_exception_is_public_and_drawn_in_the_tree() -> None:
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    public = {name for name in expunge.__all__ if isinstance(getattr(expunge, name), type)}
    assert {name for name in public if issubclass(getattr(expunge, name), Exception)} == tree
    assert set(re.findall(r"\w+", errors.__doc__ or "")) >= tree


def test_every_room_is_in_the_architecture_page_in_order() -> None:
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    assert re.findall(r"^\| `([a-z_]+)(?:\.py|/)`", page, flags=re.MULTILINE) == ORDER
