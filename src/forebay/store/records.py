"""What a node writes into the store for the others, as JSON, and what is believed of what others wrote. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from forebay.store.contract import VERSION_FIELD, Page

MAX_NODES: Final = 256
MAX_TENANTS: Final = 1000
"""Whose limits follow demand; of further ones each node has an even part."""
FADE_S: Final = 10
"""Length of the slices in which what was used in a minute stops counting, in seconds."""
CLOCK_FIELD: Final = ":clock"
_LARGEST: Final = 2**53

_Whole = Annotated[int, Meta(ge=0, le=_LARGEST)]
_Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Claim(Struct, frozen=True, array_like=True):
    """What a node holds of one limit of one tenant.

    Attributes:
        ceiling: so much may count against the limit on that node.
        used: so much does.
        demand: calls that want to run at once; of the limits of a minute, what is wanted in a second.
        fading: what of `used` will count no longer after one, two, ... times `FADE_S`; empty for calls at once,
            which end with their node.
    """

    ceiling: _Whole
    used: _Whole = 0
    demand: _Whole = 0
    fading: Annotated[tuple[_Whole, ...], Meta(max_length=8)] = ()

    @property
    def held(self) -> int:
        """What nobody else may have."""
        return max(self.ceiling, self.used)


Claims = tuple[Claim | None, Claim | None, Claim | None]
"""Of calls at once, requests in a minute, tokens in a minute; None without such a limit."""


class Record(Struct, frozen=True, array_like=True):
    """What a node has written.

    Attributes:
        at_ms: when, by the store's clock.
        claims: by tenant.
    """

    at_ms: _Whole
    claims: Annotated[dict[_Name, Claims], Meta(max_length=MAX_TENANTS)] = {}


class Moments(Struct, frozen=True, array_like=True):
    """When the hash was last changed, and since when it has been changed without a pause; by the store's clock."""

    last_ms: _Whole
    since_ms: _Whole


class Book(Struct, frozen=True):
    """The records of all nodes.

    Attributes:
        now_ms: by the store's clock.
        moments: None when nobody has written yet, or what is there is no good.
        records: by process: the name of its node, `~`, and what tells it from others of that name.
        broken: fields that hold no record.
    """

    now_ms: int
    moments: Moments | None
    records: dict[str, Record]
    broken: tuple[str, ...] = ()


_read_record = msgspec.json.Decoder(Record).decode
_read_moments = msgspec.json.Decoder(Moments).decode
_encode = msgspec.json.Encoder().encode


def book_of(page: Page) -> Book:
    """Read the records; what is none is left out and named."""
    records: dict[str, Record] = {}
    broken: list[str] = []
    moments: Moments | None = None
    for name, text in page.fields.items():
        try:
            if name == CLOCK_FIELD:
                moments = _read_moments(text)
            elif name != VERSION_FIELD and len(records) < MAX_NODES:
                records[name] = _read_record(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            broken.append(name[:64])
    return Book(page.now_ms, moments, records, tuple(broken))


def fields_of(version: str, moments: Moments, node: str, record: Record | None) -> dict[str, bytes | None]:
    """Return the fields to set: a new version, the moments, and the node's record, None to take it out."""
    return {
        VERSION_FIELD: version.encode(),
        CLOCK_FIELD: _encode(moments),
        node: None if record is None else _encode(record),
    }


class Spent(Struct, frozen=True, array_like=True):
    """What a tenant has spent on one node in a month, and what running calls may still spend; money in billionths."""

    tokens: _Whole = 0
    nano: _Whole = 0
    reserved_tokens: _Whole = 0
    reserved_nano: _Whole = 0


class Month(Struct, frozen=True, array_like=True):
    """What a node has spent.

    Attributes:
        at_ms: when it was written, by the store's clock.
        spent: by tenant.
    """

    at_ms: _Whole
    spent: Annotated[dict[_Name, Spent], Meta(max_length=MAX_TENANTS)]


_read_month = msgspec.json.Decoder(Month).decode


def months_of(page: Page) -> dict[str, Month]:
    """Read what the nodes have spent; what cannot be read is left out."""
    months: dict[str, Month] = {}
    for name, text in page.fields.items():
        try:
            months[name] = _read_month(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return months


def month_field(month: Month) -> bytes:
    """Write what this node has spent."""
    return _encode(month)
