"""The values that travel along the request path: what came, what it means, what an engine said."""

from msgspec import Struct

from forebay.domain import FailureKind, Outcome, Tenant, Value
from forebay.wire.endpoints import Endpoint

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""


class Request(Struct, frozen=True):
    """One request as it arrived.

    Attributes:
        path: decoded no further than the client sent it; without the query.
        headers: by lower-case name; names that came twice are joined by ", " unless `repeated` has them.
        repeated: lower-case names that came more than once.
        body: whole, de-chunked.
        peer: address of the connection's other end.
        received_s: monotonic seconds at the last byte of the request.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    repeated: frozenset[bytes]
    body: bytes
    peer: str
    received_s: float


class Prompt(Struct, frozen=True):
    """What a model is to read, taken out of a body.

    Attributes:
        text: JSON text of the contents, joined; of a long prompt three samples: beginning, middle, end.
        text_bytes: length of the whole.
        messages: number of messages, or of prompts.
        images: number of parts that are pictures.
        audio_bytes: of audio parts, as they stand in the body.
        tools_bytes: JSON text of tools and of a response schema.
    """

    text: bytes = b""
    text_bytes: int = 0
    messages: int = 1
    images: int = 0
    audio_bytes: int = 0
    tools_bytes: int = 0


class Work(Struct, frozen=True):
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

    prompt_tokens: int
    output_tokens: int
    likely_output_tokens: int
    model: str = ""
    features: tuple[float, ...] = ()
    kin: tuple[tuple[object, ...], ...] = ()
    blocks: tuple[int, ...] = ()


class Call(Struct, frozen=True):
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
        notice: text that ends its answer, which says how it was degraded; empty for none.
        moved: it is served by another model because its own pool is full, and goes nowhere else from there.
    """

    call_id: str
    endpoint: Endpoint
    model: str
    stream: bool
    wants_usage: bool
    tenant: Tenant
    prompt_tokens: int
    output_tokens: int
    headers: tuple[Header, ...]
    received_s: float
    deadline_s: float
    value: Value = "medium"
    work: Work = Work(1, 1, 1)
    money: float = 0.0
    max_tokens: int | None = None
    bound_tokens: int = 0
    template: str = ""
    retries: int = 0
    rule: str = ""
    doubtful: bool = False
    notice: str = ""
    moved: bool = False


class Answer(Struct, frozen=True):
    """An engine's own final answer that is no success: status, headers and body as it sent them."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Verdict(Struct, frozen=True):
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

    committed: bool
    outcome: Outcome
    failure: FailureKind | None = None
    status: int = 0
    answer: Answer | None = None
    retry_after_s: float | None = None
    message: str = ""
    missing_done: bool = False
