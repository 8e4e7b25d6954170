"""What workers and gate say to each other: msgpack arrays with a number in front.

Both are started by one supervisor from one installation, so there is no negotiation: another `FORMAT` is refused.
Monotonic times may cross: all processes of a machine have the same clock.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from forebay.domain import FailureKind, Replica, Tenant, Value
from forebay.errors import Refused
from forebay.policy import LevelOverride
from forebay.ports import PoolView
from forebay.traffic import Call, Work
from forebay.wire.endpoints import ENDPOINTS

FORMAT: Final = 1
Kind = Literal["metrics", "status"]
_ANY_ENDPOINT: Final = ENDPOINTS[0]


class Who(Struct, frozen=True, array_like=True):
    """A tenant and its limits, as the worker knows them; those that the gate knows go before them."""

    name: str
    concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens: int | None
    money: float | None
    high_share_ratio: float


class Need(Struct, frozen=True, array_like=True):
    """What the gate must know of a call; no word of its prompt.

    Attributes:
        blocks: hashes of the prompt's leading blocks.
        resumed: see `Call`.
    """

    call_id: str
    model: str
    who: Who
    prompt_tokens: int
    output_tokens: int
    likely_output_tokens: int
    bound_tokens: int
    money: float
    stream: bool
    value: Value
    received_s: float
    deadline_s: float
    blocks: tuple[int, ...]
    resumed: bool = False


class Place(Struct, frozen=True, array_like=True):
    """A lease: a try's place on one replica.

    Attributes:
        replica: its number in the latest `Roster`.
        uncached_tokens: of the prompt, as foreseen.
        started_s: monotonic seconds.
    """

    replica: int
    uncached_tokens: int
    started_s: float


class HeldPermit(Struct, frozen=True, array_like=True):
    """A permit that a worker has from an earlier gate."""

    id: int
    pool: str
    need: Need


class HeldLease(Struct, frozen=True, array_like=True):
    """A lease that a worker has from an earlier gate.

    Attributes:
        prefilled: its first token has come.
    """

    id: int
    pool: str
    replica: str
    need: Need
    uncached_tokens: int
    started_s: float
    prefilled: bool


# from a worker


class Joined(Struct, frozen=True, array_like=True, tag=1):
    """The first message of a worker.

    Attributes:
        number: of the worker, 0 and up; a restarted one has that of the one before.
        permits: that it holds already.
        leases: likewise.
    """

    format: int
    number: int
    pid: int
    permits: tuple[HeldPermit, ...] = ()
    leases: tuple[HeldLease, ...] = ()


class Ask(Struct, frozen=True, array_like=True, tag=2):
    """A call wants a permit; answered with `Granted` or `Turned`."""

    id: int
    pool: str
    need: Need


class Move(Struct, frozen=True, array_like=True, tag=3):
    """A permit's call wants a replica of another pool; answered likewise."""

    id: int
    permit: int
    pool: str


class Again(Struct, frozen=True, array_like=True, tag=4):
    """A call wants one more try; answered with `Granted`, without a place when there is none."""

    id: int
    pool: str
    need: Need
    excluded: tuple[str, ...]


class MayRetry(Struct, frozen=True, array_like=True, tag=5):
    """May a call be tried again; answered with `Allowed`."""

    id: int
    pool: str
    tenant: str


class Gone(Struct, frozen=True, array_like=True, tag=6):
    """Nobody waits for the answer to this message any more, or for what it was answered with."""

    id: int


class FirstToken(Struct, frozen=True, array_like=True, tag=7):
    """See `ports.Lease.first_token`."""

    lease: int


class Report(Struct, frozen=True, array_like=True, tag=8):
    """See `ports.Lease.report`."""

    lease: int
    failure: FailureKind | None
    answered: bool
    cached_tokens: int | None
    again: bool = False


class Release(Struct, frozen=True, array_like=True, tag=9):
    """See `ports.Permit.release`.

    Attributes:
        told: no gate was there when the call ended, so that the next one finds what it spent in the journal.
    """

    permit: int
    tokens: int | None
    money: float
    told: bool


class Burden(Struct, frozen=True, array_like=True, tag=10):
    """How much a worker has to do.

    Attributes:
        connections: of clients.
        lag_s: how late its loop is.
    """

    connections: int
    lag_s: float


class Page(Struct, frozen=True, array_like=True, tag=11):
    """What do all processes say; answered with `PageIs`."""

    id: int
    kind: Kind


class Sheets(Struct, frozen=True, array_like=True, tag=12):
    """What one worker says: the answer to `Gather`.

    Attributes:
        data: a `recording.sheet.Sheet` in msgpack, or the status in JSON.
    """

    round: int
    kind: Kind
    data: bytes


# from the gate


class Granted(Struct, frozen=True, array_like=True, tag=20):
    """What was asked for.

    Attributes:
        value: what the call is treated as.
    """

    id: int
    place: Place | None
    value: Value


class Turned(Struct, frozen=True, array_like=True, tag=21):
    """The call is refused."""

    id: int
    code: str
    message: str
    retry_after_s: int | None


class Allowed(Struct, frozen=True, array_like=True, tag=22):
    """Whether a call may be tried again."""

    id: int
    allowed: bool


class Roster(Struct, frozen=True, array_like=True, tag=23):
    """All replicas with their pools, whenever they change; places name them by number."""

    replicas: tuple[tuple[str, Replica], ...]


class Standing(Struct, frozen=True, array_like=True):
    """How one replica is, for the mirror of a worker; see `routing.replica.ReplicaState`."""

    up: bool | None
    loading: bool
    token_ids: bool
    breaker: Literal["closed", "open", "half_open"]
    reason: FailureKind | None
    failures: int
    until_s: float
    in_flight: int
    in_flight_tokens: int
    unprefilled_tokens: int
    long_prefills: int
    long_in_flight: int
    tokens_per_s: float
    base_s: float
    samples: int
    error_ratio: float
    hold_s: float
    slots: int | None
    kv_tokens: int | None
    occupied_s: float
    polled_at_s: float | None
    telemetry: msgspec.Raw


class View(Struct, frozen=True, array_like=True, tag=24):
    """What the gate knows, a few times a second; also the sign that it lives.

    Attributes:
        standings: in the order of the latest `Roster`.
        mean_connections: of clients, over all workers.
        lag_s: of the worker whose loop is the latest.
        pools: how they do, by name.
        shared: levels that people have set on other nodes.
    """

    standings: tuple[Standing, ...]
    mean_connections: float
    lag_s: float
    pools: dict[str, PoolView] = {}
    shared: tuple[LevelOverride, ...] = ()


class Gather(Struct, frozen=True, array_like=True, tag=25):
    """Say how you are."""

    round: int
    kind: Kind


class PageIs(Struct, frozen=True, array_like=True, tag=26):
    """What all processes say."""

    id: int
    body: bytes


FromWorker = Joined | Ask | Move | Again | MayRetry | Gone | FirstToken | Report | Release | Burden | Page | Sheets
FromGate = Granted | Turned | Allowed | Roster | View | Gather | PageIs

encode = msgspec.msgpack.Encoder().encode
from_worker = msgspec.msgpack.Decoder(FromWorker).decode
from_gate = msgspec.msgpack.Decoder(FromGate).decode


def need_of(call: Call) -> Need:
    """Return what the gate must know of a call."""
    tenant, work = call.tenant, call.work
    return Need(
        call.call_id,
        call.model,
        Who(
            tenant.name,
            tenant.concurrency,
            tenant.requests_per_minute,
            tenant.tokens_per_minute,
            tenant.tokens,
            tenant.money,
            tenant.high_share_ratio,
        ),
        call.prompt_tokens,
        call.output_tokens,
        work.likely_output_tokens,
        call.bound_tokens,
        call.money,
        call.stream,
        call.value,
        call.received_s,
        call.deadline_s,
        work.blocks,
        call.resumed,
    )


def call_of(need: Need) -> Call:
    """Return a call that the gate can decide on; its endpoint and headers are nobody's business there."""
    who = need.who
    tenant = Tenant(
        who.name,
        concurrency=who.concurrency,
        requests_per_minute=who.requests_per_minute,
        tokens_per_minute=who.tokens_per_minute,
        tokens=who.tokens,
        money=who.money,
        high_share_ratio=who.high_share_ratio,
    )
    return Call(
        need.call_id,
        _ANY_ENDPOINT,
        need.model,
        need.stream,
        False,
        tenant,
        need.prompt_tokens,
        need.output_tokens,
        (),
        need.received_s,
        need.deadline_s,
        need.value,
        Work(need.prompt_tokens, need.output_tokens, need.likely_output_tokens, blocks=need.blocks),
        need.money,
        bound_tokens=need.bound_tokens,
        resumed=need.resumed,
    )


def turned(number: int, refusal: Refused) -> Turned:
    """Return a refusal as a message."""
    return Turned(number, refusal.code, refusal.message, refusal.retry_after_s)
