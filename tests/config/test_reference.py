"""docs/config.md is what the schema says."""

import subprocess
import sys
from pathlib import Path

from pydantic.fields import FieldInfo

from forebay.config.load import Pinned, parse_file
from forebay.config.reference import render
from forebay.config.schema import FileSettings
from forebay.config.section import Section, section_in

PAGE = Path(__file__).parents[2] / "docs" / "config.md"
MAKE = """python -c "from forebay.config.reference import render; print(render(), end='')" > docs/config.md"""


def leaves(section: type[Section], path: str = "") -> dict[str, FieldInfo]:
    found: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        inner = section_in(field.annotation)
        found |= leaves(inner, f"{path}{name}.") if inner else {f"{path}{name}": field}
    return found


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), f"make it again: {MAKE}"


def test_every_setting_has_a_row() -> None:
    page = render().replace(".NAME", "").replace("[]", "")
    settings = leaves(FileSettings)
    assert len(settings) > 40
    assert [path for path in settings if page.count(f"| `{path}` |") != 1] == []


def test_every_setting_has_a_meaning_and_numbers_a_unit() -> None:
    for path, field in leaves(FileSettings).items():
        assert field.description and field.description.endswith("."), path
        extra = field.json_schema_extra
        assert isinstance(extra, dict), path
        numeric = any(kind in str(field.annotation) for kind in ("int", "float")) and "Literal" not in str(
            field.annotation
        )
        assert extra["unit"] or not numeric, path


def test_rows_look_right() -> None:
    page = render()
    for row in (
        "| `listen` | text | `127.0.0.1:7080` | HOST:PORT | Where clients call. A change needs a restart. |",
        "| `pools.NAME.replicas[].url` | text | required | URL |",
        "| `pools.NAME.queue_size` | whole number, from 0 to 1000000 | `1024` | calls |",
        "| `timeouts.connect_s` | number, over 0 to 31536000 | `5` | seconds |",
        "| `tenants[].keys` | list of text | required |",
    ):
        assert row in page
    assert not [line for line in page.splitlines() if line.startswith("|") and line.count("|") != 6]


def test_the_file_on_the_page_is_valid() -> None:
    text = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    settings = parse_file(text.encode(), "config.md", {"KEY_OF_A": "0123456789abcdef"}, 0.0, Pinned())
    assert len(settings.policy.tenants) == 1


def test_import_is_light() -> None:
    code = "import sys, forebay.config.reload; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    loaded = set(done.stdout.split())
    assert {"pydantic", "yaml"} <= loaded
    assert (
        loaded & {"fastapi", "starlette", "uvicorn", "typer", "rich", "uvloop", "httptools", "prometheus_client"}
        == set()
    )
