"""The one immutable snapshot that the data plane decides from, and its holder.

A `Policy` is made by `config` from the three documents (config, state, override) and swapped in one
assignment. A call takes the snapshot once and keeps it to its end, so a reload never changes a call
in flight.
"""

from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from forebay.domain import Replica, Tenant

EngineKind = Literal["vllm", "sglang", "llamacpp", "openai"]


class Timeouts(Struct, frozen=True):
    """The four deadlines of a call, in seconds.

    Attributes:
        first_byte_s: until the first content of a stream.
        first_byte_for_whole: whether it also binds answers that are not streamed. Their first byte comes
            when the last token is made, so the default does not; a configured value does.
    """

    connect_s: float = 5.0
    first_byte_s: float = 60.0
    stall_s: float = 15.0
    total_s: float = 600.0
    first_byte_for_whole: bool = False


class Limits(Struct, frozen=True):
    """Bounds of the HTTP edge."""

    body_bytes: int = 33_554_432
    header_bytes: int = 32_768
    header_s: float = 10.0
    body_s: float = 60.0
    idle_connection_s: float = 75.0
    max_connections: int = 8192
    json_depth: int = 128
    response_bytes: int = 67_108_864


class Stream(Struct, frozen=True):
    """How answers are streamed.

    Attributes:
        ping_s: a comment is sent to a waiting client after this much silence; 0 switches it off.
        write_stall_s: a client that takes nothing for this long is cut.
        done_grace_s: how long a usage chunk may come after the finish_reason.
    """

    ping_s: float = 10.0
    write_stall_s: float = 60.0
    done_grace_s: float = 5.0


class Shutdown(Struct, frozen=True):
    """How the data plane stops: unready first, then no new work, then a bounded wait."""

    drain_delay_s: float = 0.0
    grace_s: float = 600.0


class BreakerPolicy(Struct, frozen=True):
    """When a replica leaves the rotation: consecutive failures, then seconds until a probe."""

    failures: int = 5
    open_s: float = 10.0


class Pool(Struct, frozen=True):
    """Replicas that serve the same model on the same engine.

    Attributes:
        max_in_flight: calls in flight on one replica; None means no limit.
        queue_size: calls that may wait for a replica.
        max_attempts: tries for one call, the first included.
        drained: names of replicas that get no new call (override).
    """

    name: str
    engine: EngineKind
    replicas: tuple[Replica, ...]
    max_in_flight: int | None = None
    queue_size: int = 1024
    max_attempts: int = 3
    breaker: BreakerPolicy = BreakerPolicy()
    timeouts: Timeouts | None = None
    drained: frozenset[str] = frozenset()


class Model(Struct, frozen=True):
    """A name that clients use.

    Attributes:
        upstream_model: the name the engine knows; empty means the same.
        fallback: names of models to try when the pool cannot serve.
        timeouts: already merged: model over pool over global.
    """

    name: str
    pool: str
    upstream_model: str = ""
    fallback: tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()


class Policy(Struct, frozen=True):
    """Everything that the data plane decides from.

    Attributes:
        tenants: by SHA-256 digest of the key; empty means keyless (allowed on loopback only).
        hash: short hash of the documents that made it, shown in `/health/live`.
        created: Unix seconds of the configuration, for the `created` field of the model list.
    """

    pools: dict[str, Pool]
    models: dict[str, Model]
    tenants: dict[bytes, Tenant]
    limits: Limits = Limits()
    stream: Stream = Stream()
    shutdown: Shutdown = Shutdown()
    cors_origins: frozenset[str] = frozenset()
    trusted_proxies: tuple[str, ...] = ()
    hash: str = ""
    created: int = 0

    def draining(self, drained: frozenset[str]) -> "Policy":
        """Return this policy with the named replicas taken out of rotation."""
        pools = {
            name: replace(pool, drained=frozenset(r.name for r in pool.replicas if r.name in drained))
            for name, pool in self.pools.items()
        }
        return replace(self, pools=pools)


class PolicyHolder:
    """Holds the current policy; `publish` is the only way to change it.

    Whoever must follow changes (pools, limits, metrics) registers a listener, called in the data
    plane's thread after the swap.
    """

    def __init__(self, policy: Policy) -> None:
        self.current = policy
        self._listeners: list[PolicyListener] = []

    def subscribe(self, listener: "PolicyListener") -> None:
        """Register a listener and call it once with the current policy."""
        self._listeners.append(listener)
        listener.apply(self.current)

    def publish(self, policy: Policy) -> None:
        """Swap the policy in one assignment, then tell the listeners."""
        self.current = policy
        for listener in self._listeners:
            listener.apply(policy)


class PolicyListener(Protocol):
    """Whatever adjusts itself when the policy changes."""

    def apply(self, policy: Policy) -> None:
        """Adjust to the policy; must not raise and must not block."""
        ...
