"""An office with a clock that stands still, and requests to it."""

import json
from typing import Any

from forebay.policy import Policy, Resume
from forebay.resume.office import Office
from forebay.resume.stamp import Stamp
from forebay.wire.members import read_members
from forebay.wire.resumed import Asking, Mark, Shown

HEAD = (b'"chatcmpl-1"', b"17", b'"m"', b"")
NEW = Shown(b"", "call-1", "m", "", limit_tokens=50)
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


def asking(body: Any = None, *, tenant: str = "a", key: bytes = b"k" * 32, endpoint: str = "chat") -> Asking:
    text = body if isinstance(body, bytes) else json.dumps(body or BODY).encode()
    return Asking(tenant, key, endpoint, read_members(text).values)


def mark(text: str, tokens: int, **more: Any) -> Mark:
    return Mark(text, HEAD, tokens, True, **more)


class Node:
    """One of several nodes, which may share a key."""

    def __init__(self, *keys: bytes, own: bytes = b"o" * 32, ttl_s: float = 120.0) -> None:
        self.now_s = 1_800_000_000.0
        self.office = Office(own, lambda: self.now_s)
        self.follow(*keys, ttl_s=ttl_s)

    def follow(self, *keys: bytes, ttl_s: float = 120.0) -> None:
        self.office.apply(Policy({}, {}, {}, resume=Resume(keys, ttl_s)))

    def stamp(self, shown: Shown = NEW, **more: Any) -> Stamp:
        return self.office.stamp(self.office.claim(asking(**more)), shown)


def token_of(stamp: Stamp, *words: str) -> bytes:
    """The token behind the last of some words, each of which is a token of the engine."""
    token = None
    for number, word in enumerate(words, start=1):
        token = stamp.after(mark(word, number))
    assert token
    return token
