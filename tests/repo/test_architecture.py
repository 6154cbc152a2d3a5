"""The architecture's rules: each a function from a source tree to violations, and proof that it can fail."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "noeira"
SOURCE_FOLDERS = ("noeira", "mojo_kernels", "examples", "bench", "tests")
MAX_LINES = 600
# A layer may import itself and what it is mapped to.
LAYERS = {"runtime": set(), "ops": {"runtime"}, "nn": {"ops", "runtime"}}
CATCH_ALL_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, with the names taken from it (none for a plain `import`)."""

    module: str
    names: tuple[str, ...]
    line: int


def python_files(tree: Path) -> dict[str, Path]:
    """Dotted module name -> file, for the package in `tree`."""
    found = {}
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        parts = path.relative_to(tree).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test).split(".")[-1] == "TYPE_CHECKING"


def run_on_import(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node below `nodes` that runs when the module is imported."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        yield node
        if isinstance(node, ast.If) and is_type_checking(node.test):
            yield from run_on_import(node.orelse)
        else:
            yield from run_on_import(ast.iter_child_nodes(node))


def imports(module: str, path: Path, *, on_import_only: bool = False) -> Iterator[Import]:
    """The imports of a file; relative ones made absolute, `importlib.import_module("x")` counted too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = parse(path)
    for node in run_on_import([tree]) if on_import_only else ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(alias.name, (), node.lineno)
            case ast.ImportFrom(module=source, names=names, level=level):
                if level:
                    base = package.split(".")[: len(package.split(".")) - level + 1]
                    source = ".".join([*base, source] if source else base)
                yield Import(source or "", tuple(alias.name for alias in names), node.lineno)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if ast.unparse(func) in {"importlib.import_module", "import_module", "__import__"}:
                    yield Import(name, (), node.lineno)


def targets(item: Import) -> list[str]:
    return [f"{item.module}.{name}" for name in item.names] or [item.module]


def layer_of(module: str) -> str:
    return module.split(".")[1] if module.startswith(f"{PACKAGE}.") else ""


def upward_imports(tree: Path) -> list[str]:
    """Imports against the arrows nn -> ops -> runtime, wherever in the file they stand."""
    found = []
    for module, path in python_files(tree).items():
        layer = layer_of(module)
        for item in imports(module, path) if layer in LAYERS else ():
            reached = {layer_of(target) for target in targets(item)} & LAYERS.keys()
            for other in sorted(reached - LAYERS[layer] - {layer}):
                found.append(f"{path}:{item.line}: {layer} imports {other}")
    return found


def max_imports(tree: Path) -> list[str]:
    """Imports of MAX outside the runtime, and any `import max`, which hides the builtin."""
    found = []
    for module, path in python_files(tree).items():
        for item in imports(module, path):
            if item.module == "max" and not item.names:
                found.append(f"{path}:{item.line}: `import max` hides the builtin max")
            elif item.module.split(".")[0] == "max" and layer_of(module) != "runtime":
                found.append(f"{path}:{item.line}: only {PACKAGE}/runtime imports {item.module}")
            elif item.module.startswith("max.") and not item.names:
                found.append(f"{path}:{item.line}: `import {item.module}` binds `max`; use from ... import")
    return found


def long_files(tree: Path) -> list[str]:
    found = []
    for folder in SOURCE_FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            if path.suffix in {".py", ".mojo"} and path.is_file():
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > MAX_LINES:
                    found.append(f"{path}: {lines} lines, at most {MAX_LINES}")
    return found


def import_cycles(tree: Path) -> list[str]:
    """Cycles among imports that run on import, as paths.

    Importing a.b.c runs a and a.b too: they are edges as well, save those that contain the importer.
    """
    files = python_files(tree)
    graph = {module: {} for module in files}
    for module, path in files.items():
        for item in imports(module, path, on_import_only=True):
            for target in targets(item):
                edge = target if target in files else item.module
                graph[module][edge] = None
                for parent in accumulate(edge.split(".")[:-1], "{}.{}".format):
                    if not f"{module}.".startswith(f"{parent}."):
                        graph[module][parent] = None

    found, done = [], set()

    def visit(module: str, trail: list[str]) -> None:
        if module in trail:
            found.append(" -> ".join([*trail[trail.index(module) :], module]))
        elif module not in done:
            for other in filter(files.__contains__, graph[module]):
                visit(other, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])
    return found


def missing_docstrings(tree: Path) -> list[str]:
    """Public names without a docstring.

    Left out, as in ruff's own rule: setters and deleters (the getter has it), overloads (the implementation
    has it), and methods marked `@override` (the base class has it).
    """
    excused = {"setter", "deleter", "overload", "override"}
    found = []

    def visit(node: ast.Module | ast.ClassDef | ast.FunctionDef, path: Path, name: str) -> None:
        if ast.get_docstring(node) is None:
            found.append(f"{path}:{getattr(node, 'lineno', 1)}: {name} has no docstring")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        for child in run_on_import_bodies(node):
            marks = {ast.unparse(mark).split(".")[-1] for mark in child.decorator_list}
            if not child.name.startswith("_") and not marks & excused:
                visit(child, path, f"{name}.{child.name}")

    def run_on_import_bodies(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
            elif isinstance(child, ast.If | ast.Try | ast.With):
                yield from run_on_import_bodies(child)

    for module, path in python_files(tree).items():
        visit(parse(path), path, module)
    return found


def busy_inits(tree: Path) -> list[str]:
    """Package files that hold more than a docstring, imports, `__all__` and `__version__`."""
    found = []
    for path in python_files(tree).values():
        if path.name != "__init__.py":
            continue
        for node in parse(path).body:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                    continue
                case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")]):
                    continue
            found.append(f"{path}:{node.lineno}: {ast.unparse(node).splitlines()[0]}")
    return found


def catch_all_modules(tree: Path) -> list[str]:
    found = []
    for folder in (PACKAGE, "mojo_kernels"):
        for path in sorted((tree / folder).rglob("*")):
            source = path.suffix in {".py", ".mojo"} or path.is_dir()
            if source and path.stem.strip("_").lower() in CATCH_ALL_NAMES:
                found.append(f"{path}: name it after what it holds")
    return found


DOC = '"""Doc."""\n'
GOOD = {
    "noeira/__init__.py": DOC + 'from noeira.nn import layers\n__all__ = ["layers"]\n__version__ = "1"\n',
    "noeira/runtime/__init__.py": DOC,
    "noeira/runtime/session.py": DOC + "from max.driver import CPU\n",
    "noeira/ops/__init__.py": DOC + "from .linear import linear\n",
    "noeira/ops/linear.py": DOC + f"from ..runtime import session\ndef linear():\n    {DOC}",
    "noeira/nn/__init__.py": DOC,
    "noeira/nn/layers.py": f"""{DOC}
from typing import TYPE_CHECKING, override
from noeira.ops import linear
if TYPE_CHECKING:
    from noeira.nn.models import Net
class Layer:
    {DOC}
    def __init__(self): pass
    @override
    def forward(self): pass
def _hidden():
    from noeira.nn import models
""",
    "noeira/nn/models.py": DOC + "from .layers import Layer\n",
    "mojo_kernels/gemm.mojo": "\n" * MAX_LINES,
}
# (rule, the file that breaks it, its text, what the report says)
BAD = [
    (upward_imports, "noeira/runtime/bad.py", "from noeira.ops import linear", "runtime imports ops"),
    (upward_imports, "noeira/runtime/bad.py", "def f():\n    import noeira.nn.layers", "runtime imports nn"),
    (upward_imports, "noeira/ops/bad.py", "from .. import nn", "ops imports nn"),
    (upward_imports, "noeira/ops/deep/bad.py", "from ...nn.layers import Layer", "ops imports nn"),
    (max_imports, "noeira/nn/bad.py", "from max.graph import ops", "only noeira/runtime imports max.graph"),
    (max_imports, "noeira/ops/bad.py", "def f():\n    from max import graph", "only noeira/runtime"),
    (max_imports, "noeira/nn/bad.py", "__import__('max.graph')", "only noeira/runtime"),
    (max_imports, "noeira/runtime/bad.py", "import max", "hides the builtin"),
    (max_imports, "noeira/runtime/bad.py", "import max.driver", "binds `max`"),
    (long_files, "mojo_kernels/bad.mojo", "\n" * (MAX_LINES + 1), "601 lines"),
    (long_files, "tests/bad.py", "\n" * (MAX_LINES + 1), "601 lines"),
    (import_cycles, "noeira/nn/layers.py", "if 1:\n    from . import models", "noeira.nn.layers"),
    (import_cycles, "noeira/runtime/__init__.py", "import noeira.ops.linear", "noeira.runtime -> noeira.ops"),
    (missing_docstrings, "noeira/nn/bad.py", "x = 1", "noeira.nn.bad has no docstring"),
    (missing_docstrings, "noeira/nn/bad.py", DOC + "def f(): pass", "noeira.nn.bad.f has no docstring"),
    (missing_docstrings, "noeira/nn/bad.py", DOC + "class C: pass", "noeira.nn.bad.C has no docstring"),
    (
        missing_docstrings,
        "noeira/nn/bad.py",
        f"{DOC}class C:\n    {DOC}\n    def f(self): pass",
        "C.f has no",
    ),
    (busy_inits, "noeira/nn/__init__.py", DOC + "def f(): pass", "def f()"),
    (busy_inits, "noeira/nn/__init__.py", DOC + "LIMIT = 3", "LIMIT = 3"),
    (catch_all_modules, "noeira/nn/_utils.py", DOC, "name it after"),
    (catch_all_modules, "mojo_kernels/common/__init__.mojo", "", "name it after"),
]
RULES = list(dict.fromkeys(rule for rule, *_ in BAD))


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps_the_rule(rule):
    assert python_files(ROOT), f"no package {PACKAGE}/ at {ROOT}: nothing was checked"
    assert not (found := rule(ROOT)), "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_accepts_a_good_tree(rule, tmp_path):
    assert rule(write_tree(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "expected"),
    BAD,
    ids=[f"{rule.__name__}-{i}" for i, (rule, *_) in enumerate(BAD)],
)
def test_rule_reports_a_bad_file(rule, name, text, expected, tmp_path):
    found = rule(write_tree(tmp_path, GOOD | {name: text}))
    assert found and expected in found[0], found


def test_cycle_report_names_the_whole_path(tmp_path):
    text = {f"noeira/{a}.py": f"import noeira.{b}" for a, b in ("ab", "bc", "ca")}
    assert import_cycles(write_tree(tmp_path, text)) == ["noeira.a -> noeira.b -> noeira.c -> noeira.a"]
