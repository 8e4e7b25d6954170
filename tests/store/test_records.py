"""What nodes write for each other, and what is not believed."""

import pytest

from forebay.store.contract import Page
from forebay.store.records import (
    Claim,
    Moments,
    Month,
    Record,
    Spent,
    book_of,
    fields_of,
    month_field,
    months_of,
)

RECORD = Record(1_800_000_000_000, {"t": (Claim(4, 2, 3), None, Claim(100, 20, 5, (20, 0)))})


def test_a_record_comes_back_as_it_was_written() -> None:
    fields = fields_of("v", Moments(2, 1), "a", RECORD)
    book = book_of(Page(5, {name: value for name, value in fields.items() if value is not None}))
    assert (book.records, book.moments, book.broken) == ({"a": RECORD}, Moments(2, 1), ())
    assert fields_of("v", Moments(2, 1), "a", None)["a"] is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b"[-1,{}]",
        b'[1,{"t":[[4,2,3]]}]',
        b'[1,{"t":[[1e300,2,3],null,null]}]',
        b'[1,{"t":[[4,-2,3],null,null]}]',
        b'[1,{"' + b"i" * 300 + b'":[null,null,null]}]',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_record_is_left_out_and_named(text: bytes) -> None:
    book = book_of(Page(5, {"a": text, ":version": b"v", ":clock": b"[1]"}))
    assert (book.records, book.moments, set(book.broken)) == ({}, None, {"a", ":clock"})


def test_what_was_spent_comes_back_as_it_was_written() -> None:
    month = Month(7, {"t": Spent(1, 2, 3, 4)})
    assert months_of(Page(5, {"a": month_field(month), "b": b"?", ":version": b"v"})) == {"a": month}
