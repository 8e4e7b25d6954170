"""Configurations and JSON that the pages show can be used as they stand."""

import json
import re
from pathlib import Path

import pytest
import yaml

from forebay.config.load import Pinned, parse_file
from forebay.errors import ConfigError
from tests.docs.pages import PAGES, Block, blocks, name_of

ALL = [block for page in PAGES for block in blocks(page)]
HERE_DOCUMENT = re.compile(r"^cat > \S+\.yaml <<'(\w+)'\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
KNOWN = {
    "", "bash", "console", "ini", "json", "make", "nginx", "promql", "python", "sh", "sql", "text", "toml", "yaml",
}  # fmt: skip


def configurations(block: Block) -> list[str]:
    """What of a block looks like a configuration: it has pools."""
    texts = [block.text] if block.language == "yaml" else [text for _, text in HERE_DOCUMENT.findall(block.text)]
    return [text for text in texts if isinstance(read := yaml.safe_load(text), dict) and "pools" in read]


def faults(text: str) -> list[str]:
    """What is wrong with a configuration whose keys are all in the environment."""
    environment = {name: "0123456789abcdef" + name for name in re.findall(r"env:(\w+)", text)}
    try:
        parse_file(text.encode(), "page.yaml", environment, 0.0, Pinned())
    except ConfigError as error:
        return error.faults
    return []


CONFIGURATIONS = [(block, text) for block in ALL for text in configurations(block)]
JSON = [block for block in ALL if block.language == "json"]


def test_there_is_something_to_check() -> None:
    pages = {name_of(block.page) for block, _ in CONFIGURATIONS}
    assert {"README.md", "README.zh-CN.md", "docs/config.md", "docs/quickstart.md"} <= pages
    assert JSON


@pytest.mark.parametrize(("block", "text"), CONFIGURATIONS, ids=[str(block) for block, _ in CONFIGURATIONS])
def test_every_configuration_loads(block: Block, text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize("block", JSON, ids=str)
def test_every_json_block_is_json(block: Block) -> None:
    json.loads(block.text)


def test_every_block_says_what_it_is() -> None:
    assert [str(block) for block in ALL if block.language not in KNOWN] == []


def test_a_configuration_that_does_not_load_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("```yaml\npools: {main: {engine: vllm}}\nmodls: {}\n```\n```yaml\nkind: Service\n```\n")
    (text,) = [text for block in blocks(page) for text in configurations(block)]
    assert any("modls" in fault for fault in faults(text))
