"""The shape of the package follows the tables in `shape`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from shape import (
    BANNED_NAMES,
    FILE_LINES,
    FUNCTION_LINES,
    IMPORT_CPU_S,
    MAY_IMPORT,
    ONLY_IN,
    PACKAGE,
    PATH_LINES,
    PATH_UNITS,
    PIPELINE_LINES,
    REPO,
    VERSION_SUFFIX,
)


class Allowed(NamedTuple):
    """Why one rule does not hold in one place, and since when."""

    reason: str
    date: str


# "rule path[:name]" -> why. An entry that no longer excuses anything fails the tests.
EXCEPTIONS: dict[str, Allowed] = {}


class Import(NamedTuple):
    """One import statement: where it stands and the module it names."""

    path: Path
    line: int
    target: str


def modules_in(root: Path) -> list[Path]:
    """Return the Python files under a folder, in a stable order."""
    return sorted(p for p in root.rglob("*.py") if not {"__pycache__", "build"} & set(p.relative_to(root).parts))


def unit_of(path: Path, package: Path) -> str:
    """Return the room or top-level module that a file belongs to."""
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def resolve_relative(node: ast.ImportFrom, path: Path, package: Path) -> str:
    """Return the absolute module that an import statement names."""
    if not node.level:
        return node.module or ""
    here = [package.name, *path.relative_to(package).parent.parts]
    base = here[: len(here) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def imports_of(path: Path, package: Path) -> Iterator[Import]:
    """Yield every import of a file: top level, in functions, under TYPE_CHECKING, and by literal name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (Import(path, node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_relative(node, path, package)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(path, node.lineno, full if is_module(full, package) else base)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield Import(path, node.lineno, node.args[0].value)


def is_module(dotted: str, package: Path) -> bool:
    """Say whether a dotted name of ours is a file or a folder, not a name inside a module."""
    where = package.parent.joinpath(*dotted.split("."))
    return where.with_suffix(".py").is_file() or where.is_dir()


def import_faults(package: Path) -> list[str]:
    faults = []
    for path in modules_in(package):
        unit = unit_of(path, package)
        if unit not in MAY_IMPORT:
            faults.append(f"{path.relative_to(package)}: {unit} is not in MAY_IMPORT: give it a row")
            continue
        for found in imports_of(path, package):
            top, _, rest = found.target.partition(".")
            where = f"{path.relative_to(package)}:{found.line}"
            if top == package.name and not permitted(unit, rest):
                faults.append(f"{where}: {unit} may not import {found.target}")
            elif unit not in ONLY_IN.get(top, {unit}):
                faults.append(f"{where}: {top} may be imported only in {', '.join(sorted(ONLY_IN[top]))}")
    return list(dict.fromkeys(faults))


def permitted(unit: str, target: str) -> bool:
    """Say whether a unit may import `forebay.<target>`; its own modules and the version always."""
    allowed = MAY_IMPORT[unit] | {unit}
    return not target or any(target == name or target.startswith(f"{name}.") for name in allowed)


def size_faults(package: Path) -> dict[str, str]:
    """Return the files and functions over their caps: the key of an exception, and the fault."""
    faults = {}
    for path in modules_in(package):
        name = str(path.relative_to(package))
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        cap = PIPELINE_LINES if name == "pipeline.py" else FILE_LINES
        if lines > cap:
            faults[f"file {name}"] = f"{name}: {lines} lines, at most {cap}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    fault = f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES}"
                    faults[f"function {name}:{node.name}"] = fault
    return faults


def name_faults(package: Path) -> list[str]:
    """Return the files and folders whose names say nothing, or carry a version."""
    faults = []
    for path in modules_in(package):
        for part in path.relative_to(package).with_suffix("").parts:
            if BANNED_NAMES & set(part.split("_")):
                faults.append(f"{path.relative_to(package)}: '{part}' says nothing: name what it does")
            if VERSION_SUFFIX.search(part):
                faults.append(f"{path.relative_to(package)}: '{part}' carries a version: replace, then delete")
    return faults


def docstring_faults(package: Path) -> list[str]:
    """Return the packages that are missing an `__init__.py`, or whose one has no docstring."""
    faults = []
    for folder in sorted({p.parent for p in modules_in(package)}):
        init = folder / "__init__.py"
        if not init.is_file():
            faults.append(f"{folder.relative_to(package)}: no __init__.py")
        elif not ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))):
            faults.append(f"{init.relative_to(package)}: say what enters, what leaves, what always holds")
    return faults


def room_cycles(package: Path) -> list[str]:
    """Return the units that reach themselves through the imports of others."""
    graph: dict[str, set[str]] = {}
    for path in modules_in(package):
        unit = unit_of(path, package)
        ours = (i.target.split(".") for i in imports_of(path, package))
        graph.setdefault(unit, set()).update(t[1] for t in ours if t[0] == package.name and len(t) > 1)
    cycles = []
    for start in graph:
        seen: set[str] = set()
        todo = [n for n in graph[start] if n != start]
        while todo:
            unit = todo.pop()
            if unit not in seen:
                seen.add(unit)
                todo += [n for n in graph.get(unit, ()) if n != unit]
        if start in seen:
            cycles.append(start)
    return sorted(cycles)


def files_named_on(page: str) -> list[Path]:
    """Return the files of the package that a page names, by their path in the package or the repository."""
    named = re.findall(r"[`(](?:\.\./)*(?:src/forebay/)?([a-z_]+(?:/[a-z_]+)*\.py)[`)]", page)
    return [PACKAGE / name for name in sorted(set(named)) if name.split("/")[0] not in {"tests", "bench"}]


def import_cost(*modules: str) -> tuple[float, set[str]]:
    """Import modules in a new process; return the CPU seconds and the top-level packages loaded."""
    code = (
        "import sys, time\nstart = time.process_time()\n"
        f"import {', '.join(modules)}\n"
        "print(time.process_time() - start, *{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    cpu_s, *loaded = done.stdout.split()
    return float(cpu_s), set(loaded)


def lines_of(paths: list[Path]) -> int:
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in paths)


def plant(tmp_path: Path, name: str, text: str) -> Path:
    """Make a package with one file in it, and return the package."""
    package = tmp_path / "forebay"
    path = package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in {package, path.parent}:
        (folder / "__init__.py").write_text('"""A room."""\n')
    path.write_text(text)
    return package


def test_imports_follow_the_table() -> None:
    assert import_faults(PACKAGE) == []


@pytest.mark.parametrize(
    "text",
    [
        "import forebay.routing\n",
        "import forebay.routing.pick as p\n",
        "from forebay import routing\n",
        "from forebay.routing import pick\n",
        "from ..routing import pick\n",
        "def f():\n    from forebay.routing.pick import best\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import forebay.routing\n",
        "import importlib\nm = importlib.import_module('forebay.routing')\n",
    ],
)
def test_a_sideways_import_is_caught(tmp_path: Path, text: str) -> None:
    package = plant(tmp_path, "edge/server.py", text)
    plant(tmp_path, "routing/pick.py", "best = 1\n")
    (fault,) = import_faults(package)
    assert "edge may not import forebay.routing" in fault


def test_only_the_named_module_of_a_room_is_open(tmp_path: Path) -> None:
    plant(tmp_path, "engines/contract.py", "")
    plant(tmp_path, "engines/vllm.py", "")
    package = plant(
        tmp_path, "upstream/a.py", "from forebay.engines import contract\nfrom forebay.engines import vllm\n"
    )
    assert import_faults(package) == ["upstream/a.py:2: upstream may not import forebay.engines.vllm"]


def test_own_room_ground_floor_and_version_are_open(tmp_path: Path) -> None:
    plant(tmp_path, "edge/routes.py", "")
    text = "from forebay import __version__\nfrom forebay.edge import routes\nfrom forebay.domain import Tenant\n"
    assert import_faults(plant(tmp_path, "edge/server.py", text)) == []


def test_heavy_package_and_unknown_room_are_caught(tmp_path: Path) -> None:
    plant(tmp_path, "attic/old.py", "")
    package = plant(tmp_path, "edge/server.py", "def f():\n    from fastapi.responses import Response\n")
    attic, _, heavy = import_faults(package)
    assert "attic is not in MAY_IMPORT" in attic
    assert "fastapi may be imported only in console" in heavy


def test_rooms_form_no_cycle(tmp_path: Path) -> None:
    assert room_cycles(PACKAGE) == []
    plant(tmp_path, "a/x.py", "import forebay.b.y\n")
    plant(tmp_path, "c/z.py", "def f():\n    import forebay.a.x\n")
    assert room_cycles(plant(tmp_path, "b/y.py", "from forebay import c\n")) == ["a", "b", "c"]


@pytest.mark.parametrize("folder", [PACKAGE, REPO / "bench", REPO / "tests"], ids=lambda p: p.name)
def test_nothing_is_over_its_size(folder: Path) -> None:
    assert [fault for key, fault in size_faults(folder).items() if key not in EXCEPTIONS] == []


def test_no_exception_is_left_over() -> None:
    over = {key for folder in (PACKAGE, REPO / "bench", REPO / "tests") for key in size_faults(folder)}
    assert set(EXCEPTIONS) - over == set()


def test_long_files_and_functions_are_caught(tmp_path: Path) -> None:
    plant(tmp_path, "pipeline.py", "a = 1\n" * (PIPELINE_LINES + 1))
    plant(tmp_path, "edge/long.py", "a = 1\n" * (FILE_LINES + 1))
    package = plant(tmp_path, "edge/fn.py", "class A:\n    async def f(self):\n" + "        a = 1\n" * FUNCTION_LINES)
    assert set(size_faults(package)) == {"file pipeline.py", "file edge/long.py", "function edge/fn.py:f"}


def test_names_say_what_files_do(tmp_path: Path) -> None:
    assert name_faults(PACKAGE) == []
    plant(tmp_path, "edge/stream_utils.py", "")
    package = plant(tmp_path, "edge/relay_v2.py", "")
    assert len(name_faults(package)) == 2


def test_every_package_says_what_it_is_for(tmp_path: Path) -> None:
    assert docstring_faults(PACKAGE) == []
    package = plant(tmp_path, "edge/a.py", "")
    (package / "__init__.py").write_text("x = 1\n")
    (package / "edge" / "__init__.py").unlink()
    assert len(docstring_faults(package)) == 2


def test_size_of_the_request_path_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {unit: lines_of([p for p in modules_in(PACKAGE) if unit_of(p, PACKAGE) == unit]) for unit in PATH_UNITS}
    with capsys.disabled():
        print(f"\nrequest path, lines: {sum(sizes.values())} = " + ", ".join(f"{u} {n}" for u, n in sizes.items()))
    assert sizes["wire"] > 0


def test_request_path_page_is_true_and_short() -> None:
    page = REPO / "docs" / "request-path.md"
    if not page.is_file():
        pytest.skip("docs/request-path.md is not written yet")
    files = files_named_on(page.read_text(encoding="utf-8"))
    assert files, "the page names no file"
    assert [str(f) for f in files if not f.is_file()] == []
    assert lines_of(files) <= PATH_LINES


def test_files_are_found_on_a_page() -> None:
    page = "See `pipeline.py`, `src/forebay/edge/server.py` and [relay](../src/forebay/upstream/relay.py), not `a.txt`."
    expected = ["edge/server.py", "pipeline.py", "upstream/relay.py"]
    assert [str(f.relative_to(PACKAGE)) for f in files_named_on(page)] == expected


def test_import_of_the_package_is_cheap() -> None:
    cpu_s, loaded = import_cost("forebay")
    assert cpu_s < IMPORT_CPU_S
    assert loaded & {*ONLY_IN, "uvloop", "httptools", "msgspec", "prometheus_client", "asyncio", "ssl"} == set()


def test_request_path_loads_nothing_heavy() -> None:
    rooms = sorted(unit for unit in PATH_UNITS if is_module(f"forebay.{unit}", PACKAGE))
    _, loaded = import_cost(*(f"forebay.{unit}" for unit in rooms))
    assert loaded & set(ONLY_IN) == set()
