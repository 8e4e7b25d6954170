"""docs/quickstart.md is run as it stands, and prints what it says.

Every ```bash block is run, every ```python block is given to python, all in one shell and in order. A ```text block
is what the block before it prints, both outputs together; `…` stands for any text. ```console blocks are not run:
they install something, or begin what the blocks go on with. Ports are replaced by free ones, since those of the page
may be taken.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_process import Gateway, document, free_port

from tests.docs.pages import READMES, REPO, Block, blocks, name_of

pytestmark = pytest.mark.integration

PAGE = REPO / "docs" / "quickstart.md"
BIN = Path(sys.executable).parent
TOOLS = ("bash", "curl", "jq")
LIMIT_S = 240.0
MARK = "--- block "
Ports = dict[str, str]


def steps() -> list[tuple[Block, str | None]]:
    """Every block that is run, with what it prints if the page says so."""
    found: list[tuple[Block, str | None]] = []
    for block in blocks(PAGE, "bash", "python", "text"):
        if block.language == "text":
            found[-1] = (found[-1][0], block.text)
        else:
            found.append((block, None))
    return found


def script() -> str:
    """The blocks as one script for bash, each with a mark behind it that tells its exit code."""
    parts = []
    for number, (block, _) in enumerate(steps()):
        text = f"python - <<'PROGRAM'\n{block.text}PROGRAM\n" if block.language == "python" else block.text
        parts.append(f"{text}printf '\\n{MARK}%s %s\\n' {number} $?\n")
    return "".join(parts)


def like(expected: str) -> re.Pattern[str]:
    """What matches a text in which `…` stands for any text; white space at the ends of lines is not compared."""
    lines = [re.escape(line.rstrip()).replace("…", ".*?") for line in expected.strip().splitlines()]
    return re.compile(r"[ ]*\n".join(lines))


def on_other_ports(text: str, ports: Ports) -> str:
    """A text with its ports replaced."""
    return re.sub(rf"\b(?:{'|'.join(ports)})\b", lambda match: ports[match[0]], text)


def distinct_ports(count: int) -> set[str]:
    """So many free ports."""
    found: set[str] = set()
    while len(found) < count:
        found.add(str(free_port()))
    return found


@pytest.fixture
def ports() -> Ports:
    """Free ones for those of the page, in the same order, so that what is sorted stays sorted."""
    return dict(zip(("7080", "7081", "9001", "9002"), sorted(distinct_ports(4)), strict=True))


@pytest.fixture
def shell(tmp_path: Path, ports: Ports) -> Iterator[subprocess.Popen[str]]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the quickstart needs {', '.join(missing)}")
    process = subprocess.Popen(
        ["bash", "-c", on_other_ports(script(), ports)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    yield process
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.fixture(scope="module")
def without_keys(module_engine: Any, module_gateway: Any) -> Gateway:
    """What `make demo` serves, but for the engine: the model `default`, and no keys."""
    engine = module_engine(models=("default",))
    gateway: Gateway = module_gateway(document(engine, models={"default": {"pool": "main"}}, tenants=[]))
    return gateway


@pytest.mark.parametrize("page", [*READMES, PAGE], ids=name_of)
def test_the_first_call_is_answered(page: Path, without_keys: Gateway, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the first call needs curl")
    (call,) = [block.text for block in blocks(page, "console") if "curl" in block.text]
    command = ["bash", "-c", on_other_ports(call, {"7080": str(without_keys.address[1])})]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"], done.stdout


@pytest.mark.timeout(300)
def test_every_block_prints_what_the_page_says(shell: subprocess.Popen[str], ports: Ports) -> None:
    output, _ = shell.communicate(timeout=LIMIT_S)
    printed = re.split(rf"\n{MARK}\d+ (\d+)\n", on_other_ports(output, {new: old for old, new in ports.items()}))
    assert len(printed) == 2 * len(steps()) + 1, output
    for number, (block, expected) in enumerate(steps()):
        got, code = printed[2 * number : 2 * number + 2]
        assert code == "0", f"{block} ends with {code}:\n{got}"
        if expected is not None:
            assert like(expected).fullmatch(got.strip()), f"{block} prints:\n{got}\nthe page says:\n{expected}"
