"""The house rules of docs/architecture.md, checked on the source itself."""

import ast
import re
from pathlib import Path

import pytest

import expunge

PACKAGE = Path(expunge.__file__).parent
ORDER = ["_version", "errors", "objectives", "solve", "spectrum", "distance", "bounds", "noise", "data", "model", "sequence", "request", "train", "estimate",
         "certificate", "verification", "signing", "mechanism", "report", "desk", "sklearn", "demo", "cli"]  # fmt: skip
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
    assert listed == ORDER[1:]


def test_public_names_are_what_is_announced() -> None:
    assert sorted(expunge.__all__) == expunge.__all__ or set(expunge.__all__) == set(dict.fromkeys(expunge.__all__))
    public = {name for name in vars(expunge) if not name.startswith("_")}
    modules = {file.stem for file in PACKAGE.iterdir() if not file.name.startswith("_")} | {"annotations"}
    assert public - modules | ({"train"} & public) == set(expunge.__all__) - {"__version__"}
    assert callable(expunge.train)
    assert callable(expunge.unlearn)


def test_the_request_has_no_field_for_the_source() -> None:
    from expunge.mechanism import Measured, Unlearned
    from expunge.request import Request
    from expunge.solve import Unlearning

    for kind in (Request, Measured, Unlearned, Unlearning):
        assert not [name for name in kind.__dataclass_fields__ if name in ("source", "retain", "retained")]
