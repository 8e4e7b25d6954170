"""One answer whose client may come back: a token behind each of its events."""

from collections import deque
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from forebay.resume.keyring import Key, Seal, TooLarge
from forebay.resume.message import new_state, pack
from forebay.wire.resumed import Claim, Mark, Shown

RECENT_EVENTS: Final = 24
FORGET: Final = b""
"""An empty `id:` makes a client forget the one before (WHATWG HTML, 9.2.6)."""
_MAX_CHARS: Final = 255
_ANY: Final = "surrogatepass"


class Terms(Struct, frozen=True):
    """For how long tokens last, and by which clock.

    Attributes:
        ttl_s: seconds.
        wall_s: returns Unix seconds.
    """

    ttl_s: float
    wall_s: Callable[[], float]


class Stamp:
    """Makes the tokens of one answer; see `ports.Stamp`.

    Args:
        key: to seal with.
        claim: who may come back.
        shown: what the client has when the answer begins: of a new one no text. Its `leg` is not looked at.
        terms: of the tokens.

    Attributes:
        given: tokens so far.
    """

    __slots__ = ("_chars", "_closed", "_fixed", "_hasher", "_recent", "_seal", "_state", "_terms", "_whole", "given")

    def __init__(self, key: Key, claim: Claim, shown: Shown, terms: Terms) -> None:
        self._seal = Seal(key)
        self._terms = terms
        self._hasher = key.hasher()
        self._hasher.update(shown.text.encode(errors=_ANY))
        self._chars = len(shown.text)
        self._recent: deque[int] = deque(shown.recent_chars, RECENT_EVENTS)
        self._whole = new_state(holder=claim.holder, request=claim.request, call_id=shown.call_id, served=shown.served)
        if shown.limit_tokens is not None:
            self._whole.limit_tokens = shown.limit_tokens
        self._fixed = b""
        self._state = new_state()
        self._closed = False
        self.given = 0

    def after(self, mark: Mark | None) -> bytes | None:
        """Return the value of the `id:` line of an event.

        Args:
            mark: where the answer stands behind it; None when it cannot be gone on with any more.

        Returns:
            A token; `FORGET` once when there will be no more of them; None for an event that adds nothing.
        """
        if self._closed:
            return None
        if mark is None:
            return self._close()
        if mark.text:
            self._hasher.update(mark.text.encode(errors=_ANY))
            self._chars += len(mark.text)
            self._recent.append(min(len(mark.text), _MAX_CHARS))
        elif mark.finished is None and not mark.usage:
            return None
        if not self._fixed:
            self._fixed = self._head(mark)
        try:
            token = self._seal.seal(self._fixed + self._moving(mark))
        except (TooLarge, ValueError):  # a number does not fit into its field
            return self._close()
        self.given += 1
        return token

    def _close(self) -> bytes:
        self._closed = True
        return FORGET

    def _head(self, mark: Mark) -> bytes:
        """Return what is the same in all tokens."""
        whole = self._whole
        for name, text in zip(("id", "created", "model", "fingerprint"), mark.head, strict=True):
            if text:
                setattr(whole, name, text)
        return pack(whole)

    def _moving(self, mark: Mark) -> bytes:
        """Return what each token has of its own."""
        state = self._state
        state.text_hash = self._hasher.copy().digest()
        state.chars = self._chars
        state.events = self.given + 1
        state.tokens = mark.tokens
        state.counted = mark.counted
        if mark.prompt_tokens is not None:
            state.prompt_tokens = mark.prompt_tokens
        if mark.cached_tokens is not None:
            state.cached_tokens = mark.cached_tokens
        state.recent_chars = bytes(self._recent)
        if mark.finished is not None:
            state.finished = mark.finished
        if mark.usage:
            state.usage = True
        state.expires_s = int(self._terms.wall_s() + self._terms.ttl_s)
        return pack(state)
