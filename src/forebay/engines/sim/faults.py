"""Failures on demand: a script of steps, one consumed by each call that wants the engine to work.

A script is a JSON list. Each step names an `action`, and how long it holds: `times` calls (1 unless said),
`for_s` seconds from when its turn comes, or `always`. After the last step the engine is well.

    [{"action": "status", "status": 503, "times": 2},
     {"action": "ok"},
     {"action": "cut", "after_tokens": 40, "how": "rst"},
     {"action": "loading", "for_s": 60},
     {"action": "die", "if_body": "poison", "always": true}]

Pure: the caller passes the time, and carries the actions out.
"""

from collections import deque
from typing import Literal

import msgspec
from msgspec import Struct

MAX_STEPS = 10_000

How = Literal["rst", "fin"]


class Action(Struct, frozen=True, tag_field="action", forbid_unknown_fields=True, kw_only=True):
    """What to do to a call, and for how long the step holds.

    Attributes:
        times: calls that it is done to.
        for_s: seconds that it holds for instead, counted from when its turn comes.
        always: it holds until the script is replaced.
        if_body: it is done only to calls whose body has this text; the others are served well, and use nothing up.
    """

    times: int = 1
    for_s: float | None = None
    always: bool = False
    if_body: str = ""

    def __post_init__(self) -> None:
        """Refuse a step that never ends or never begins."""
        if self.times < 1 or (self.for_s is not None and self.for_s <= 0):
            raise ValueError("times and for_s must be above 0")


class Ok(Action, frozen=True, tag="ok"):
    """Serve the call well; keeps the place of a good call in a script."""


class Status(Action, frozen=True, tag="status"):
    """Answer with a status and an error body.

    Attributes:
        message: of the body; empty takes the status's own phrase.
        type: of the body; empty takes vLLM's name for the status.
        code: of the body; empty takes the status.
        param: of the body.
        retry_after: value of the Retry-After header, in seconds or as a date; empty sends none.
        flat: send the error's fields at the top level, as older engines do.
        body: sent instead of the error, as it is.
    """

    status: int
    message: str = ""
    type: str = ""
    code: str = ""
    param: str | None = None
    retry_after: str | float = ""
    flat: bool = False
    body: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no final HTTP status."""
        Action.__post_init__(self)
        if not 200 <= self.status <= 599:
            raise ValueError("status must be 200..599")


class ContextLength(Action, frozen=True, tag="context_length_exceeded"):
    """Answer 400: the prompt is too long, in OpenAI's form."""


class ContentPolicy(Action, frozen=True, tag="content_policy_violation"):
    """Answer 400: the prompt is not allowed, in OpenAI's form."""


class RefusePrefix(Action, frozen=True, tag="refuse_prefix"):
    """Answer 400 to a call that continues an answer (by message or by ids); serve any other well."""


class Drain(Action, frozen=True, tag="drain"):
    """Answer 500 as vLLM does while it shuts down; `/health` stays 200."""


class Loading(Action, frozen=True, tag="loading"):
    """Answer 503 on `/health` and to every call, while the model list is there."""


class Reset(Action, frozen=True, tag="reset"):
    """Close the connection before any byte of an answer."""

    how: How = "rst"


class Hang(Action, frozen=True, tag="hang"):
    """Take the call and say nothing.

    Attributes:
        hold_s: seconds after which the connection is closed; None waits for the caller to leave.
    """

    hold_s: float | None = None


class Garbage(Action, frozen=True, tag="garbage"):
    """Answer with bytes that are not HTTP, then close."""

    text: str = "\x00\x01 this is not HTTP\r\n\r\n"


class SlowStart(Action, frozen=True, tag="slow_start"):
    """Send the headers of a stream at once and the first token late; any other answer comes late as a whole."""

    delay_s: float


class Freeze(Action, frozen=True, tag="freeze"):
    """Freeze the core: no sequence gets a token, while `/health` is 200.

    Attributes:
        hold_s: seconds until it thaws; None waits for `/sim/reset`.
    """

    hold_s: float | None = None


class Telemetry(Action, frozen=True, tag="telemetry"):
    """Break the telemetry page alone: calls are served well, and `/health` is 200.

    Attributes:
        how: what is asked for there is answered 500, with bytes that are not HTTP, or not at all.
    """

    how: Literal["status", "garbage", "hang"] = "status"


class Tripped(Action, frozen=True):
    """An action that waits until a number of tokens has been sent; 0 acts in place of the first event."""

    after_tokens: int

    def __post_init__(self) -> None:
        """Refuse a negative number of tokens."""
        Action.__post_init__(self)
        if self.after_tokens < 0:
            raise ValueError("after_tokens must not be negative")


class Cut(Tripped, frozen=True, tag="cut"):
    """Cut the connection in the middle of the answer."""

    how: How = "rst"


class Die(Tripped, frozen=True, tag="die"):
    """Die: nobody listens any more, all connections are reset, and a process of its own ends."""

    after_tokens: int = 0


class Stall(Tripped, frozen=True, tag="stall"):
    """Fall silent.

    Attributes:
        hold_s: seconds after which the connection is closed; None waits for the caller to leave.
    """

    hold_s: float | None = None


class ErrorEvent(Tripped, frozen=True, tag="error_event"):
    """Send an error inside the stream, then end it.

    Attributes:
        shape: `data` is vLLM's; `event` adds the name `error` to the event; `flat` has the fields at the top.
        done: whether `[DONE]` follows.
    """

    message: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    type: str = "InternalServerError"
    code: int = 500
    shape: Literal["data", "event", "flat"] = "data"
    done: bool = True


class AbortFinish(Tripped, frozen=True, tag="abort_finish"):
    """End with finish_reason `abort`, as an engine does that is put to sleep."""


class BadChunk(Tripped, frozen=True, tag="bad_chunk"):
    """Break the chunked framing, then close."""


class BadEvent(Action, frozen=True, tag="bad_event"):
    """Break the JSON of one event; the rest is fine. Breaks the body of an answer without stream.

    Attributes:
        event: its number in the stream, from 1.
    """

    event: int
    text: str = '{"choices": [{"index": 0, "delta": {"content": '


class NoDone(Action, frozen=True, tag="no_done"):
    """Leave out `[DONE]`.

    Attributes:
        hold: keep the answer open after its finish_reason instead of ending it.
        hold_s: seconds after which a held one is closed; None waits for the caller to leave.
    """

    hold: bool = False
    hold_s: float | None = None


class NoFinish(Action, frozen=True, tag="no_finish"):
    """Leave out the chunk with the finish_reason.

    Attributes:
        done: whether `[DONE]` is sent all the same.
    """

    done: bool = True


class ShortBody(Action, frozen=True, tag="short_body"):
    """Promise a Content-Length, send half of it and close; does nothing to a stream."""


AnyAction = (
    Ok
    | Status
    | ContextLength
    | ContentPolicy
    | RefusePrefix
    | Drain
    | Loading
    | Reset
    | Hang
    | Garbage
    | SlowStart
    | Freeze
    | Telemetry
    | Cut
    | Die
    | Stall
    | ErrorEvent
    | AbortFinish
    | BadChunk
    | BadEvent
    | NoDone
    | NoFinish
    | ShortBody
)

WELL = Ok()


def read(data: bytes) -> tuple[AnyAction, ...]:
    """Read a script.

    Raises:
        ValueError: it is no JSON list of known steps; the message says where.
    """
    try:
        steps = msgspec.json.decode(data, type=list[AnyAction])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a list of fault steps: {error}") from None
    if len(steps) > MAX_STEPS:
        raise ValueError(f"{len(steps)} steps, at most {MAX_STEPS}")
    return tuple(steps)


def name_of(action: AnyAction) -> str:
    """Return the name of an action as scripts write it."""
    return str(action.__struct_config__.tag)


class FaultScript:
    """The steps that are still to come.

    Args:
        steps: at most `MAX_STEPS`.
        now_s: monotonic seconds; the turn of the first step begins.
    """

    def __init__(self, steps: tuple[AnyAction, ...], now_s: float) -> None:
        self._steps = deque(steps)
        self._since_s = now_s
        self._used = 0

    @property
    def left(self) -> int:
        """Steps that are not used up."""
        return len(self._steps)

    def current(self, now_s: float) -> AnyAction:
        """Return the step whose turn it is, without consuming it; `WELL` after the last one."""
        while self._steps:
            step = self._steps[0]
            if step.for_s is None or now_s < self._since_s + step.for_s:
                return step
            self._next(self._since_s + step.for_s)
        return WELL

    def take(self, now_s: float, body: bytes = b"") -> AnyAction:
        """Return what to do to the call that came now with a body, and count it."""
        step = self.current(now_s)
        if step.if_body and step.if_body.encode() not in body:
            return WELL
        if self._steps and step.for_s is None and not step.always:
            self._used += 1
            if self._used >= step.times:
                self._next(now_s)
        return step

    def _next(self, since_s: float) -> None:
        self._steps.popleft()
        self._since_s = since_s
        self._used = 0
