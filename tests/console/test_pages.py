import re

import pytest
from starlette.testclient import TestClient

from forebay.console.pages import docs_page, language, status_page
from forebay.console.pages.texts import TEXTS


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("ZH", "zh"),
        ("en-GB,zh;q=0.5", "en"),
        ("fr, zh;q=0.3, en;q=0.2", "zh"),
        ("fr", "en"),
        ("zh;q=0, en;q=0.1", "en"),
        ("zh;q=x", "en"),
        (";,;q=1,zhx", "en"),
    ],
)
def test_language_follows_the_header(accept: str, chosen: str) -> None:
    assert language(accept) == chosen


def test_both_languages_have_all_texts_and_the_page_uses_them() -> None:
    assert set(TEXTS["zh"]) == set(TEXTS["en"])
    for lang, texts in TEXTS.items():
        page = status_page("n0nce", lang)
        assert f'<html lang="{lang}">' in page
        assert [name for name, text in texts.items() if text not in page] == []


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_work_offline_and_run_only_what_bears_the_nonce(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    assert "://" not in answer.text
    assert re.findall(r'(?:src|href)="(?!/)', answer.text) == []
    (nonce,) = re.findall(r"script-src 'nonce-([^']+)'", answer.headers["content-security-policy"])
    tags = re.findall(r"<(?:script|style)[^>]*>", answer.text)
    assert tags
    assert all(f'nonce="{nonce}"' in tag for tag in tags)
    assert re.findall(r"\son[a-z]+=|style=|javascript:|innerHTML|eval\(", answer.text) == []
    assert stranger.get(path).headers["content-security-policy"] != answer.headers["content-security-policy"]


def test_the_page_has_the_switch_and_the_tables(stranger: TestClient) -> None:
    page = stranger.get("/").text
    for id in ("queue", "capacity", "refusing", "refusals"):
        assert f'id="{id}"' in page
    assert '<form id="refuse">' in page
    assert 'name="tokens" type="number" min="1" max="1000000000" value="8192"' in page


def test_every_heading_of_a_table_has_a_text() -> None:
    page = status_page("n", "en")
    named = re.findall(r'column\("(\w+)"', page)
    named += [
        name for names in re.findall(r'\[("[\w", ]+)\]\.map\(\(name\)', page) for name in re.findall(r"\w+", names)
    ]
    assert {"pool", "speed", "reason", "up"} <= set(named)
    assert [name for name in named if f"c_{name}" not in TEXTS["en"]] == []


def test_status_page_speaks_the_language_of_the_browser(stranger: TestClient) -> None:
    assert "管理令牌" in stranger.get("/", headers={"accept-language": "zh-CN"}).text
    assert "Admin token" in stranger.get("/", headers={"accept-language": "de"}).text


def test_docs_show_every_operation_with_a_line_to_try(stranger: TestClient) -> None:
    page = stranger.get("/docs").text
    document = stranger.get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/health",
        "/api/status",
        "/api/timeline",
        "/api/policy/overrides",
        "/api/policy/overrides/{id}",
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in page
            assert operation["summary"] in page
            assert ("security" in operation) is path.startswith("/api")
            assert "422" not in operation["responses"]
    assert "127.0.0.1:7081/api/status" in page
    assert "ttl_s" in page
    assert "≤ 604800" in page
    assert "drain or refuse_long_inputs" in page
    assert "integer ≥ 1 ≤ 1000000000" in page


def test_docs_escape_what_they_show() -> None:
    mark = "<script>x</script>"
    operation = {
        "summary": mark,
        "parameters": [{"name": mark, "in": mark, "schema": {"type": mark, "description": mark}}],
    }
    document = {
        "info": {"title": mark, "version": mark, "description": mark},
        "paths": {f"/{mark}": {"get": operation}},
    }
    assert mark not in docs_page(document, "n", mark)
