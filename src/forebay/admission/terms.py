"""What a client may ask for beside its prompt: worth, patience, length, the names it gives. Pure.

Headers cost a client nothing, so each is read within the rights of its key, bounded, and never passed on.
"""

from msgspec import Struct

from forebay.domain import VALUES, Tenant, Value
from forebay.policy import Action, Model

# A client that is in more of a hurry than this would give up before any engine could answer.
MIN_DEADLINE_S = 0.1
MAX_TEMPLATES = 200
_OTHER = "other"


class Terms(Struct, frozen=True):
    """What a call asks for.

    Attributes:
        value: what it is worth.
        max_tokens: longest answer; None leaves it to the engine.
        template: name of the prompt's template; empty without one.
        user: the client's own user; empty without one.
    """

    value: Value
    max_tokens: int | None
    template: str
    user: str

    def within(self, action: Action) -> "Terms":
        """Return these terms within what a rule allows."""
        return Terms(
            self.value if action.value is None else VALUES[max(VALUES.index(self.value), VALUES.index(action.value))],
            least(self.max_tokens, action.cap_tokens),
            self.template,
            self.user,
        )


class Reader:
    """Reads terms; knows the names of templates, at most `MAX_TEMPLATES`: those beyond are one."""

    def __init__(self) -> None:
        self._templates: set[str] = set()

    def read(self, headers: dict[bytes, bytes], asked_tokens: int | None, model: Model, tenant: Tenant) -> Terms:
        """Read the terms of a call.

        Args:
            headers: of the request.
            asked_tokens: longest answer that the body asks for.
            model: that is to answer.
            tenant: who calls.
        """
        wanted = model.default_output_tokens if asked_tokens is None else asked_tokens
        claimed = headers.get(b"x-request-value")
        template = headers.get(b"x-prompt-template-id")
        user = headers.get(b"x-user-id")
        return Terms(
            tenant.default_class if claimed is None else _value_of(claimed, tenant),
            least(least(wanted, model.max_output_tokens), tenant.max_output_tokens),
            "" if template is None else self._known(name_of(template)),
            "" if user is None else name_of(user),
        )

    def _known(self, template: str) -> str:
        if template and template not in self._templates:
            if len(self._templates) >= MAX_TEMPLATES:
                return _OTHER
            self._templates.add(template)
        return template


def name_of(raw: bytes) -> str:
    """Return a header's value if it is 1-128 visible ASCII characters, else an empty text."""
    text = raw.decode("latin-1")
    return text if 0 < len(raw) <= 128 and text.isascii() and text.isprintable() and " " not in text else ""


def least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two bounds; None bounds nothing."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def patience_s(headers: dict[bytes, bytes], stream: bool, total_s: float) -> float:
    """Return after how many seconds nobody waits any more: what the client says, within the deadline of the call.

    OpenAI's SDK tells its read timeout; it binds an answer that comes as a whole, and no stream (T77). Nor does it bind
    a call with an `Idempotency-Key`: the SDK sends that again, and the call must still run then.

    Args:
        headers: of the request.
        stream: whether the answer is streamed.
        total_s: the deadline of the call.
    """
    wait_s = total_s
    deadline_ms = headers.get(b"x-deadline-ms")
    if deadline_ms is not None:
        wait_s = min(wait_s, _number(deadline_ms, total_s * 1000.0) / 1000.0)
    read_s = None if stream else headers.get(b"x-stainless-read-timeout")
    if read_s is not None and b"idempotency-key" not in headers:
        wait_s = min(wait_s, _number(read_s, total_s))
    return max(MIN_DEADLINE_S, wait_s)


def _value_of(claimed: bytes, tenant: Tenant) -> Value:
    """Return what a call is worth: what it claims, if its tenant may, else the next lower class that it may (T34).

    A word that is none of the three claims nothing.
    """
    name = claimed.strip().lower().decode("latin-1")
    for place, value in enumerate(VALUES):
        if value == name:
            lower = [v for v in VALUES[place:] if v in tenant.classes]
            return lower[0] if lower else tenant.default_class
    return tenant.default_class


def _number(raw: bytes, otherwise: float) -> float:
    """Read a positive number of at most nine digits; what is none counts as the other value."""
    whole, _, part = raw.partition(b".")
    return float(raw) if whole.isdigit() and len(raw) <= 9 and (not part or part.isdigit()) else otherwise
