"""The report as a document and as text."""

import msgspec

from forebay.release.figures import report
from forebay.release.table import Document, EngineFacts, MachineFacts, Origin, document, table
from tests.release.test_figures import proof


def made(factor: float = 0.5, count: int = 140) -> Document:
    engine = EngineFacts("llama.cpp", "b1", "127.0.0.1:1", "m", 4, 4096)
    origin = Origin("0.1", "2026-01-01T00:00:00.000Z", engine, MachineFacts(2, "CPU", "Linux"), 60.0, 1)
    measured = proof(factor, count=count)
    return document(origin, measured, report(measured, "1"))


def test_the_document_comes_back_from_json() -> None:
    written = made()
    assert msgspec.json.decode(msgspec.json.encode(written), type=Document) == written
    assert [(arm.pair, arm.way, arm.asked) for arm in written.arms][:2] == [(0, "direct", 140), (0, "forebay", 140)]


def test_the_table_has_a_cell_for_every_column() -> None:
    for shown in (table(made()), table(made(count=4))):
        assert {len(row) for row in shown.rows} == {len(shown.columns)}
        assert [row[0] for row in shown.rows][-2:] == ["failed", "lost"]


def test_the_table_says_what_was_found() -> None:
    shown = table(made())
    rows = {row[0]: row for row in shown.rows}
    assert rows["short TTFT P50 ms"][-1] == "lower"
    assert rows["short TTFT P50 ms"][3].startswith("0.5")
    assert " .. " in rows["short TTFT P50 ms"][4]
    assert rows["failed"][1:3] == ("0 of 840", "0 of 840")
    assert "llama.cpp b1 at 127.0.0.1:1, model m, 4 slots; 2 cores, CPU" in shown.head
    assert shown.foot == made().notes


def test_an_unknown_engine_has_a_name_too() -> None:
    one = made()
    plain = msgspec.structs.replace(one, engine=EngineFacts("", "", "h:1", "m", None, None))
    assert table(plain).head[0].startswith("An OpenAI-compatible server at h:1, model m; ")
