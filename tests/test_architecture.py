"""The house rules as tests: which room may import which, where torch may appear, how large a piece may be.

The table is the one in docs/concepts.md. Each rule is a small function that returns what breaks it; below
each, a test shows it the real package, and another shows that it notices a violation.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

import grimp
import pytest

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "steprl"

Edge = tuple[str, str]
"""(importing module, imported module), both with their full dotted names."""

BASE = frozenset({"types", "errors", "registry"})
LEAVES = "tasks tools rewards context renderers engines trajectory credit batch weights".split()
ROLLOUT = BASE | {"envs", "tasks", "rewards", "context", "renderers", "engines", "trajectory"}
TRAINERS = BASE | {*LEAVES, "envs", "rollout", "learner", "config"}
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "types": frozenset({"errors"}),
    "registry": frozenset({"types", "errors"}),
    "config": BASE,
    **{room: BASE for room in LEAVES},
    "envs": BASE | {"tasks", "tools"},
    "rollout": ROLLOUT,
    "learner": BASE | {"batch"},
    "trainers": TRAINERS,
    "cli": TRAINERS | {"trainers", "steprl"},
    "__main__": frozenset({"cli"}),
}

HEAVY = frozenset({"torch", "transformers", "tokenizers", "safetensors", "vllm"})
HEAVY_HOMES = (
    "steprl.batch",
    "steprl.learner",
    "steprl.weights",
    "steprl.engines.torch",
    "steprl.engines.vllm",
)
TOKENIZER_LIBRARY, TOKENIZER_HOME = frozenset({"tokenizers", "transformers"}), "steprl.renderers.loading"
LIGHT_ROOMS = BASE | {"config", "envs", "rollout", *LEAVES} - {"batch", "weights", "engines"}

FILE_SOFT, FILE_HARD = 300, 500
FUNCTION_SOFT, FUNCTION_HARD = 60, 100
INHERITANCE = 2
LONG_FILES: frozenset[str] = frozenset()
LONG_FUNCTIONS: frozenset[str] = frozenset()
"""What may be longer than the soft limit, by name. Add one only with the reason beside it."""


# --- imports ------------------------------------------------------------------------------------------


@cache
def package_edges() -> tuple[Edge, ...]:
    """Every import in the package, imports inside functions and under TYPE_CHECKING included."""
    graph = grimp.build_graph("steprl", include_external_packages=True, cache_dir=None)
    modules = sorted(module for module in graph.modules if module.split(".")[0] == "steprl")
    return tuple(
        (module, found)
        for module in modules
        for found in sorted(graph.find_modules_directly_imported_by(module))
    )


def room(module: str) -> str:
    """``steprl.credit.grpo`` is in ``credit``; the package's own ``__init__`` is ``steprl``."""
    return module.split(".")[1] if "." in module else module


def layer_violations(edges: Iterable[Edge], allowed: Mapping[str, Collection[str]]) -> list[str]:
    """Imports from one room of ours into another that the table does not list."""
    found = []
    for importer, imported in edges:
        if importer == "steprl" or imported.split(".")[0] != "steprl" or room(importer) == room(imported):
            continue
        if room(importer) not in allowed:
            found.append(f"{importer}: the room '{room(importer)}' is not in the table")
        elif room(imported) not in allowed[room(importer)]:
            listing = ", ".join(sorted(allowed[room(importer)])) or "nothing of ours"
            found.append(f"{importer} imports {imported}; {room(importer)} may import {listing}")
    return found


def external_violations(edges: Iterable[Edge]) -> list[str]:
    """Imports of types and errors that are neither the standard library nor numpy."""
    return [
        f"{importer} imports {imported}"
        for importer, imported in edges
        if room(importer) in ("types", "errors")
        and imported.split(".")[0] not in {"steprl", "numpy", *sys.stdlib_module_names}
    ]


def heavy_violations(edges: Iterable[Edge]) -> list[str]:
    """Imports of torch and its kin outside their homes. One renderer file may load a tokenizer; that it does
    so lazily is for ``test_the_light_rooms_do_not_import_torch`` to see."""
    return [
        f"{importer} imports {imported}"
        for importer, imported in edges
        if (library := imported.split(".")[0]) in HEAVY
        and not importer.startswith(HEAVY_HOMES)
        and not (importer == TOKENIZER_HOME and library in TOKENIZER_LIBRARY)
    ]


def test_rooms_import_only_what_the_table_allows() -> None:
    assert layer_violations(package_edges(), ALLOWED) == []


def test_types_and_errors_need_only_numpy() -> None:
    assert external_violations(package_edges()) == []


def test_torch_stays_in_its_rooms() -> None:
    assert heavy_violations(package_edges()) == []


def test_the_graph_sees_real_imports() -> None:
    assert {("steprl.registry", "steprl.errors"), ("steprl.types.records", "numpy")} <= set(package_edges())


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("steprl.credit.grpo", "steprl.rollout.pool"),
        ("steprl.credit.grpo", "steprl.batch"),
        ("steprl.envs.courier", "steprl.engines"),
        ("steprl.learner.losses", "steprl.credit"),
        ("steprl.rollout.session", "steprl.config"),
        ("steprl.trainers.loop", "steprl.cli"),
        ("steprl.types.records", "steprl.registry"),
        ("steprl.tools.base", "steprl"),
        ("steprl.attic.old", "steprl.errors"),
    ],
)
def test_a_forbidden_import_is_noticed(importer: str, imported: str) -> None:
    (message,) = layer_violations([(importer, imported)], ALLOWED)
    assert importer in message


def test_permitted_imports_pass() -> None:
    permitted = [
        ("steprl", "steprl.envs.tool_env"),
        ("steprl.cli.train", "steprl.trainers.loop"),
        ("steprl.credit.grpo", "steprl.credit._groups"),
        ("steprl.envs.courier", "steprl.tools"),
        ("steprl.learner.losses", "steprl.batch"),
        ("steprl.types.records", "numpy"),
    ]
    assert layer_violations(permitted, ALLOWED) == []


def test_a_foreign_package_in_types_is_noticed() -> None:
    edges = [
        ("steprl.types.records", "pydantic"),
        ("steprl.types.records", "numpy"),
        ("steprl.errors", "difflib"),
    ]
    assert external_violations(edges) == ["steprl.types.records imports pydantic"]


def test_torch_outside_its_rooms_is_noticed() -> None:
    homes = [("steprl.learner.losses", "torch"), ("steprl.engines.torch_engine", "transformers")]
    tokenizer = (TOKENIZER_HOME, "transformers")
    strays = [
        ("steprl.engines.scripted", "torch"),
        (TOKENIZER_HOME, "torch"),
        ("steprl.renderers.chat", "transformers"),
    ]
    assert heavy_violations([*homes, tokenizer, *strays]) == [
        "steprl.engines.scripted imports torch",
        "steprl.renderers.loading imports torch",
        "steprl.renderers.chat imports transformers",
    ]


# --- what an import loads -----------------------------------------------------------------------------


def heavy_after(statements: str) -> list[str]:
    """The heavy packages that a fresh Python has loaded once it has run ``statements``."""
    ending = f"\nimport sys\nprint(*sorted({set(HEAVY)!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", statements + ending], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_writing_an_environment_does_not_import_torch() -> None:
    statements = "import steprl; steprl.ToolEnv; steprl.tool; import steprl.envs.courier, steprl.cli"
    assert heavy_after(statements) == []


def test_checking_an_environment_does_not_import_torch() -> None:
    statements = """
import contextlib, os, sys
from steprl.cli import main
sys.argv = "steprl env check courier --resets 5 --episodes 1".split()
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
    main()
"""
    assert heavy_after(statements) == []


def test_the_light_rooms_do_not_import_torch() -> None:
    modules = sorted({importer for importer, _ in package_edges() if room(importer) in LIGHT_ROOMS})
    assert heavy_after("import " + ", ".join([*modules, "steprl.engines.scripted"])) == []


def test_a_heavy_import_is_noticed() -> None:
    assert "safetensors" in heavy_after("import safetensors")


# --- sizes --------------------------------------------------------------------------------------------


@cache
def sources() -> dict[str, str]:
    """Text of every module of the package, by its path inside the package."""
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


def function_lengths(path: str, text: str) -> dict[str, int]:
    """Lines of each function and method, nested ones too, as ``path::name`` (decorators not counted)."""
    return {
        f"{path}::{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def over_budget(sizes: Mapping[str, int], soft: int, hard: int, excused: Collection[str]) -> list[str]:
    """What is longer than ``soft`` without being excused, or longer than ``hard`` at all; and excuses that
    are no longer needed."""
    long = [
        f"{name}: {size} lines (limit {hard if name in excused else soft})"
        for name, size in sizes.items()
        if size > (hard if name in excused else soft)
    ]
    stale = [f"{name}: no excuse needed any more" for name in excused if sizes.get(name, 0) <= soft]
    return long + sorted(stale)


def inheritance_depths(texts: Iterable[str]) -> dict[str, int]:
    """For each class of ours, the number of inheritance steps above it that stay among our classes."""
    bases: dict[str, set[str]] = {}
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                names = {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases}
                bases.setdefault(node.name, set()).update(names - {node.name})

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases[name] if base in bases), default=0)

    return {name: depth(name) for name in bases}


def repeated_names(paths: Iterable[Path]) -> list[str]:
    """File names that occur more than once; pytest would take one module for the other."""
    return sorted(name for name, count in Counter(path.name for path in paths).items() if count > 1)


def test_files_stay_short() -> None:
    lengths = {path: text.count("\n") for path, text in sources().items()}
    assert over_budget(lengths, FILE_SOFT, FILE_HARD, LONG_FILES) == []


def test_functions_stay_short() -> None:
    lengths: dict[str, int] = {}
    for path, text in sources().items():
        for name, size in function_lengths(path, text).items():
            lengths[name] = max(size, lengths.get(name, 0))  # methods of one name: the longest counts
    assert over_budget(lengths, FUNCTION_SOFT, FUNCTION_HARD, LONG_FUNCTIONS) == []


def test_inheritance_stays_shallow() -> None:
    deep = {
        name: steps for name, steps in inheritance_depths(sources().values()).items() if steps > INHERITANCE
    }
    assert deep == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path, text in sources().items() if not ast.get_docstring(ast.parse(text))]
    assert silent == []


def test_every_room_of_the_table_is_a_place_or_not_yet_built() -> None:
    built = {path.split("/")[0].removesuffix(".py") for path in sources()}
    assert built - {"__init__"} <= set(ALLOWED)


def test_test_files_have_names_of_their_own() -> None:
    assert repeated_names(TESTS.rglob("test_*.py")) == []


def test_long_things_are_noticed() -> None:
    sizes = {"short": 10, "long": 61, "excused": 61, "hopeless": 101, "reformed": 60}
    assert over_budget(sizes, 60, 100, {"excused", "hopeless", "reformed"}) == [
        "long: 61 lines (limit 60)",
        "hopeless: 101 lines (limit 100)",
        "reformed: no excuse needed any more",
    ]


def test_function_length_counts_every_function() -> None:
    text = "def f():\n  def g():\n    pass\n  return g\n\nclass C:\n  async def h(self):\n    pass\n"
    assert function_lengths("m.py", text) == {"m.py::f": 4, "m.py::g": 2, "m.py::h": 2}


def test_deep_inheritance_is_noticed() -> None:
    texts = ["class A(ABC): ...\nclass B(A, Generic[T]): ...", "class C(other.B[int]): ...\nclass D(C): ..."]
    assert inheritance_depths(texts) == {"A": 0, "B": 1, "C": 2, "D": 3}


def test_a_repeated_test_name_is_noticed() -> None:
    assert repeated_names([Path("a/test_x.py"), Path("b/test_x.py"), Path("b/test_y.py")]) == ["test_x.py"]
