"""What a request's body asks for: the few members that Forebay reads, checked; the rest stays raw."""

import asyncio
from typing import Final

from forebay.edge.values import asks_usage, check_messages, is_set, limit_keys, limit_of, model_of
from forebay.errors import Refused
from forebay.wire.depth import check_depth
from forebay.wire.endpoints import Endpoint, Shape
from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members
from forebay.wire.resumed import Claim, Shown

# Above this size the loop gets a turn between two passes over the body, each of a few milliseconds at most.
SLICE_BYTES = 262_144


class Asked:
    """What a body asks for.

    Attributes:
        members: the body, ready to be edited.
        model: the name that the client used; empty when it named none.
        wants_usage: `stream_options.include_usage` is true.
        max_tokens: the client's own cap of the output.
        counted: tokens of the prompt as an engine counted them; 0 when none could, None while none was asked.
        claim: see `Call`; so is `shown`.
    """

    __slots__ = ("claim", "counted", "max_tokens", "members", "model", "shown", "stream", "wants_usage")

    def __init__(  # noqa: PLR0913 - its attributes
        self, members: Members, model: str, stream: bool, wants_usage: bool, max_tokens: int | None,
        counted: int | None = None, claim: Claim | None = None, shown: Shown | None = None,
    ) -> None:  # fmt: skip
        self.members: Final = members
        self.model: Final = model
        self.stream: Final = stream
        self.wants_usage: Final = wants_usage
        self.max_tokens: Final = max_tokens
        self.counted: Final = counted
        self.claim: Final = claim
        self.shown: Final = shown


def read_small(body: bytes, endpoint: Endpoint, json_depth: int) -> Asked | None:
    """Read a body at once if it is well formed and small: the common case, with no coroutine.

    Returns:
        None for a body that `read` must look at: it is large, or no JSON object that may be passed on.

    Raises:
        Refused: `invalid_value`, `missing_value`.
    """
    if len(body) > SLICE_BYTES:
        return None
    try:
        if not body.isascii():
            body.decode()
        members = read_members(body)
        check_depth(body, json_depth)
    except (UnicodeDecodeError, InvalidJson, DuplicateKey, TooDeep):
        return None
    return _asked(members, endpoint)


async def read(body: bytes, endpoint: Endpoint, json_depth: int) -> Asked:
    """Read a body; `null` means absent.

    Args:
        body: as received.
        endpoint: that it is sent to.
        json_depth: levels of nesting that are allowed.

    Raises:
        Refused: `invalid_json`, `duplicate_key`, `json_too_deep`, `invalid_value`, `missing_value`.
    """
    sliced = len(body) > SLICE_BYTES
    try:
        if not body.isascii():
            body.decode()
        if sliced:
            await asyncio.sleep(0)
        members = read_members(body)
        if sliced:
            await asyncio.sleep(0)
        check_depth(body, json_depth)
        if sliced:
            await asyncio.sleep(0)
    except UnicodeDecodeError:
        raise Refused("invalid_json", "the body is not UTF-8") from None
    except InvalidJson as error:
        raise Refused("invalid_json", str(error)) from None
    except DuplicateKey as double:
        raise Refused("duplicate_key", str(double), param=double.key[:64]) from None
    except TooDeep:
        raise Refused("json_too_deep", f"the body is nested deeper than {json_depth} levels") from None
    return _asked(members, endpoint)


def limit_key(asked: Asked, shape: Shape) -> str:
    """Return the member that bounds the length of the answer: the one that the body has, else its API's usual one."""
    present = [key for key in limit_keys(shape) if key in asked.members.values]
    return present[0] if present else limit_keys(shape)[-1]


def _asked(members: Members, endpoint: Endpoint) -> Asked:
    values = members.values
    shape = endpoint.shape
    if shape == "chat" or shape == "messages":
        check_messages(values)
    stream = "stream" in values and endpoint.streams and is_set(values["stream"], "stream")
    wants_usage = stream and "stream_options" in values and asks_usage(members)
    return Asked(members, model_of(values), stream, wants_usage, limit_of(values, shape))
