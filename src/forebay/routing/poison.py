"""A request that kills engines: who is suspected when a replica dies, who is tried again, who is not (T29, A7).

Pure, on the time it is told. When a replica dies, each call in flight there is judged. One that has decoded more than
32 tokens is innocent and may move at once. A suspect is one that was still in prefill, or the newest of those that
ask for the same features: suspects of a pool go one at a time, the newest first, all to one replica. A suspect that
is there when a second replica dies is guilty, and its fingerprint is quarantined for a while; whoever was suspected
with it is free at once.

A request kills where it killed before: who is there at a second death but has come further, or not so far, is no more
suspected than others. So a request that kills in its prefill takes two replicas, and engines that die one after the
other by themselves convict nobody. One that kills later may look innocent at first: at the second death it is guilty if
it is the only one that was at both in the same place; at the third in any case.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, Literal

from msgspec import Raw, Struct

INNOCENT_TOKENS: Final = 32
SAME_TOKENS: Final = 8
"""Two deaths that are no further apart in an answer are in the same place: some tokens are always on the way."""
TTL_S: Final = 600.0
MAX_TTL_S: Final = 14_400.0
MAX_FINGERPRINTS: Final = 1024
"""Fingerprints that are remembered; at the bound the oldest that is not quarantined is forgotten, else the oldest."""

DEATH_WINDOW_S: Final = 2.0
"""What is lost on one replica within this time is lost in the same death."""
MAX_HASHED_BYTES: Final = 1_048_576
"""Of a longer member its beginning and its end are hashed, each half as long, and its length."""

# Members of a body that differ between two sendings of the same request, or never reach the model.
VOLATILE: Final = frozenset(
    ("metadata", "prompt_cache_key", "request_id", "safety_identifier", "seed", "stream_options", "user")
)

Finding = Literal["innocent", "suspect", "guilty"]
Standing = Literal["free", "suspect", "quarantined"]
_Kept = Literal["noted", "suspect", "quarantined"]
Reason = Literal["decoded", "not the newest", "explained", "in prefill", "newest", "second death", "third death"]


class Flight(Struct, frozen=True):
    """A call in flight on a replica.

    Attributes:
        call_id: whose.
        fingerprint: keyed hash of its body.
        features: mask of its features, as `features.mask_of` makes it.
        started_s: monotonic seconds at which it was sent to this replica.
        decoded_tokens: that this replica has sent for it; 0 while in prefill, or when nobody can see it.
        place_tokens: where in its answer it is, counted over all replicas.
    """

    call_id: str
    fingerprint: int
    features: int
    started_s: float
    decoded_tokens: int
    place_tokens: int


class Presence(Struct, frozen=True):
    """That a fingerprint was there when other replicas died.

    Attributes:
        standing: what was thought of it: merely noted as an innocent, or worse.
        deaths: how many replicas.
        place_tokens: where in its answer it was at the latest.
    """

    standing: Literal["noted", "suspect", "quarantined"]
    deaths: int = 1
    place_tokens: int = 0


class Judged(Struct, frozen=True):
    """What is thought of one flight, and why."""

    flight: Flight
    finding: Finding
    reason: Reason


class Entry(Struct, frozen=True):
    """A remembered fingerprint, to be shown.

    Attributes:
        fingerprint: in hexadecimal; the key of a removal.
        deaths: replicas that died with it.
        replica: the one that died last.
        left_s: seconds until it is forgotten or, when quarantined, may be tried once more.
    """

    fingerprint: str
    standing: Standing
    deaths: int
    replica: str
    reason: Reason
    left_s: float


def fingerprint(key: bytes, members: Mapping[str, bytes | Raw]) -> int:
    """Return 64 bits that the same request has again, and nobody can aim at without the key.

    Args:
        key: random, of this process, at most 64 bytes.
        members: raw text of the body's members; the volatile ones are left out.
    """
    digest = blake2b(digest_size=8, key=key)
    for name in sorted(members):
        if name not in VOLATILE:
            text = memoryview(members[name])
            digest.update(b"\0%b\0%d\0" % (name.encode(), len(text)))
            if len(text) <= MAX_HASHED_BYTES:
                digest.update(text)
            else:
                digest.update(text[: MAX_HASHED_BYTES // 2])
                digest.update(text[-MAX_HASHED_BYTES // 2 :])
    return int.from_bytes(digest.digest(), "big")


def judge(flights: Sequence[Flight], before: Mapping[int, Presence]) -> tuple[Judged, ...]:
    """Judge the calls in flight on a replica that has died; the order stays.

    Args:
        flights: all of them.
        before: presence at earlier deaths, by fingerprint.
    """
    guilty, reason = _guilty(flights, before)
    if not guilty:
        newest: dict[int, float] = {}
        for flight in flights:
            newest[flight.features] = max(flight.started_s, newest.get(flight.features, flight.started_s))
        return tuple([_judged(f, before.get(f.fingerprint), newest[f.features]) for f in flights])
    return tuple(
        [
            Judged(f, "guilty", reason) if f.fingerprint in guilty else Judged(f, "innocent", "explained")
            for f in flights
        ]
    )


def _guilty(flights: Sequence[Flight], before: Mapping[int, Presence]) -> tuple[set[int], Reason]:
    """Return the culprits, if they can be told: the surest evidence goes first."""
    seen = {f.fingerprint: before[f.fingerprint] for f in flights if f.fingerprint in before}
    convicted = {each for each, presence in seen.items() if presence.standing == "quarantined"}
    again = {f.fingerprint for f in flights if f.fingerprint in seen and _in_place(f, seen[f.fingerprint])}
    suspects = {each for each in again if seen[each].standing == "suspect"}
    if convicted:
        return convicted, "second death"
    # Of several that were at both deaths, all but one are bystanders.
    for accused in (suspects, again):
        if len(accused) == 1:
            return accused, "second death"
    return {each for each, presence in seen.items() if presence.deaths >= 2}, "third death"


def _in_place(flight: Flight, before: Presence) -> bool:
    return abs(flight.place_tokens - before.place_tokens) <= SAME_TOKENS


def _judged(flight: Flight, before: Presence | None, newest_s: float) -> Judged:
    if before is not None and _in_place(flight, before):
        return Judged(flight, "suspect", "second death")
    if not flight.decoded_tokens:
        return Judged(flight, "suspect", "in prefill")
    if flight.decoded_tokens > INNOCENT_TOKENS:
        return Judged(flight, "innocent", "decoded")
    if flight.started_s >= newest_s:
        return Judged(flight, "suspect", "newest")
    return Judged(flight, "innocent", "not the newest")


class _Record:
    """What is remembered of one fingerprint."""

    __slots__ = ("at_s", "case", "deaths", "reason", "replica", "place_tokens", "sentences", "standing", "until_s")

    def __init__(self) -> None:
        self.standing: _Kept = "noted"
        self.reason: Reason = "decoded"
        self.replica = ""
        self.at_s = 0.0
        self.until_s = 0.0
        self.case = 0
        self.deaths = 0
        self.place_tokens = 0
        self.sentences = 0


class Quarantine:
    """Remembers who was there when replicas died.

    A quarantine that has run out leaves a suspect: one more trial, and if that kills, twice the time.
    An answer that came to its end clears its fingerprint, whatever it was there for.

    Attributes:
        convictions: fingerprints quarantined since the start.
    """

    __slots__ = ("_cases", "_quarantined", "_records", "_ttl_s", "convictions")

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self._ttl_s = ttl_s
        # The oldest first, both together within the bound.
        self._records: dict[int, _Record] = {}
        self._quarantined: dict[int, _Record] = {}
        self._cases = 0
        self.convictions = 0

    def __len__(self) -> int:
        """Return how many fingerprints are remembered; with none, no call needs one."""
        return len(self._records) + len(self._quarantined)

    def standing(self, seen: int, now_s: float) -> Standing:
        """Say how a call with this fingerprint is to be treated.

        Args:
            seen: fingerprint.
            now_s: monotonic seconds.

        Returns:
            `free`: like any other; `suspect`: it must wait for its turn; `quarantined`: it is refused.
        """
        record = self._quarantined.get(seen)
        if record is not None:
            if now_s < record.until_s:
                return "quarantined"
            self._released(seen, record, now_s)
        record = self._records.get(seen)
        if record is None:
            return "free"
        if now_s >= record.until_s:
            del self._records[seen]
            return "free"
        return "suspect" if record.standing == "suspect" else "free"

    def died(self, replica: str, flights: Sequence[Flight], now_s: float) -> dict[str, Judged]:
        """Judge the calls of a dead replica and remember them; return the findings by call id.

        Calls that are told of a little later belong to the same death.

        Args:
            replica: that died.
            flights: that were in flight there.
            now_s: monotonic seconds.
        """
        before: dict[int, Presence] = {}
        for flight in flights:
            seen = flight.fingerprint
            self.standing(seen, now_s)  # which forgets what is over
            record = self._quarantined.get(seen) or self._records.get(seen)
            if record is not None and not _same_death(record, replica, now_s):
                before[seen] = Presence(record.standing, record.deaths, record.place_tokens)
        self._cases += 1
        judged = judge(flights, before)
        # Innocents first: at the bound, what came first is forgotten first.
        for each in sorted(judged, key=_is_accused):
            # A death whose culprit is known says nothing about the others.
            if each.reason != "explained":
                self._remember(each, replica, now_s)
        return {each.flight.call_id: each for each in judged}

    def survived(self, seen: int, place_tokens: int) -> bool:
        """Tell how far a suspect has come; return whether that is enough, so that its like need not wait any more.

        Its death stays noted.

        Args:
            seen: its fingerprint.
            place_tokens: where in its answer it is.
        """
        record = self._records.get(seen)
        if record is None:
            return True
        if place_tokens <= record.place_tokens + INNOCENT_TOKENS:
            return False
        record.standing = "noted"
        return True

    def answered(self, seen: int) -> None:
        """Tell that a call was answered to its end: it did not kill, so it is forgotten unless quarantined."""
        self._records.pop(seen, None)

    def remove(self, seen: int) -> bool:
        """Forget a fingerprint, as an operator wishes; return whether it was known."""
        known = self._quarantined.pop(seen, None) or self._records.pop(seen, None)
        return known is not None

    def accuses(self, now_s: float) -> bool:
        """Say whether anybody is suspected or quarantined; if not, no call needs to be looked at.

        Args:
            now_s: monotonic seconds; what is over by then is forgotten, also if nobody sends it again.
        """
        for seen in (*self._records, *self._quarantined):
            self.standing(seen, now_s)
        return bool(self._quarantined) or any(r.standing == "suspect" for r in self._records.values())

    def counts(self) -> tuple[int, int]:
        """Return how many fingerprints are quarantined, and how many are suspected."""
        return len(self._quarantined), sum(r.standing == "suspect" for r in self._records.values())

    def entries(self, now_s: float) -> list[Entry]:
        """Return the quarantined and the suspects, to be shown; at most `MAX_FINGERPRINTS`."""
        return [
            Entry(
                f"{seen:016x}",
                "quarantined" if record.standing == "quarantined" else "suspect",
                record.deaths,
                record.replica,
                record.reason,
                max(0.0, record.until_s - now_s),
            )
            for records in (self._quarantined, self._records)
            for seen, record in records.items()
            if record.standing != "noted"
        ]

    def _remember(self, judged: Judged, replica: str, now_s: float) -> None:
        seen = judged.flight.fingerprint
        record = self._quarantined.pop(seen, None) or self._records.pop(seen, None) or _Record()
        if not _same_death(record, replica, now_s):
            record.deaths += 1
        record.place_tokens = judged.flight.place_tokens
        known_case = record.case
        record.replica, record.at_s, record.reason, record.case = replica, now_s, judged.reason, self._cases
        record.until_s = now_s + self._ttl_s
        self._make_room()
        if judged.finding == "guilty":
            if record.standing != "quarantined":
                record.sentences += 1
                self.convictions += 1
            record.until_s = now_s + min(MAX_TTL_S, self._ttl_s * 2 ** (record.sentences - 1))
            record.standing = "quarantined"
            self._quarantined[seen] = record
            self._release_others(known_case)
        else:
            record.standing = "suspect" if judged.finding == "suspect" else "noted"
            self._records[seen] = record

    def _release_others(self, case: int) -> None:
        """The culprit of a death is found: who was suspected with him is free."""
        for record in self._records.values():
            if case and record.case == case:
                record.standing = "noted"

    def _released(self, seen: int, record: _Record, now_s: float) -> None:
        del self._quarantined[seen]
        record.standing = "suspect"
        record.case = 0
        record.until_s = now_s + self._ttl_s
        self._records[seen] = record

    def _make_room(self) -> None:
        if len(self) >= MAX_FINGERPRINTS:
            oldest = self._records or self._quarantined
            del oldest[next(iter(oldest))]


def _is_accused(judged: Judged) -> bool:
    return judged.finding != "innocent"


def _same_death(record: _Record, replica: str, now_s: float) -> bool:
    return record.replica == replica and now_s - record.at_s <= DEATH_WINDOW_S
