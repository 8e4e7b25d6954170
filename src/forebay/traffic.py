"""The values that travel along the request path: what came, what it means, what an engine said.

They are plain classes whose attributes are final: several are made for each request and read a hundred times, and
compiled code reads an attribute of its own classes in a tenth of the time that a struct's takes.
"""

from typing import Any, Final, TypeVar

from msgspec import Struct

from forebay.domain import FailureKind, Outcome, Tenant, Value
from forebay.wire.endpoints import Endpoint
from forebay.wire.resumed import Claim, Shown

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""


class Request:
    """One request as it arrived.

    Attributes:
        path: decoded no further than the client sent it; without the query.
        headers: by lower-case name; names that came twice are joined by ", " unless `repeated` has them.
        repeated: lower-case names that came more than once.
        body: whole, de-chunked.
        peer: address of the connection's other end.
        received_s: monotonic seconds at the last byte of the request.
    """

    __slots__ = ("body", "headers", "method", "path", "peer", "query", "received_s", "repeated")

    def __init__(  # noqa: PLR0913 - its attributes
        self, method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], repeated: frozenset[bytes],
        body: bytes, peer: str, received_s: float,
    ) -> None:  # fmt: skip
        self.method: Final = method
        self.path: Final = path
        self.query: Final = query
        self.headers: Final = headers
        self.repeated: Final = repeated
        self.body: Final = body
        self.peer: Final = peer
        self.received_s: Final = received_s


class Prompt:
    """What a model is to read, taken out of a body.

    Attributes:
        text: JSON text of the contents, joined; of a long prompt three samples: beginning, middle, end.
        text_bytes: length of the whole.
        messages: number of messages, or of prompts.
        images: number of parts that are pictures.
        audio_bytes: of audio parts, as they stand in the body.
        tools_bytes: JSON text of tools and of a response schema.
    """

    __slots__ = ("audio_bytes", "images", "messages", "text", "text_bytes", "tools_bytes")

    def __init__(
        self, text: bytes = b"", text_bytes: int = 0, messages: int = 1, images: int = 0, audio_bytes: int = 0,
        tools_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.text: Final = text
        self.text_bytes: Final = text_bytes
        self.messages: Final = messages
        self.images: Final = images
        self.audio_bytes: Final = audio_bytes
        self.tools_bytes: Final = tools_bytes


class Work:
    """How much a call is, before it is sent, and what the estimate was made of.

    Attributes:
        prompt_tokens: estimate.
        output_tokens: reserved: the 90th percentile of its like, at most the call's own cap.
        likely_output_tokens: expected: the mean of its like, at most the cap.
        model: whose tokenizer it was estimated for.
        features: of the prompt, as `admission.texts` counts them; empty when nothing is to be learned.
        kin: keys of the calls that it is like, the closest first.
        blocks: hashes of the prompt's leading blocks, each over all before it.
    """

    __slots__ = ("blocks", "features", "kin", "likely_output_tokens", "model", "output_tokens", "prompt_tokens")

    def __init__(  # noqa: PLR0913 - its attributes
        self, prompt_tokens: int, output_tokens: int, likely_output_tokens: int, model: str = "",
        features: tuple[float, ...] = (), kin: tuple[tuple[object, ...], ...] = (), blocks: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens
        self.likely_output_tokens: Final = likely_output_tokens
        self.model: Final = model
        self.features: Final = features
        self.kin: Final = kin
        self.blocks: Final = blocks


NO_WORK: Final = Work(1, 1, 1)
"""Of a call that nobody has estimated."""


class Call:
    """One request that has been understood.

    Attributes:
        wants_usage: the client asked for the usage chunk of a stream itself.
        prompt_tokens: estimate.
        output_tokens: estimate, at most the client's own cap.
        headers: those of the client that engines may see.
        deadline_s: monotonic seconds after which nobody waits any more.
        value: what it is worth.
        work: what the estimates were made of.
        money: what it may cost.
        max_tokens: longest answer, whoever has set it; None leaves it to the engine.
        bound_tokens: of output that limits reserve for it.
        template: name of the prompt's template, as the client gives it; empty without one.
        retries: tries of the client before this one, as it counts them.
        rule: name of the rule that decided on it; empty without one.
        doubtful: no rule has decided yet, because the exact length of the prompt would make a difference.
        claim: who may come back for the rest of the answer; None when the client has not asked for that.
        shown: what the client has of an answer that it comes back for.
        resumed: the call that began the answer was charged for the request and its prompt.
        notice: text that ends its answer, which says how it was degraded; empty for none.
        moved: it goes nowhere else: its own pool was full, or it goes on with an answer of this model.
    """

    __slots__ = (
        "bound_tokens", "call_id", "claim", "deadline_s", "doubtful", "endpoint", "headers", "max_tokens", "model",
        "money", "moved", "notice", "output_tokens", "prompt_tokens", "received_s", "resumed", "retries", "rule",
        "shown", "stream", "template", "tenant", "value", "wants_usage", "work",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - its attributes
        self, call_id: str, endpoint: Endpoint, model: str, stream: bool, wants_usage: bool, tenant: Tenant,
        prompt_tokens: int, output_tokens: int, headers: tuple[Header, ...], received_s: float, deadline_s: float,
        value: Value = "medium", work: Work = NO_WORK, money: float = 0.0, max_tokens: int | None = None,
        bound_tokens: int = 0, template: str = "", retries: int = 0, rule: str = "", doubtful: bool = False,
        claim: Claim | None = None, shown: Shown | None = None, resumed: bool = False, notice: str = "",
        moved: bool = False,
    ) -> None:  # fmt: skip
        self.call_id: Final = call_id
        self.endpoint: Final = endpoint
        self.model: Final = model
        self.stream: Final = stream
        self.wants_usage: Final = wants_usage
        self.tenant: Final = tenant
        self.prompt_tokens: Final = prompt_tokens
        self.output_tokens: Final = output_tokens
        self.headers: Final = headers
        self.received_s: Final = received_s
        self.deadline_s: Final = deadline_s
        self.value: Final = value
        self.work: Final = work
        self.money: Final = money
        self.max_tokens: Final = max_tokens
        self.bound_tokens: Final = bound_tokens
        self.template: Final = template
        self.retries: Final = retries
        self.rule: Final = rule
        self.doubtful: Final = doubtful
        self.claim: Final = claim
        self.shown: Final = shown
        self.resumed: Final = resumed
        self.notice: Final = notice
        self.moved: Final = moved


class Answer(Struct, frozen=True):
    """An engine's own final answer that is no success: status, headers and body as it sent them."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Verdict:
    """How one try ended.

    Attributes:
        committed: the client has been sent something of it, so no other try may follow.
        outcome: how the call ended, when it did.
        failure: what went wrong with the engine, None when nothing did.
        status: HTTP status of the engine's answer, 0 without one.
        answer: the engine's own answer when it is an error and nothing was sent yet.
        retry_after_s: what the engine asked for, in seconds.
        message: for the client; names no address.
        missing_done: the stream was complete but for its sentinel.
    """

    __slots__ = ("answer", "committed", "failure", "message", "missing_done", "outcome", "retry_after_s", "status")

    def __init__(  # noqa: PLR0913 - its attributes
        self, committed: bool, outcome: Outcome, failure: FailureKind | None = None, status: int = 0,
        answer: Answer | None = None, retry_after_s: float | None = None, message: str = "",
        missing_done: bool = False,
    ) -> None:  # fmt: skip
        self.committed: Final = committed
        self.outcome: Final = outcome
        self.failure: Final = failure
        self.status: Final = status
        self.answer: Final = answer
        self.retry_after_s: Final = retry_after_s
        self.message: Final = message
        self.missing_done: Final = missing_done


_Value = TypeVar("_Value")


def changed(value: _Value, /, **changes: Any) -> _Value:
    """Return a copy of such a value with other values of some attributes, for the few calls that need one."""
    kind: Any = type(value)
    # A compiled class has no slots; it names its attributes itself, in the same order.
    names: tuple[str, ...] = getattr(kind, "__mypyc_attrs__", None) or kind.__slots__
    return type(value)(**{name: changes[name] if name in changes else getattr(value, name) for name in names})
