"""Answers of calls that had an `Idempotency-Key`, kept in memory for a while so that a retry is not run again. Pure.

Bounded by number and bytes. The tenant with the most gives first: of bytes its oldest answer, whose key stays, so that
a retry is told that the answer is lost and does not run twice; of entries its oldest altogether.
"""

from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from forebay.errors import Refused

MAX_KEY_BYTES = 255

Said = TypeVar("Said")


class Kept(Struct, Generic[Said], frozen=True):
    """What is known of one key.

    Attributes:
        call_id: of the call that ran.
        print: of its request; another one must not have the key.
        kept_s: monotonic seconds at which it ended.
        said: its answer; None when it is lost.
        size_bytes: of the answer.
    """

    call_id: str
    print: bytes
    kept_s: float
    said: Said | None
    size_bytes: int


class _Shelf(Generic[Said]):
    """The keys of one tenant, the oldest first."""

    __slots__ = ("answers", "held_bytes", "keys")

    def __init__(self) -> None:
        self.keys: dict[bytes, Kept[Said]] = {}
        self.answers: dict[bytes, None] = {}
        self.held_bytes = 0

    def lose(self, key: bytes) -> None:
        """Let an answer go, and keep its key."""
        kept = self.keys[key]
        self.held_bytes -= kept.size_bytes
        self.keys[key] = replace(kept, said=None, size_bytes=0)
        del self.answers[key]

    def drop(self, key: bytes) -> None:
        """Forget a key."""
        self.held_bytes -= self.keys.pop(key).size_bytes
        self.answers.pop(key, None)


class KeptAnswers(Generic[Said]):
    """All keys of all tenants.

    Attributes:
        ttl_s: seconds after its end that an answer is kept.
        max_entries: keys of all tenants.
        max_bytes: of all answers.
    """

    def __init__(self) -> None:
        self.ttl_s = 0.0
        self.max_entries = 0
        self.max_bytes = 0
        self._shelves: dict[str, _Shelf[Said]] = {}

    @property
    def entries(self) -> int:
        """How many keys are known."""
        return sum(len(shelf.keys) for shelf in self._shelves.values())

    @property
    def held_bytes(self) -> int:
        """Size of all answers."""
        return sum(shelf.held_bytes for shelf in self._shelves.values())

    def limit(self, ttl_s: float, max_entries: int, max_bytes: int) -> None:
        """Set the bounds; what lies beyond them is let go with the next `keep` and `tick`."""
        self.ttl_s = ttl_s
        self.max_entries = max_entries
        self.max_bytes = max_bytes

    def get(self, tenant: str, key: bytes, now_s: float) -> Kept[Said] | None:
        """Return what is known of a key; None when nothing is, or not any more."""
        shelf = self._shelves.get(tenant)
        kept = None if shelf is None else shelf.keys.get(key)
        return None if kept is None or kept.kept_s + self.ttl_s <= now_s else kept

    def keep(self, tenant: str, key: bytes, kept: Kept[Said]) -> None:
        """Keep what a call with a key came to."""
        shelf = self._shelves.setdefault(tenant, _Shelf())
        if key in shelf.keys:
            shelf.drop(key)
        shelf.keys[key] = kept
        shelf.held_bytes += kept.size_bytes
        if kept.said is not None:
            shelf.answers[key] = None
        self._fit()

    def tick(self, now_s: float) -> None:
        """Erase what is too old; called about once a second."""
        for tenant, shelf in list(self._shelves.items()):
            while shelf.keys:
                key, kept = next(iter(shelf.keys.items()))
                if kept.kept_s + self.ttl_s > now_s:
                    break
                shelf.drop(key)
            if not shelf.keys:
                del self._shelves[tenant]
        self._fit()

    def _fit(self) -> None:
        while self.held_bytes > self.max_bytes:
            largest = max(self._shelves.values(), key=lambda shelf: shelf.held_bytes)
            largest.lose(next(iter(largest.answers)))
        while self.entries > self.max_entries:
            fullest = max(self._shelves.values(), key=lambda shelf: len(shelf.keys))
            fullest.drop(next(iter(fullest.keys)))


def key_of(raw: bytes) -> bytes:
    """Check the value of an `Idempotency-Key` header.

    Raises:
        Refused: `invalid_value`.
    """
    if not 0 < len(raw) <= MAX_KEY_BYTES or min(raw) < 0x21 or max(raw) > 0x7E:
        raise Refused(
            "invalid_value",
            f"Idempotency-Key must be sent once, with 1 to {MAX_KEY_BYTES} visible ASCII characters",
            param="Idempotency-Key",
        )
    return raw
