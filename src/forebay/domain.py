"""The nouns that every room shares: small frozen values, no I/O.

They are msgspec structs, not dataclasses, because several are made for each request: a frozen struct
costs 0.1 microseconds to make where a frozen dataclass of the same size costs 1.5.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class Outcome(StrEnum):
    """How a call ended; the closed list behind the journal field and the metric label."""

    OK = "ok"
    CLIENT_CLOSED = "client_closed"
    REFUSED = "refused"
    ENGINE_ERROR = "engine_error"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    FALLBACK = "fallback"
    LOST = "lost"


class FailureKind(StrEnum):
    """How one try on one replica failed; the closed list behind `attempts[].failure`."""

    CONNECT = "connect"  # no connection within connect_s, or refused
    RESET = "reset"  # connection lost before a response byte
    FIRST_BYTE = "first_byte"  # nothing within first_byte_s
    STALL = "stall"  # silent for longer than stall_s
    TOTAL = "total"  # longer than total_s
    TRUNCATED = "truncated"  # ended without a finish_reason, or in the middle of a body
    BAD_ANSWER = "bad_answer"  # not HTTP, not JSON, or not SSE
    STATUS = "status"  # an HTTP status of 5xx or 429
    IN_BAND = "in_band"  # an error event inside a 200 stream
    LOADING = "loading"  # the engine says that its model is not loaded yet
    CREDENTIAL = "credential"  # the engine refuses our own credential


Value = Literal["high", "medium", "low"]
VALUES: tuple[Value, ...] = ("high", "medium", "low")
"""What a request is worth, the most first: header `X-Request-Value`."""


class Usage(Struct, frozen=True):
    """Tokens of one call, as the engine counted them unless `estimated`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    estimated: bool = False


class Spend(Struct, frozen=True):
    """What a call uses: tokens of prompt and output, money in the currency of the prices, and requests of a minute."""

    tokens: int
    money: float = 0.0
    requests: int = 1


class Signal(Struct, frozen=True):
    """One reading of an engine: an absent value is never zero.

    Attributes:
        value: the reading, in the unit that its name states; None when absent.
        source: where it comes from.
        age_s: seconds since it was read.
    """

    value: float | None
    source: Literal["engine", "estimated", "absent"]
    age_s: float = 0.0


ABSENT = Signal(value=None, source="absent")


class Tenant(Struct, frozen=True):
    """Who calls, and what they may do.

    Attributes:
        name: as configured; safe as a metric label.
        models: names it may use; None means all.
        concurrency: calls in flight at once; None means no limit.
        requests_per_minute: in any sliding minute; None means no limit.
        tokens_per_minute: prompt and completion tokens; None means no limit.
        tokens: prompt and completion tokens in a calendar month (UTC); None means no limit.
        money: in a calendar month (UTC), in the currency of the models' prices; None means no limit.
        max_output_tokens: longest answer that a call may ask for; None means no limit.
        classes: request values that it may claim.
        default_class: the value of a call that claims none.
        high_share_ratio: part of its tokens that may be `high` while calls wait; more becomes `medium`.
    """

    name: str
    models: frozenset[str] | None = None
    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens: int | None = None
    money: float | None = None
    max_output_tokens: int | None = None
    classes: frozenset[Value] = frozenset(VALUES)
    default_class: Value = "medium"
    high_share_ratio: float = 0.3


class Replica(Struct, frozen=True):
    """The address of one engine.

    Attributes:
        name: `host:port` with a path if it has one; no credential, so it may be shown and logged.
        host: name or address to connect to.
        port: TCP port.
        tls: whether to speak HTTPS.
        base_path: what stands before `/v1`, without a trailing slash.
        query: what is appended to each request's query, or empty.
        authorization: value of the Authorization header that this engine gets, or empty.
    """

    name: str
    host: str
    port: int
    tls: bool = False
    base_path: str = ""
    query: str = ""
    authorization: str = ""

    def __repr__(self) -> str:
        """Show the name alone: the rest may hold a credential."""
        return f"Replica({self.name})"
