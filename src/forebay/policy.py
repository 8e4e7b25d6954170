"""The one immutable snapshot that the data plane decides from, and its holder.

A `Policy` is made by `config` from the three documents (config, state, override) and swapped in one
assignment. A call takes the snapshot once and keeps it to its end, so a reload never changes a call
in flight.
"""

from typing import Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from forebay.domain import Replica, Tenant, Value

EngineKind = Literal["vllm", "sglang", "llamacpp", "openai"]
Hygiene = Literal["detect", "repair", "reject"]
Preset = Literal["throughput", "latency"]
SingleFlight = Literal["off", "warn", "on"]
LevelScope = Literal["node", "pool", "tenant"]
Operator = Literal["eq", "ne", "gt", "ge", "lt", "le", "in", "glob", "exists"]


class Timeouts(Struct, frozen=True):
    """The four deadlines of a call, in seconds.

    Attributes:
        first_byte_s: until the first content of a stream.
        first_byte_for_whole: whether it also binds answers that are not streamed. Their first byte comes
            when the last token is made, so the default does not; a configured value does.
        learned: whether a first try moves to another replica sooner, where calls of its kind have come sooner.
    """

    connect_s: float = 5.0
    first_byte_s: float = 60.0
    stall_s: float = 15.0
    total_s: float = 600.0
    first_byte_for_whole: bool = False
    learned: bool = True


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


class Resume(Struct, frozen=True):
    """How clients may come back for the rest of an answer.

    Attributes:
        keys: secrets that seal tokens, the first one new ones; none leaves it to the node's own.
        ttl_s: a token may be used for so long after its event.
        configured: somebody has written it down, and so counts on it.
    """

    keys: tuple[bytes, ...] = ()
    ttl_s: float = 120.0
    configured: bool = False

    def __repr__(self) -> str:
        """Show no key."""
        return f"Resume(keys={len(self.keys)}, ttl_s={self.ttl_s})"


class BreakerPolicy(Struct, frozen=True):
    """When a replica leaves the rotation: consecutive failures, then seconds until a probe."""

    failures: int = 5
    open_s: float = 10.0


class ClassPolicy(Struct, frozen=True):
    """What calls of one value are promised.

    Attributes:
        target_s: until the first token of a stream, until the end of an answer that is not streamed.
        long_target_s: the same for prompts of the long lane.
        max_wait_s: longest wait in our queue; what happens then is in docs/operations.md.
        share_ratio: part of the tokens that this value gets at least while calls of it wait.
    """

    target_s: float
    long_target_s: float
    max_wait_s: float
    share_ratio: float


PATIENT: dict[Value, ClassPolicy] = {
    "high": ClassPolicy(0.8, 8.0, 600.0, 0.5),
    "medium": ClassPolicy(1.5, 15.0, 600.0, 0.3),
    "low": ClassPolicy(5.0, 50.0, 600.0, 0.1),
}
"""The classes of the preset `throughput`: targets order the queue, and nobody is turned away for them."""

PROMPT: dict[Value, ClassPolicy] = {
    "high": ClassPolicy(0.8, 8.0, 0.2, 0.5),
    "medium": ClassPolicy(1.5, 15.0, 1.0, 0.3),
    "low": ClassPolicy(5.0, 50.0, 10.0, 0.1),
}
"""The classes of the preset `latency`: who cannot meet his target is told so at once."""


class Admission(Struct, frozen=True):
    """How calls are let in.

    Attributes:
        refuses_early: whether a call that cannot meet its target is refused on arrival and at the queue's head.
        long_prompt_tokens: uncached prompt tokens from which on a call takes the long lane, at most; less where
            engines are slow.
        long_share_ratio: part of the tokens that the long lane gets at least while it waits.
        short_reserve_ratio: part of a pool's replicas that take no long prompt while short ones are late.
    """

    preset: Preset = "throughput"
    classes: dict[Value, ClassPolicy] = field(default_factory=PATIENT.copy)
    refuses_early: bool = False
    long_prompt_tokens: int = 2048
    long_share_ratio: float = 0.1
    short_reserve_ratio: float = 0.0


class Capacity(Struct, frozen=True):
    """What one replica can do, as declared; None is learned, or read from its telemetry.

    Attributes:
        prefill_tokens_per_s: prompt tokens computed in a second with nothing else to do.
        kv_tokens: KV room.
        streams: calls that it runs at once.
    """

    prefill_tokens_per_s: float | None = None
    kv_tokens: int | None = None
    streams: int | None = None


class Price(Struct, frozen=True):
    """Money for a million tokens, in one currency for all models."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None


class Condition(Struct, frozen=True):
    """One predicate of a rule.

    Attributes:
        field: a name of `rules.FIELDS`, or `body:` and a JSON pointer into the request's body.
        operator: how it is compared.
        value: what with; a list for `in`, a boolean for `exists`.
    """

    field: str
    operator: Operator
    value: str | float | bool | tuple[str | float, ...]


class Action(Struct, frozen=True):
    """What a rule does; at least one of these is set.

    Attributes:
        reject: advice for the client; it gets 422.
        reroute: the model to serve it with instead.
        value: the class that it gets at most.
        cap_tokens: longest answer.
    """

    reject: str = ""
    reroute: str = ""
    value: Value | None = None
    cap_tokens: int | None = None


class Rule(Struct, frozen=True):
    """All conditions must hold; the first rule that does decides."""

    name: str
    when: tuple[Condition, ...]
    then: Action


class Pool(Struct, frozen=True):
    """Replicas that serve the same model on the same engine.

    Attributes:
        max_in_flight: calls in flight on one replica; None means no limit.
        queue_size: calls that may wait for a replica; low ones up to 60 %, medium ones up to 90 % of it.
        capacity: of one replica, as declared.
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
    capacity: Capacity = Capacity()


class Degrade(Struct, frozen=True):
    """Where a tenant goes whose traffic goes bad, while that of the others is well.

    Attributes:
        model: that serves him meanwhile, whether he may name it or not.
        ttl_s: so long at first; then it doubles up to six times this, as long as his probes go bad.
    """

    model: str
    ttl_s: float = 600.0


class Idempotency(Struct, frozen=True):
    """What is kept of calls with an `Idempotency-Key`.

    Attributes:
        ttl_s: so long their answers are given again; 0 leaves the header unread.
        entries: keys known at once.
        bytes: of all answers that are kept.
    """

    ttl_s: float = 600.0
    entries: int = 10_000
    bytes: int = 67_108_864


class Ladder(Struct, frozen=True):
    """What calls of a model give up, step by step, while its pool runs out of KV room and calls wait.

    Attributes:
        fallback: on another pool; serves what cannot start at once, from the second level on; empty for none.
        output_tokens: longest answer from the first level on.
        history_tokens: of a chat's latest messages that stay, from the third level on.
    """

    fallback: str = ""
    output_tokens: int = 512
    history_tokens: int = 2048


KV_RATIOS = (0.85, 0.92, 0.97)
"""KV usage from which on the three levels of the ladder are due, where calls suffer."""


class LevelOverride(Struct, frozen=True):
    """A level of the ladder that a person has set.

    Attributes:
        scope: what it holds for: all, one pool, or one tenant.
        name: of the pool or the tenant; empty for the node.
        level: 0 to 3; 0 forbids what the ladder would do by itself.
    """

    scope: LevelScope
    name: str
    level: int


class Model(Struct, frozen=True):
    """A name that clients use.

    Attributes:
        upstream_model: the name the engine knows; empty means the same.
        fallback: names of models to try when the pool cannot serve.
        timeouts: already merged: model over pool over global.
        hygiene: what happens to input that is likely a mistake.
        default_output_tokens: `max_tokens` of a call that has none; None leaves it to the engine.
        max_output_tokens: longest answer that a call may ask for; more is cut down to it.
        price: of its tokens.
        degrade: None leaves tenants here whatever their traffic does.
        single_flight: whether the same request of the same user at the same time is answered once; `warn` counts.
        ladder: None serves its calls whole, as long as no person sets a level.
    """

    name: str
    pool: str
    upstream_model: str = ""
    fallback: tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()
    hygiene: Hygiene = "detect"
    default_output_tokens: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None
    degrade: Degrade | None = None
    single_flight: SingleFlight = "off"
    ladder: Ladder | None = None


class Policy(Struct, frozen=True):
    """Everything that the data plane decides from.

    Attributes:
        tenants: by SHA-256 digest of the key; empty means keyless (allowed on loopback only).
        rules: those of the configuration, in order, behind those of overrides.
        single_flight: a model has it, or is to warn of what it would do.
        pardoned: fingerprints of requests that are sent although engines died under them (override).
        hash: short hash of the documents that made it, shown in `/health/live`.
        created: Unix seconds of the configuration, for the `created` field of the model list.
        kv_ratios: see `KV_RATIOS`.
        levels: of the ladder, as people have set them (override).
    """

    pools: dict[str, Pool]
    models: dict[str, Model]
    tenants: dict[bytes, Tenant]
    limits: Limits = Limits()
    stream: Stream = Stream()
    shutdown: Shutdown = Shutdown()
    cors_origins: frozenset[str] = frozenset()
    trusted_proxies: tuple[str, ...] = ()
    admission: Admission = Admission()
    rules: tuple[Rule, ...] = ()
    single_flight: bool = False
    idempotency: Idempotency = Idempotency()
    resume: Resume = Resume()
    pardoned: frozenset[str] = frozenset()
    hash: str = ""
    created: int = 0
    kv_ratios: tuple[float, float, float] = KV_RATIOS
    levels: tuple[LevelOverride, ...] = ()

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
