"""The settings of requests that are not run twice: single flight and `Idempotency-Key`."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from forebay import policy
from forebay.config.section import Count, Section, setting

_IDEMPOTENCY = policy.Idempotency()


def _word_of(value: object) -> object:
    """YAML reads `on` and `off` as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


SingleFlight = Annotated[policy.SingleFlight, BeforeValidator(_word_of)]


class IdempotencySettings(Section):
    """What is kept of calls with an `Idempotency-Key`; in memory, of each process."""

    ttl_s: Annotated[float, Field(ge=0, le=86_400)] = setting(
        _IDEMPOTENCY.ttl_s, "seconds", "So long an answer is given again, then it is erased; 0: the header is not read."
    )
    entries: Count = setting(_IDEMPOTENCY.entries, "keys", "Known at once; beyond it the oldest are forgotten.")
    bytes: Annotated[int, Field(ge=1_048_576, le=1_099_511_627_776)] = setting(
        _IDEMPOTENCY.bytes, "bytes", "Of all answers that are kept; beyond it the oldest are lost."
    )
