"""The page docs/config.md, made from the schema, so that it cannot differ from what is accepted; pure."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from forebay.config.schema import FileSettings
from forebay.config.section import Section, section_in

_PAGE = """\
# Configuration

<!-- Made by forebay.config.reference.render() from the schema. Change the schema, not this page. -->

One YAML file, given with `forebay serve -c FILE`. The smallest useful one:

```yaml
pools:
  main:
    engine: vllm
    replicas:
      - url: http://127.0.0.1:9001
models:
  m: {pool: main}
tenants:
  - {name: a, keys: [env:KEY_OF_A]}
```

- `forebay check -c FILE` validates it. Every fault is one line: `FILE:LINE: setting: what is wrong; what to do`.
- An unknown setting is an error, and so is one that is written twice. Numbers stand without quotes, names with them if
  YAML would take them for something else. Anchors and aliases work; tags and merge keys do not.
- A change of the file is taken within seconds, as a whole or not at all; running calls keep what they began with.
  `listen` and `admin` need a restart.
- A key may be plain, `sha256:HEX` (the 64 digits of its SHA-256) or `env:NAME`, which is read when the process starts.
  An engine's `api_key` may be plain or `env:NAME`. Off loopback a plain tenant key needs 16 characters at least.
- Without `tenants` anybody on this machine may call; `listen` must then be a loopback address.
- Timeouts: a model's go before its pool's, and those before the global ones, each by itself. Without a configured
  `first_byte_s`, an answer that is not streamed is bound by `total_s` only.

`NAME` stands for a name of yours, `[]` for each entry of a list.
{tables}
## Documents

Programs change the policy through two JSON files in `DATA_DIR/policy`: `state.json` (the control plane) and
`override.json` (people, through the API). Each has one writer, which replaces it as a whole and raises `seq`; an older
or broken one is refused, and the last good one stays.

```json
{"epoch": 1, "seq": 7, "schema": 1, "drained": ["127.0.0.1:9001"]}
```

```json
{"epoch": 1, "seq": 3, "schema": 1, "entries": [{"id": "4f1c", "kind": "drain", "target": "127.0.0.1:9001",
  "expires_at": 1800000600, "by": "ann", "reason": "new driver", "created_at": 1800000000}]}
```

`target` is `host:port` of a replica, or its name with the path. Other kinds are `refuse_long_inputs` (`target` is a
model or `*`, `tokens` the longest input) and `pardon` (`target` is a request that engines died under, by the 16 digits
that the status shows). Times are Unix seconds; an entry ends by itself at
`expires_at`.
"""
_HEAD = "| Setting | Type | Default | Unit | Meaning |\n| --- | --- | --- | --- | --- |"
_PLAIN: dict[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false"}


def render() -> str:
    """Return the page."""
    return _PAGE.replace("{tables}", "\n" + "".join(_tables()).rstrip("\n") + "\n")


def _tables() -> Iterator[str]:
    """Yield one table for the plain settings at the top, and one for each section."""
    plain = [
        row for name, field in FileSettings.model_fields.items() if not _section(field) for row in _rows(name, field)
    ]
    yield _table("Top level", "", plain)
    for name, field in FileSettings.model_fields.items():
        if _section(field):
            yield _table(f"`{name}`", field.description or "", list(_rows(name, field)))


def _table(title: str, text: str, rows: list[str]) -> str:
    intro = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{intro}{_HEAD}\n" + "\n".join(rows) + "\n\n"


def _rows(path: str, field: FieldInfo) -> Iterator[str]:
    """Yield the rows of a setting: its own, or those of the section in it."""
    section = _section(field)
    if section is None:
        extra = field.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        cells = (
            f"`{path}`",
            _type_of(field.annotation, field.metadata),
            _default(field),
            unit,
            field.description or "",
        )
        yield f"| {' | '.join(cells)} |"
        return
    for name, inner in section.model_fields.items():
        yield from _rows(f"{path}{_step(field.annotation)}.{name}", inner)


def _section(field: FieldInfo) -> type[Section] | None:
    return section_in(field.annotation)


def _step(annotation: Any) -> str:
    """Return what stands between a setting that holds sections and the name of one of theirs."""
    return {list: "[]", dict: ".NAME"}.get(get_origin(annotation), "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value == []:
        return "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _type_of(annotation: Any, metadata: list[Any]) -> str:
    """Write a type for people, with its bounds."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_of(parts[0], [bound for part in parts[1:] for bound in getattr(part, "metadata", [part])])
    if origin is dict:
        return "mapping"
    if origin is list:
        return f"list of {_type_of(parts[0], [])}"
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in parts)
    if origin in (Union, UnionType):
        return _type_of(next(part for part in parts if part is not NoneType), metadata)
    return _PLAIN[annotation] + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    low = next((f"from {bound.ge}" for bound in metadata if getattr(bound, "ge", None) is not None), "")
    low = next((f"over {bound.gt}" for bound in metadata if getattr(bound, "gt", None) is not None), low)
    high = next((f"to {bound.le}" for bound in metadata if getattr(bound, "le", None) is not None), "")
    return f", {low} {high}" if low or high else ""
