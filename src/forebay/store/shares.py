"""How nodes share a limit: what each may use of it, decided from what all have published. Pure.

A limit is a ceiling for something that is counted: calls at once, or requests or tokens in a sliding minute.
Each node counts for itself and has a ceiling of its own. What always holds while the store answers:

    the sum over all nodes of max(ceiling, what counts) is not above the limit.

Records are swapped as a whole (`Store.swap`), so that what a node adds to its ceiling is what it has seen free. To
move a part from one node to another takes two steps therefore: the one lowers its ceiling, first in its memory
and then in its record, and only then the other sees it free. A node that has died keeps others from its part for
`LEASE_S`, and what it used in the minute counts until it would have left the minute.

When the store has been away (stopped, frozen, restarted empty), records may be missing whose nodes are still
there. So nobody's ceiling rises before the store has been in use without a pause for `STEADY_S`. A node without
the store goes from its last ceiling to an even part: down within `EVEN_S`, up only when all others must have gone
down. Both are the same on every node, so the sum stays within the limit, but for calls that run longer than that.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from forebay.store.records import FADE_S, Book, Claim, Claims, Moments, Record

Kind = Literal["level", "flow"]
KINDS: Final[tuple[Kind, Kind, Kind]] = ("level", "flow", "flow")
"""Of calls at once, requests in a minute, tokens in a minute."""

LEASE_S: Final = 2.0
"""So long a ceiling holds others off after its node was last heard of; then the store counts as gone, too."""
PAUSE_S: Final = 1.5
"""The store has been away when nobody has changed the records for so long; nodes do it twice in a second."""
STEADY_S: Final = 3.0
"""Longer than any node takes to come back to the store: `sharing.LONGEST_WAIT_S` and its time-outs."""
EVEN_S: Final = 10.0
_RISE_S: Final[dict[Kind, float]] = {"level": EVEN_S + LEASE_S, "flow": EVEN_S + LEASE_S + 61.0}
# What is used in a minute is forgotten when it has certainly left the minute.
_FORGET_MS: Final = 80_000
# Even a node that asks for nothing keeps a twentieth of its even part, so that a first call need not wait.
_KEEP: Final = 20


class Need(Struct, frozen=True):
    """One limit of one tenant on this node.

    Attributes:
        limit: of all nodes together.
        ceiling: in force here.
        used: counts here now.
        demand: see `Claim`.
        fading: see `Claim`.
    """

    limit: int
    ceiling: int
    used: int
    demand: int
    fading: tuple[int, ...] = ()


Needs = tuple[Need | None, Need | None, Need | None]


def split(total: int, demands: Mapping[str, int]) -> dict[str, int]:
    """Divide a whole: as demanded with the rest in equal parts, or in proportion where there is not enough.

    The parts are whole numbers, their sum is the total, and they are the same on every node. What does not divide goes
    to who wants least, so that a first call finds room; where there is not enough, to the largest remainder (Hamilton).
    Of equal ones the first name comes first.
    """
    count = len(demands)
    if total <= 0 or not count:
        return dict.fromkeys(demands, 0)
    least = total // (_KEEP * count)
    wanted = {node: max(least, min(total, demand)) for node, demand in demands.items()}
    missing = sum(wanted.values())
    if missing <= total:
        order = sorted(demands, key=lambda node: (demands[node], node))
        each, over = divmod(total - missing, count)
        return {node: wanted[node] + each + (place < over) for place, node in enumerate(order)}
    rest, weight = total - least * count, missing - least * count
    parts = {node: divmod(rest * (wanted[node] - least), weight) for node in demands}
    over = rest - sum(part for part, _ in parts.values())
    order = sorted(demands, key=lambda node: (-parts[node][1], node))
    return {node: least + parts[node][0] + (place < over) for place, node in enumerate(order)}


def target(kind: Kind, limit: int, node: str, claims: Mapping[str, Claim], gone: int = 0) -> int:
    """Return what a node's ceiling ought to be.

    Args:
        kind: of the limit. What a node uses at once ends soon, so the whole limit is divided by demand; what was
            used in a minute stays for the minute, so what is left of the limit is divided.
        limit: of all nodes together.
        node: whose.
        claims: of the nodes that are there, this one among them.
        gone: used by nodes that are no longer there, as it still counts.
    """
    demands = {name: claim.demand for name, claim in claims.items()}
    if kind == "level":
        return split(limit - gone, demands)[node]
    left = limit - gone - sum(claim.used for claim in claims.values())
    return claims[node].used + split(left, demands)[node]


def alive(record: Record, now_ms: int) -> bool:
    """Say whether a node has been heard of within `LEASE_S`."""
    return now_ms - record.at_ms <= LEASE_S * 1000


def forgotten(record: Record, now_ms: int) -> bool:
    """Say whether nothing of a record counts any more."""
    return now_ms - record.at_ms > _FORGET_MS


def remains(claim: Claim, age_s: float) -> int:
    """Return what still counts of a node that has not been heard of for so many seconds."""
    return sum(part for place, part in enumerate(claim.fading, start=1) if place * FADE_S + 1.0 > age_s)


def steady(book: Book) -> tuple[Moments, bool]:
    """Return the moments to write now, and whether ceilings may rise."""
    last = book.moments
    if last is None or not 0 <= book.now_ms - last.last_ms <= PAUSE_S * 1000 or last.since_ms > book.now_ms:
        return Moments(book.now_ms, book.now_ms), False
    return Moments(book.now_ms, last.since_ms), book.now_ms - last.since_ms >= STEADY_S * 1000


def nodes_of(book: Book, node: str) -> list[str]:
    """Return the names of the nodes that are there, this one among them, in order."""
    return sorted({node, *(name for name, record in book.records.items() if alive(record, book.now_ms))})


def claim(kind: Kind, need: Need, node: str, others: Mapping[str, tuple[Claim, float]], *, rising: bool) -> Claim:
    """Decide what this node may use.

    Args:
        kind: of the limit.
        need: of this node.
        node: its name.
        others: the claims of other nodes, and seconds since each was heard of.
        rising: whether the ceiling may rise.

    Returns:
        Its claim. A ceiling that falls holds at once, one that rises only when the claim is in the store.
    """
    own = Claim(need.ceiling, need.used, need.demand, need.fading)
    present = {name: other for name, (other, age_s) in others.items() if age_s <= LEASE_S}
    gone = sum(remains(other, age_s) for other, age_s in others.values() if age_s > LEASE_S)
    wanted = target(kind, need.limit, node, {**present, node: own}, gone)
    free = max(0, need.limit - gone - sum(other.held for other in present.values()))
    ceiling = min(wanted if rising else need.ceiling, free, need.limit)
    return Claim(ceiling, need.used, need.demand, need.fading)


def claims(needs: Needs, node: str, tenant: str, book: Book, *, rising: bool) -> Claims:
    """Decide what this node may use of all limits of a tenant; see `claim`."""
    made: list[Claim | None] = []
    for place, (kind, need) in enumerate(zip(KINDS, needs, strict=True)):
        if need is None:
            made.append(None)
            continue
        others: dict[str, tuple[Claim, float]] = {}
        for name, record in book.records.items():
            theirs = record.claims.get(tenant)
            if name != node and theirs is not None and (other := theirs[place]) is not None:
                others[name] = (other, (book.now_ms - record.at_ms) / 1000)
        made.append(claim(kind, need, node, others, rising=rising))
    concurrency, requests, tokens = made
    return concurrency, requests, tokens


def even(limit: int, nodes: Sequence[str], node: str, count: int) -> int:
    """Return an even part of a limit; at least 1, so that a limit below the number of nodes is passed, not useless.

    Args:
        limit: of all nodes together.
        nodes: that are known, in order.
        node: this one.
        count: of the nodes; more than are known when the configuration says so.
    """
    part, over = divmod(limit, max(1, count))
    if count == len(nodes) and node in nodes and nodes.index(node) < over:
        part += 1
    return max(part, min(1, limit))


def without_store(kind: Kind, last: int, part: int, silent_s: float) -> int:
    """Return the ceiling of a node that does not reach the store.

    Args:
        kind: of the limit.
        last: ceiling that the store knows.
        part: the even one.
        silent_s: seconds since the store last answered.
    """
    if silent_s <= LEASE_S:
        return last
    if last > part:
        fallen = min(1.0, (silent_s - LEASE_S) / (EVEN_S - LEASE_S))
        return part + int((last - part) * (1.0 - fallen))
    return part if silent_s >= _RISE_S[kind] else last
