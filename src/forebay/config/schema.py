"""The settings of the configuration file: name, type, default, bounds, unit and meaning, declared once.

`compile.py` makes a `Policy` of them, `reference.py` the page docs/config.md. Defaults are those of
`forebay.policy`, which works without a file too. Validators check one value; what needs two values, the
environment or the names of other entries stands in `checks.py` and `compile.py`.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from forebay import policy
from forebay.config.addresses import check_network, parse_address, parse_replica
from forebay.config.credentials import check_api_key, check_tenant_key
from forebay.config.joining import IdempotencySettings, SingleFlight
from forebay.config.meeting import NODE, NodeName, StoreSettings
from forebay.config.origins import CorsSettings
from forebay.config.resume import ResumeSettings
from forebay.config.rules import RuleSettings
from forebay.config.section import MAX_COUNT, Count, Name, Section, Workers, setting
from forebay.domain import VALUES, Value

MAX_S = 31_536_000  # a year: longer is a mistake, and infinite is not a number of seconds
MAX_LARGE_COUNT = 1_000_000_000_000
MAX_MODEL_NAME = 256


def _check_address(text: str) -> str:
    parse_address(text)
    return text


def _check_url(text: str) -> str:
    parse_replica(text)
    return text


def _check_model_name(name: str) -> str:
    if not 0 < len(name) <= MAX_MODEL_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(
            f"is not a model name; use 1 to {MAX_MODEL_NAME} printable characters without space at the ends"
        )
    return name


def _check_rising(ratios: list[float]) -> list[float]:
    if ratios != sorted(set(ratios)):
        raise ValueError("must rise from level to level, such as [0.85, 0.92, 0.97]")
    return ratios


AddressText = Annotated[str, AfterValidator(_check_address)]
ReplicaUrl = Annotated[str, AfterValidator(_check_url)]
ModelName = Annotated[str, AfterValidator(_check_model_name)]
TenantKeyText = Annotated[str, AfterValidator(check_tenant_key)]
ApiKeyText = Annotated[str, AfterValidator(check_api_key)]
Network = Annotated[str, AfterValidator(check_network)]
LargeCount = Annotated[int, Field(ge=1, le=MAX_LARGE_COUNT)]
PositiveSeconds = Annotated[float, Field(gt=0, le=MAX_S)]
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]
Milliseconds = Annotated[float, Field(gt=0, le=MAX_S * 1000)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Money = Annotated[float, Field(ge=0, le=MAX_LARGE_COUNT)]

_TIMEOUTS = policy.Timeouts()
_LIMITS = policy.Limits()
_STREAM = policy.Stream()
_SHUTDOWN = policy.Shutdown()
_BREAKER = policy.BreakerPolicy()
_ADMISSION = policy.Admission()
_LADDER = policy.Ladder()


class TimeoutSettings(Section):
    """The deadlines of a call; a model's go before its pool's, and those before these, each by itself."""

    connect_s: PositiveSeconds = setting(_TIMEOUTS.connect_s, "seconds", "To open a connection to a replica.")
    first_byte_s: PositiveSeconds = setting(
        _TIMEOUTS.first_byte_s, "seconds", "From the request to the first byte of the answer."
    )
    stall_s: PositiveSeconds = setting(_TIMEOUTS.stall_s, "seconds", "Longest silence within an answer.")
    total_s: PositiveSeconds = setting(_TIMEOUTS.total_s, "seconds", "The whole call, all tries together.")
    learned: bool = setting(
        _TIMEOUTS.learned,
        "",
        "Let a first try go to another replica as soon as calls of its kind usually have come, at least after 5 s "
        "(docs/operations.md).",
    )


class TimeoutOverrides(Section):
    """The same for one pool or one model; what is left out is inherited."""

    connect_s: PositiveSeconds | None = setting(None, "seconds", "See `timeouts.connect_s`.")
    first_byte_s: PositiveSeconds | None = setting(None, "seconds", "See `timeouts.first_byte_s`.")
    stall_s: PositiveSeconds | None = setting(None, "seconds", "See `timeouts.stall_s`.")
    total_s: PositiveSeconds | None = setting(None, "seconds", "See `timeouts.total_s`.")
    learned: bool | None = setting(None, "", "See `timeouts.learned`.")


class ReplicaSettings(Section):
    """One engine."""

    url: ReplicaUrl = setting(
        ...,
        "URL",
        "`http(s)://HOST:PORT`, with user:password, path and query where needed; `/v1` at the end is dropped.",
        repr=False,
    )


class BreakerSettings(Section):
    """When a replica leaves the rotation."""

    failures: Count = setting(_BREAKER.failures, "failures", "So many in a row take a replica out.")
    open_s: PositiveSeconds = setting(_BREAKER.open_s, "seconds", "So long until one call may try it again.")


class CapacitySettings(Section):
    """What one replica of a pool can do, where it is known; what is left out is read from the engine or learned."""

    prefill_tokens_per_s: Annotated[float, Field(gt=0, le=MAX_LARGE_COUNT)] | None = setting(
        None, "tokens/s", "Prompt tokens computed with nothing else to do; empty is learned from first tokens."
    )
    kv_tokens: LargeCount | None = setting(None, "tokens", "KV room; empty is read from the engine's telemetry.")
    streams: Count | None = setting(
        None, "calls", "That it runs at once; empty is read from the engine (llama.cpp's slots), or not limited."
    )


class PoolSettings(Section):
    """Replicas that serve the same model on the same kind of engine."""

    engine: policy.EngineKind = setting(..., "", "What runs behind the URLs.")
    replicas: list[ReplicaSettings] = setting(..., "", "At least one; no two alike.", min_length=1)
    api_key: ApiKeyText | None = setting(
        None, "key or `env:NAME`", "What the engines get as Bearer token; goes before user:password.", repr=False
    )
    max_in_flight: Count | None = setting(None, "calls", "In flight on one replica; empty means no limit.")
    queue_size: Annotated[int, Field(ge=0, le=MAX_COUNT)] = setting(
        1024, "calls", "That may wait for a replica: `low` ones up to 60 %, `medium` ones up to 90 % of it."
    )
    max_attempts: Annotated[int, Field(ge=1, le=100)] = setting(3, "tries", "For one call, the first included.")
    breaker: BreakerSettings = setting(BreakerSettings(), "", "When a replica leaves the rotation.")
    capacity: CapacitySettings = setting(CapacitySettings(), "", "Of one replica.")
    timeouts: TimeoutOverrides | None = setting(None, "", "Of this pool.")


class PriceSettings(Section):
    """What tokens of a model cost, in the one currency that all prices and limits of money share."""

    input_per_million: Money = setting(0.0, "money", "A million prompt tokens.")
    output_per_million: Money = setting(0.0, "money", "A million output tokens.")
    cached_input_per_million: Money | None = setting(
        None, "money", "A million prompt tokens that the engine had cached; empty means as much as others."
    )


class DegradeSettings(Section):
    """Where a tenant goes for a while whose calls fail or time out, while those of the others do not."""

    model: str = setting(
        ..., "name", "That serves him meanwhile, on another pool; his `models` need not name it: this is your decision."
    )
    ttl_s: PositiveSeconds = setting(
        600.0, "seconds", "So long at first; it doubles, up to six times this, while his probes are still bad."
    )


class LadderSettings(Section):
    """What calls of a model give up while its pool runs out of KV room and calls wait (docs/ladder.md)."""

    fallback: str | None = setting(
        None,
        "name",
        "A model on another pool, such as a quantised one: serves from level 2 on what cannot start at once, within "
        "its own room. Tenants' `models` need not name it: this is your decision.",
    )
    output_tokens: LargeCount = setting(_LADDER.output_tokens, "tokens", "Longest plain answer, from level 1 on.")
    history_tokens: LargeCount = setting(
        _LADDER.history_tokens, "tokens", "Of the latest messages of plain chats that stay, from level 3 on."
    )


class LadderLevels(Section):
    """When the levels of the ladder are due."""

    kv_ratios: Annotated[list[Annotated[float, Field(gt=0.05, le=1)]], AfterValidator(_check_rising)] = setting(
        list(policy.KV_RATIOS),
        "ratio",
        "KV usage from which on level 1, 2 and 3 are due, while calls wait; a level ends 0.05 below.",
        min_length=3,
        max_length=3,
    )


class ModelSettings(Section):
    """What stands behind a name that clients use."""

    pool: str = setting(..., "name", "The pool that serves it.")
    upstream_model: ModelName | None = setting(None, "name", "What the engine calls it; empty means the same.")
    fallback: list[str] = setting([], "names", "Models to try in this order when the pool cannot serve.")
    timeouts: TimeoutOverrides | None = setting(None, "", "Of this model.")
    hygiene: policy.Hygiene = setting(
        "detect", "", "Input that is likely a mistake is marked, repaired or refused (docs/hygiene.md)."
    )
    default_output_tokens: LargeCount | None = setting(
        None, "tokens", "Longest answer of a call that names none; empty leaves it to the engine."
    )
    max_output_tokens: LargeCount | None = setting(
        None, "tokens", "Longest answer that a call gets; one that asks for more is cut down to it."
    )
    price: PriceSettings | None = setting(None, "", "Of its tokens; empty means that it costs nothing.")
    degrade: DegradeSettings | None = setting(
        None, "", "For a tenant whose traffic goes bad; empty leaves everybody here."
    )
    single_flight: SingleFlight | None = setting(None, "", "Of this model; empty is as `single_flight` above says.")
    ladder: LadderSettings | None = setting(
        None,
        "",
        "For a pool that runs out of KV room; empty serves calls whole, as long as nobody sets a level by hand.",
    )


class TenantLimits(Section):
    """What one tenant may use at most; what is left out is not limited."""

    concurrency: Count | None = setting(None, "calls", "In flight at once.")
    requests_per_minute: LargeCount | None = setting(None, "calls", "In any sliding minute.")
    tokens_per_minute: LargeCount | None = setting(None, "tokens", "Prompt and completion, in any sliding minute.")
    tokens: LargeCount | None = setting(
        None, "tokens", "Prompt and completion, in a calendar month (UTC); a call counts when it ends."
    )
    money: Money | None = setting(
        None, "money", "In a calendar month (UTC), by `models.*.price`; 0 allows only models without a price."
    )
    max_output_tokens: LargeCount | None = setting(
        None, "tokens", "Longest answer that a call gets; one that asks for more is cut down to it."
    )


class TenantSettings(Section):
    """Who may call."""

    name: Name = setting(..., "name", "Stands in metrics and journal.")
    keys: list[TenantKeyText] = setting(
        ...,
        "key, `sha256:HEX` or `env:NAME`",
        "Any of them opens. A plain key is hashed when the file is read; off loopback it needs 16 characters.",
        min_length=1,
        repr=False,
    )
    models: list[str] | None = setting(None, "names", "It may use only these; empty means all.", min_length=1)
    classes: list[Value] = setting(
        list(VALUES), "", "What it may claim with `X-Request-Value`; a higher claim is lowered.", min_length=1
    )
    default_class: Value | None = setting(
        None, "", "Of a call that claims nothing; empty means `medium`, or its highest class below."
    )
    high_share: Ratio = setting(
        0.3, "ratio", "Part of its tokens that may be `high` while calls wait; more is treated as `medium`."
    )
    limits: TenantLimits = setting(TenantLimits(), "", "Of this tenant.")


class EdgeLimits(Section):
    """Bounds of what comes in and what engines answer."""

    body_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = setting(
        _LIMITS.body_bytes, "bytes", "Largest body of a request."
    )
    header_bytes: Annotated[int, Field(ge=1024, le=1_048_576)] = setting(
        _LIMITS.header_bytes, "bytes", "Request line and headers together."
    )
    header_s: PositiveSeconds = setting(_LIMITS.header_s, "seconds", "For the headers to arrive.")
    body_s: PositiveSeconds = setting(_LIMITS.body_s, "seconds", "For the body to arrive.")
    idle_connection_s: PositiveSeconds = setting(
        _LIMITS.idle_connection_s, "seconds", "A client's connection without a request is closed after this."
    )
    max_connections: Count = setting(_LIMITS.max_connections, "connections", "Open at once; further ones get 503.")
    json_depth: Annotated[int, Field(ge=1, le=512)] = setting(
        _LIMITS.json_depth, "levels", "Deepest nesting of a JSON body."
    )
    response_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = setting(
        _LIMITS.response_bytes, "bytes", "Largest answer of an engine that is not a stream."
    )


class StreamSettings(Section):
    """How answers are streamed."""

    ping_s: Seconds = setting(_STREAM.ping_s, "seconds", "Silence after which a comment is sent; 0 switches it off.")
    write_stall_s: PositiveSeconds = setting(
        _STREAM.write_stall_s, "seconds", "A client that takes nothing for this long is cut."
    )
    done_grace_s: Seconds = setting(
        _STREAM.done_grace_s, "seconds", "So long may the token counts come after the end of the text."
    )


class ShutdownSettings(Section):
    """How the data plane stops."""

    drain_delay_s: Seconds = setting(
        _SHUTDOWN.drain_delay_s, "seconds", "Unready but accepting, so that load balancers notice."
    )
    grace_s: Seconds = setting(_SHUTDOWN.grace_s, "seconds", "For running calls to end before they are cut.")


class ClassSettings(Section):
    """What calls of one value get; what is left out comes from the preset."""

    target_ms: Milliseconds | None = setting(None, "ms", "Until the first token, for short prompts.")
    long_target_ms: Milliseconds | None = setting(None, "ms", "The same for prompts of the long lane.")
    max_wait_ms: Milliseconds | None = setting(
        None, "ms", "Longest wait of a short prompt; a long one may wait longer in proportion to its target."
    )
    share: Ratio | None = setting(None, "ratio", "Part of the tokens that it gets at least while its calls wait.")


class ClassesSettings(Section):
    """The three request values."""

    high: ClassSettings = setting(ClassSettings(), "", "`X-Request-Value: high`.")
    medium: ClassSettings = setting(ClassSettings(), "", "`X-Request-Value: medium`.")
    low: ClassSettings = setting(ClassSettings(), "", "`X-Request-Value: low`.")


class AdmissionSettings(Section):
    """How calls are let in, ordered and turned away."""

    preset: policy.Preset = setting(
        _ADMISSION.preset,
        "",
        "`throughput` lets calls wait; `latency` refuses at once what cannot meet its target, and keeps waits short.",
    )
    refuse_early: bool | None = setting(
        None, "", "Refuse what cannot meet its target; empty is as the preset says: only `latency` does."
    )
    long_prompt_tokens: LargeCount = setting(
        _ADMISSION.long_prompt_tokens,
        "tokens",
        "Uncached prompt tokens from which on a call takes the long lane, at most; where engines are slow already from "
        "what the fastest computes in half a second, but not below 256.",
    )
    long_share: Ratio = setting(
        _ADMISSION.long_share_ratio, "ratio", "Part of the tokens that the long lane gets at least while it waits."
    )
    short_reserve: Ratio | None = setting(
        None,
        "ratio",
        "Part of a pool's replicas that take no long prompt while short ones are late; empty: 0, `latency` 0.25.",
    )
    classes: ClassesSettings = setting(ClassesSettings(), "", "Targets, waits and shares by request value.")


class LogSettings(Section):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "", "The least serious kind that is shown.")


class FileSettings(Section):
    """The whole file."""

    listen: AddressText = setting("127.0.0.1:7080", "HOST:PORT", "Where clients call. A change needs a restart.")
    admin: AddressText = setting("127.0.0.1:7081", "HOST:PORT", "API and console. A change needs a restart.")
    node: NodeName = NODE
    workers: Workers = setting(
        1, "processes", "That serve clients, behind one gate; 1 is a single process. A change needs a restart."
    )
    pools: dict[Name, PoolSettings] = setting({}, "", "By name; at least one.")
    models: dict[ModelName, ModelSettings] = setting({}, "", "By the name that clients use; at least one.")
    tenants: list[TenantSettings] = setting([], "", "Who may call; none means anybody, on loopback only.")
    admission: AdmissionSettings = setting(AdmissionSettings(), "", "How calls are let in.")
    ladder: LadderLevels = setting(LadderLevels(), "", "When its levels are due (docs/ladder.md).")
    timeouts: TimeoutSettings = setting(TimeoutSettings(), "", "The deadlines of a call.")
    limits: EdgeLimits = setting(EdgeLimits(), "", "Bounds of what comes in and what engines answer.")
    stream: StreamSettings = setting(StreamSettings(), "", "How answers are streamed.")
    shutdown: ShutdownSettings = setting(ShutdownSettings(), "", "How the data plane stops.")
    store: StoreSettings = setting(StoreSettings(), "", "Where several nodes meet.")
    resume: ResumeSettings = setting(ResumeSettings(), "", "How clients may come back for the rest of an answer.")
    log: LogSettings = setting(LogSettings(), "", "What is logged.")
    rules: list[RuleSettings] = setting(
        [], "", "Conditions and what then happens; the first rule that holds decides (docs/rules.md).", max_length=200
    )
    single_flight: SingleFlight = setting(
        "off", "", "Whether the same request of the same user at the same time is answered once; `warn` only counts."
    )
    idempotency: IdempotencySettings = setting(
        IdempotencySettings(), "", "What is kept of calls with an `Idempotency-Key`; in memory, of each process."
    )
    cors: CorsSettings = setting(CorsSettings(), "", "Which web pages may call.")
    trusted_proxies: list[Network] = setting(
        [], "addresses or networks", "Proxies whose X-Forwarded-For is believed, such as `10.0.0.0/8`."
    )
