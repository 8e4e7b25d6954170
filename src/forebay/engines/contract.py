"""The one contract over all engines: what an adapter is, and what is known about a replica."""

import math
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from msgspec import Struct

from forebay.domain import ABSENT, Replica, Signal
from forebay.policy import EngineKind

EndpointName = Literal[
    "chat", "completions", "embeddings", "responses", "messages", "rerank", "score", "tokenize", "detokenize"
]
PriorityOrder = Literal["lower_first", "higher_first"]

Fetch = Callable[[Replica, str, float], Awaitable[tuple[int, bytes]]]
"""GET one path: (replica, path below its base path, timeout in seconds) -> (HTTP status, body).

Raises OSError (TimeoutError is one) when there is no whole HTTP answer in time, whatever the reason.
"""


class Telemetry(Struct, frozen=True):
    """One reading of an engine's own load; a field that the engine does not report is absent.

    Attributes:
        running: calls that the engine works on.
        waiting: calls in the engine's own queue.
        kv_usage_ratio: 0..1, the fullest of its KV pools; counts what running calls hold.
        kv_tokens: KV room in tokens, over all its data-parallel ranks.
        slots: calls that it can run at once, where that is fixed.
        preemptions: calls that lost their KV and are computed anew, since the engine started.
    """

    running: Signal = ABSENT
    waiting: Signal = ABSENT
    kv_usage_ratio: Signal = ABSENT
    kv_tokens: Signal = ABSENT
    slots: Signal = ABSENT
    preemptions: Signal = ABSENT


class Advice(Struct, frozen=True):
    """A launch flag that the engine lacks.

    Attributes:
        flag: as written on the engine's command line.
        why: what Forebay cannot do without it.
        fix: what to do, in one sentence.
        certain: False when no probe can see the flag, so that it may well be set.
    """

    flag: str
    why: str
    fix: str
    certain: bool = True


class Capabilities(Struct, frozen=True):
    """What probing found out about one replica.

    Attributes:
        kind: the adapter to use.
        product: what people call the engine, such as `vLLM`; empty when unknown.
        version: as the engine reports it; empty when unknown.
        models: ids that it serves, at most 256.
        max_model_len: longest prompt plus answer in tokens.
        kv_tokens: KV room in tokens; None when unknown.
        slots: calls that it can run at once, where that is fixed.
        telemetry: whether its telemetry page gave a reading.
        token_ids: whether a chat stream can carry token ids (`return_token_ids`).
        priority: how it orders the body field `priority`; None when it has no such field or ignores it.
        cache_salt: whether it takes a cache salt per request.
        usage_in_stream: whether a stream can end with usage; None when no probe can tell.
        guarded: whether it refused the model list for lack of a key (401 or 403).
        missing: flags that it lacks.
        complete: every question was answered, if only by a 404; else what is unknown may be asked again.
    """

    kind: EngineKind = "openai"
    product: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    kv_tokens: int | None = None
    slots: int | None = None
    telemetry: bool = False
    token_ids: bool = False
    priority: PriorityOrder | None = None
    cache_salt: bool = False
    usage_in_stream: bool | None = None
    guarded: bool = False
    missing: tuple[Advice, ...] = ()
    complete: bool = True

    @property
    def identified(self) -> bool:
        """Whether something answered that is surely an engine."""
        return bool(self.models or self.product)


class Engine(Protocol):
    """An adapter: pure translation, no sockets, no state."""

    @property
    def kind(self) -> EngineKind:
        """The name in the configuration."""
        ...

    @property
    def endpoints(self) -> frozenset[EndpointName]:
        """Endpoints that an engine of this kind can have."""
        ...

    @property
    def denied_fields(self) -> frozenset[str]:
        """Top-level body members that a client may not set; Forebay alone may add them."""
        ...

    @property
    def health_path(self) -> str:
        """Path that answers 200 cheaply, without generating, while the engine is up."""
        ...

    @property
    def telemetry_path(self) -> str | None:
        """Path of the telemetry page; None when there is none that may be read."""
        ...

    def read_telemetry(self, body: bytes) -> Telemetry:
        """Translate the body of a 200 answer of the telemetry page.

        Raises:
            ValueError: the body is not such a page at all, or is too large.
        """
        ...


def reported(value: float | None) -> Signal:
    """Return the engine's own reading as a signal; None, NaN and infinities are absent."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return Signal(value=float(value), source="engine")
