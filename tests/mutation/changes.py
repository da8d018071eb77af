"""What can be changed in a module, one thing at a time: constants, operators, comparisons, minima and maxima, and/or, not."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# a comparison is turned round; one that orders is also moved by its boundary
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
NAMES = {"min": "max", "minimum": "maximum", "fmin": "fmax", "ceil": "floor", "any": "all"}
NAMES |= {other: name for name, other in NAMES.items()}
UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)  # words, and what only narrows types
UNTOUCHED_FIELDS = ("annotation", "returns", "decorator_list", "type_params")
UNTOUCHED_KEYWORDS = ("strict",)  # of zip


@dataclass(frozen=True)
class Place:
    """A node that can be changed, by the way to it from the module, with the functions and classes it is in."""

    way: tuple[tuple[str, int | None], ...]
    within: str
    new: ast.expr | ast.stmt
    old: ast.expr | ast.stmt


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    within: str
    text: str
    change: str
    place: Place
    before: str  # of the line, what stands before it

    @property
    def key(self) -> str:
        """What names it for as long as the line stays as it is."""
        return f"{self.file}|{self.within}|{self.text}|{self.change}|{self.place.old.col_offset}"


def mutants_of(file: str, source: str, only: tuple[str, ...] = ()) -> list[Mutant]:
    """All changes of a file; with `only` those within functions or classes of these names, or at the module's top ('')."""
    lines = source.splitlines()
    found = []
    for place in _places(ast.parse(source), (), ""):
        if only and place.within.split(".")[0] not in only:
            continue
        old = place.old
        change = f"{ast.unparse(old)} -> {ast.unparse(place.new)}"
        line = lines[old.lineno - 1]
        found.append(
            Mutant(file, old.lineno, place.within, line.strip(), change, place, line[: old.col_offset].strip())
        )
    return found


def changed(source: str, mutant: Mutant, name: str) -> CodeType:
    """The module's code with the change made."""
    tree = ast.parse(source)
    node: ast.AST = tree
    for field, index in mutant.place.way[:-1]:
        node = getattr(node, field) if index is None else getattr(node, field)[index]
    field, index = mutant.place.way[-1]
    new = ast.copy_location(copy.deepcopy(mutant.place.new), mutant.place.old)
    if index is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[index] = new
    return compile(ast.fix_missing_locations(tree), name, "exec")


def _places(node: ast.AST, way: tuple[tuple[str, int | None], ...], within: str) -> Iterator[Place]:
    if isinstance(node, UNTOUCHED) or (isinstance(node, ast.keyword) and node.arg in UNTOUCHED_KEYWORDS):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, (ast.expr, ast.stmt)):
        for new in _alternatives(node):
            yield Place(way, within, new, node)
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        within = f"{within}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED_FIELDS:
            continue
        if isinstance(value, ast.AST):
            yield from _places(value, (*way, (field, None)), within)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _places(item, (*way, (field, index)), within)


def _alternatives(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif (
        isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not (_is_text(node.left) or _is_text(node.right))
    ):
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS and not _is_text(node.value):
        yield ast.AugAssign(node.target, OPERATORS[type(node.op)](), node.value)
    elif isinstance(node, ast.Compare):
        yield from _comparisons(node)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(value: object) -> Iterator[ast.expr]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
        if value == 1:
            yield ast.Constant(0)
    elif isinstance(value, float):
        yield ast.Constant(float(f"{1.1 * value:.12g}") if value else 1.0)
        if value == 1.0:
            yield ast.Constant(0.0)


def _comparisons(node: ast.Compare) -> Iterator[ast.expr]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            yield ast.Compare(node.left, [*node.ops[:index], other(), *node.ops[index + 1 :]], node.comparators)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in NAMES:
        yield ast.Call(ast.Name(NAMES[function.id], ast.Load()), node.args, node.keywords)
    elif isinstance(function, ast.Attribute) and function.attr in NAMES:
        yield ast.Call(ast.Attribute(function.value, NAMES[function.attr], ast.Load()), node.args, node.keywords)


def _is_text(node: ast.expr) -> bool:
    """Whether an operand shows that words are put together."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) or _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
