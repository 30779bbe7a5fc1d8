# SPDX-License-Identifier: Apache-2.0
"""The house in order: short files, imports that go down, and no circle of files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
MAX_LINES = 400
# What each package may import of ours, tests aside. The first is a leaf.
MAY_IMPORT = {
    "flashinfer_masks": set[str](),
    "depcache": {"flashinfer_masks", "depcache_tiny"},
    "sglang_patches": {"flashinfer_masks", "depcache"},
    "models": {"depcache", "depcache_tiny"},
    "eval": {"flashinfer_masks", "depcache", "depcache_tiny", "models", "sglang_patches"},
}
# Commands, and the three places where SGLang calls us first: in its main process, and in that of a
# scheduler for the attention backend and for the cache.
SETTINGS_ARE_READ_IN = {
    "depcache/cli/doctor.py",
    "depcache/cli/inspect.py",
    "depcache/cli/serve.py",
    "sglang_patches/attention/__init__.py",
    "sglang_patches/hooks/server_args.py",
    "sglang_patches/plugin.py",
}
TIERS_HAVE_NAMES_IN = {("depcache", "cache"), ("depcache", "plan")}
OURS = {*MAY_IMPORT, "depcache_tiny"}
FILES = sorted(
    path.relative_to(ROOT)
    for folder in (*MAY_IMPORT, "datasets", "examples", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if "build" not in path.parts  # what `pip install ./sglang_patches` leaves behind
)


def name_of(file: Path) -> str:
    """Its dotted name; that of a package is of its `__init__`."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_at_once(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports when it is imported, `from` parts as well."""
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            todo.extend(ast.iter_child_nodes(node))


def imports() -> nx.DiGraph:
    """An edge from each of our modules to each that it imports at once."""
    modules = {name_of(file): file for file in FILES if file.parts[0] in MAY_IMPORT}
    graph = nx.DiGraph()
    graph.add_nodes_from(modules)
    for name, file in modules.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for target in imported_at_once(tree):
            known = target if target in modules else target.rpartition(".")[0]
            if known in modules and known != name:
                graph.add_edge(name, known)
            elif target.split(".")[0] == "depcache_tiny":
                graph.add_edge(name, "depcache_tiny")
    return graph


def test_a_file_can_be_read_in_one_sitting() -> None:
    assert len(FILES) > 400
    lengths = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {str(file): num for file, num in lengths.items() if num > MAX_LINES} == {}


def test_no_package_imports_one_above_it() -> None:
    graph = imports()
    assert graph.number_of_edges() > 500
    upward = [
        (source, target)
        for source, target in graph.edges
        if (there := target.split(".")[0]) != (here := source.split(".")[0])
        and there not in MAY_IMPORT[here]
    ]
    assert not upward


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = imports()
    # A package's __init__ only gathers names of its files.
    packages = {name_of(file) for file in FILES if file.name == "__init__.py"}
    graph.remove_nodes_from(packages)
    assert [
        sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1
    ] == []


def test_settings_are_read_where_a_program_begins_and_passed_on_from_there() -> None:
    reading = {
        str(file)
        for file in FILES
        if file.parts[0] in MAY_IMPORT
        and "load_config(" in (ROOT / file).read_text(encoding="utf-8")
    }
    assert reading - {"depcache/config.py"} == SETTINGS_ARE_READ_IN


def test_what_is_said_of_a_thing_has_a_subject() -> None:
    loose = re.compile(r'"""Of |# Of ')
    found = {
        f"{file}:{number}"
        for file in FILES
        if file != Path("tests/test_house.py")
        for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1)
        if loose.search(line)
    }
    assert found == set()


def test_a_tier_is_named_in_one_place() -> None:
    spelled = {
        str(file)
        for file in FILES
        if file.parts[:2] in TIERS_HAVE_NAMES_IN or file.parts[0] == "sglang_patches"
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("host", "disk")
    }
    # The second one says by what its estimates go, as a type.
    assert spelled == {"sglang_patches/tiers/names.py", "sglang_patches/tiers/bandwidth.py"}


def test_every_module_of_the_plugin_has_a_test_file_or_is_said_to_be_tested_elsewhere() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    elsewhere: list[str] = []
    for tests, modules in re.findall(r"^\| `tests/([\w/]+\.py)` \| (`.+?`) \|", text, re.MULTILINE):
        assert (ROOT / "tests" / tests).is_file(), tests
        elsewhere += re.findall(r"`(.+?)`", modules)
    modules = {
        str(file.relative_to("sglang_patches"))
        for file in FILES
        if file.parts[0] == "sglang_patches" and file.name != "__init__.py"
    }
    own = {
        name
        for name in modules
        if (ROOT / "tests" / "sglang_patches" / name).with_name(f"test_{Path(name).name}").is_file()
    }
    assert sorted(elsewhere) == sorted(modules - own)


def test_what_is_imported_only_for_types_or_later_does_not_count() -> None:
    source = """
import a
from b import c
if TYPE_CHECKING:
    import d
def f():
    import e
class G:
    import h
"""
    assert set(imported_at_once(ast.parse(source))) == {"a", "b.c", "h"}
