"""The two HTML pages, complete in themselves: no asset from another site, no markup from data.

Enters: a nonce for the inline script and style, texts, the OpenAPI document. Leaves: HTML.
Always holds: whatever comes from data is escaped, and scripts put it in as text.
"""

import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from forebay.console.pages.texts import ENGLISH, TEXTS

_FOLDER = Path(__file__).parent


def language(accept: str) -> str:
    """Choose one of the languages there are from an Accept-Language header; English when none fits."""
    best, best_weight = ENGLISH, 0.0
    for entry in accept.split(","):
        tag, _, parameters = entry.strip().partition(";")
        primary = tag.lower().partition("-")[0]
        weight = _weight(parameters)
        if primary in TEXTS and weight > best_weight:
            best, best_weight = primary, weight
    return best


def status_page(nonce: str, lang: str) -> str:
    """Return the status page.

    Args:
        nonce: for its script and style.
        lang: a key of `TEXTS`.
    """
    texts = TEXTS[lang]
    shown = {name: escape(text) for name, text in texts.items()}
    script = json.dumps(dict(texts), ensure_ascii=False).replace("<", "\\u003c")
    return _template("status.html").substitute(shown, nonce=nonce, lang=lang, texts=script)


def docs_page(document: dict[str, Any], nonce: str, host: str) -> str:
    """Return the API's description as one page.

    Args:
        document: as OpenAPI.
        nonce: for its style.
        host: what the request named, for the curl lines.
    """
    operations = [
        _operation(path, method, operation, document, host)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    info = {name: escape(document["info"].get(name, "")) for name in ("title", "version", "description")}
    return _template("docs.html").substitute(info, nonce=nonce, operations="\n".join(operations))


def _template(name: str) -> Template:
    return Template((_FOLDER / name).read_text(encoding="utf-8"))


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any], host: str) -> str:
    body = _body_schema(operation, document)
    rows = [_row(p["name"], p["in"], p.get("required", False), p["schema"]) for p in operation.get("parameters", [])]
    required = body.get("required", [])
    rows += [_row(name, "body", name in required, field) for name, field in body.get("properties", {}).items()]
    head = "<tr><th>name</th><th>in</th><th>required</th><th>type</th><th>meaning</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    line = _curl(path, method, secured="security" in operation, body=body, host=host)
    return (
        f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation.get('summary', ''))}</p>"
        f"{table}<pre>{escape(line)}</pre>"
    )


def _body_schema(operation: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the JSON body, or an empty one."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _row(name: str, place: str, required: bool, schema: dict[str, Any]) -> str:
    schema = {**next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), {}), **schema}
    bounds = {"const": "=", "minimum": "≥", "maximum": "≤", "minLength": "length ≥", "maxLength": "length ≤"}
    limits = [f"{sign} {_plain(schema[key])}" for key, sign in bounds.items() if key in schema]
    kind = " ".join([" or ".join(schema.get("enum", ())) or schema.get("type", ""), *limits])
    cells = (name, place, "yes" if required else "no", kind, schema.get("description", ""))
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _plain(bound: object) -> str:
    """Show a bound as it was declared: FastAPI makes floats of whole numbers."""
    return str(int(bound)) if isinstance(bound, float) and bound.is_integer() else str(bound)


def _curl(path: str, method: str, *, secured: bool, body: dict[str, Any], host: str) -> str:
    """Return a line for a shell; curl needs no scheme, so the page names no address."""
    parts = ["curl"]
    if method != "get":
        parts.append(f"-X {method.upper()}")
    if secured:
        parts.append('-H "Authorization: Bearer $TOKEN"')
    if body:
        example = json.dumps((body.get("examples") or [{}])[0])
        parts.append(f"-H 'Content-Type: application/json' -d '{example}'")
    return " ".join([*parts, f"'{host}{path}'" if "{" in path else host + path])
