"""What a client brings that comes back for the rest of an answer, and what is known of one that may come back.

All of it travels in a sealed token (`resume`), because the node that began the answer may be gone.
"""

from collections.abc import Mapping

from msgspec import Raw, Struct


class Asking(Struct, frozen=True):
    """A request, as far as a token is bound to it.

    Attributes:
        tenant: name.
        key_digest: SHA-256 of its API key.
        endpoint: name.
        members: of the body, without what the client has received.
    """

    tenant: str
    key_digest: bytes
    endpoint: str
    members: Mapping[str, Raw]


class Claim(Struct, frozen=True):
    """Who may come back for an answer, and with which request: hashes that only holders of the sealing key can make.

    Attributes:
        holder: of the tenant and its API key.
        request: of the endpoint and the body.
    """

    holder: bytes
    request: bytes


class Shown(Struct, frozen=True):
    """What a client has of an answer.

    Attributes:
        leg: names the run of the answer that the token is from; 16 bytes.
        call_id: of the call that began it.
        served: name of the model that answers, as the policy calls it.
        text: that the client has.
        tokens: of it.
        counted: by the engine's ids; else by events.
        prompt_tokens: as the engine counted them; None when it has not said.
        cached_tokens: likewise.
        id: member of all events of the answer, as JSON text; empty where the engine leaves it out.
        created: likewise.
        model: likewise, in the engine's words.
        fingerprint: likewise.
        limit_tokens: longest answer; None leaves it to the engine.
        recent_chars: lengths of what the latest events said, the newest last.
        finished: the finish reason, when the client has it.
        usage: the client has the usage event too.
    """

    leg: bytes
    call_id: str
    served: str
    text: str
    tokens: int = 0
    counted: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    id: bytes = b""
    created: bytes = b""
    model: bytes = b""
    fingerprint: bytes = b""
    limit_tokens: int | None = None
    recent_chars: bytes = b""
    finished: str = ""
    usage: bool = False


class Mark(Struct, frozen=True, gc=False):
    """Where an answer stands behind one event.

    Attributes:
        text: that the event adds.
        head: id, creation time, model and fingerprint of the answer, as JSON texts; empty where it has none.
        tokens: of the answer.
        counted: by the engine's ids; else by events.
        prompt_tokens: as the engine counted them; None when it has not said.
        cached_tokens: likewise.
        finished: the finish reason, when it has come.
        usage: the event is the one with the usage of the whole answer.
    """

    text: str
    head: tuple[bytes, bytes, bytes, bytes]
    tokens: int
    counted: bool
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finished: str | None = None
    usage: bool = False
