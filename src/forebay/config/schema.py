"""The settings of the configuration file: name, type, default, bounds, unit and meaning, declared once.

`compile.py` makes a `Policy` of them, `reference.py` the page docs/config.md. Defaults are those of
`forebay.policy`, which works without a file too. Validators check one value; what needs two values, the
environment or the names of other entries stands in `checks.py` and `compile.py`.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from forebay import policy
from forebay.config.addresses import check_network, check_origin, parse_address, parse_replica
from forebay.config.credentials import check_api_key, check_tenant_key

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
MAX_S = 31_536_000  # a year: longer is a mistake, and infinite is not a number of seconds
MAX_COUNT = 1_000_000
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


def _setting(default: Any, unit: str, meaning: str, **bounds: Any) -> Any:
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


AddressText = Annotated[str, AfterValidator(_check_address)]
ReplicaUrl = Annotated[str, AfterValidator(_check_url)]
ModelName = Annotated[str, AfterValidator(_check_model_name)]
Name = Annotated[str, Field(pattern=NAME)]
TenantKeyText = Annotated[str, AfterValidator(check_tenant_key)]
ApiKeyText = Annotated[str, AfterValidator(check_api_key)]
Origin = Annotated[str, AfterValidator(check_origin)]
Network = Annotated[str, AfterValidator(check_network)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
LargeCount = Annotated[int, Field(ge=1, le=MAX_LARGE_COUNT)]
PositiveSeconds = Annotated[float, Field(gt=0, le=MAX_S)]
Seconds = Annotated[float, Field(ge=0, le=MAX_S)]

_TIMEOUTS = policy.Timeouts()
_LIMITS = policy.Limits()
_STREAM = policy.Stream()
_SHUTDOWN = policy.Shutdown()
_BREAKER = policy.BreakerPolicy()


class Section(BaseModel):
    """A mapping of the file: unknown settings are errors, and no value is converted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


class TimeoutSettings(Section):
    """The deadlines of a call; a model's go before its pool's, and those before these, each by itself."""

    connect_s: PositiveSeconds = _setting(_TIMEOUTS.connect_s, "seconds", "To open a connection to a replica.")
    first_byte_s: PositiveSeconds = _setting(
        _TIMEOUTS.first_byte_s, "seconds", "From the request to the first byte of the answer."
    )
    stall_s: PositiveSeconds = _setting(_TIMEOUTS.stall_s, "seconds", "Longest silence within an answer.")
    total_s: PositiveSeconds = _setting(_TIMEOUTS.total_s, "seconds", "The whole call, all tries together.")


class TimeoutOverrides(Section):
    """The same four for one pool or one model; what is left out is inherited."""

    connect_s: PositiveSeconds | None = _setting(None, "seconds", "See `timeouts.connect_s`.")
    first_byte_s: PositiveSeconds | None = _setting(None, "seconds", "See `timeouts.first_byte_s`.")
    stall_s: PositiveSeconds | None = _setting(None, "seconds", "See `timeouts.stall_s`.")
    total_s: PositiveSeconds | None = _setting(None, "seconds", "See `timeouts.total_s`.")


class ReplicaSettings(Section):
    """One engine."""

    url: ReplicaUrl = _setting(
        ...,
        "URL",
        "`http(s)://HOST:PORT`, with user:password, path and query where needed; `/v1` at the end is dropped.",
        repr=False,
    )


class BreakerSettings(Section):
    """When a replica leaves the rotation."""

    failures: Count = _setting(_BREAKER.failures, "failures", "So many in a row take a replica out.")
    open_s: PositiveSeconds = _setting(_BREAKER.open_s, "seconds", "So long until one call may try it again.")


class PoolSettings(Section):
    """Replicas that serve the same model on the same kind of engine."""

    engine: policy.EngineKind = _setting(..., "", "What runs behind the URLs.")
    replicas: list[ReplicaSettings] = _setting(..., "", "At least one; no two alike.", min_length=1)
    api_key: ApiKeyText | None = _setting(
        None, "key or `env:NAME`", "What the engines get as Bearer token; goes before user:password.", repr=False
    )
    max_in_flight: Count | None = _setting(None, "calls", "In flight on one replica; empty means no limit.")
    queue_size: Annotated[int, Field(ge=0, le=MAX_COUNT)] = _setting(
        1024, "calls", "That may wait for a replica; further ones are refused."
    )
    max_attempts: Annotated[int, Field(ge=1, le=100)] = _setting(3, "tries", "For one call, the first included.")
    breaker: BreakerSettings = _setting(BreakerSettings(), "", "When a replica leaves the rotation.")
    timeouts: TimeoutOverrides | None = _setting(None, "", "Of this pool.")


class ModelSettings(Section):
    """What stands behind a name that clients use."""

    pool: str = _setting(..., "name", "The pool that serves it.")
    upstream_model: ModelName | None = _setting(None, "name", "What the engine calls it; empty means the same.")
    fallback: list[str] = _setting([], "names", "Models to try in this order when the pool cannot serve.")
    timeouts: TimeoutOverrides | None = _setting(None, "", "Of this model.")
    hygiene: Literal["detect"] = _setting("detect", "", "Requests that are likely mistakes are marked, not changed.")


class TenantLimits(Section):
    """What one tenant may use at most; what is left out is not limited."""

    concurrency: Count | None = _setting(None, "calls", "In flight at once.")
    requests_per_minute: LargeCount | None = _setting(None, "calls", "In any sliding minute.")
    tokens_per_minute: LargeCount | None = _setting(None, "tokens", "Prompt and completion, in any sliding minute.")


class TenantSettings(Section):
    """Who may call."""

    name: Name = _setting(..., "name", "Stands in metrics and journal.")
    keys: list[TenantKeyText] = _setting(
        ...,
        "key, `sha256:HEX` or `env:NAME`",
        "Any of them opens. A plain key is hashed when the file is read; off loopback it needs 16 characters.",
        min_length=1,
        repr=False,
    )
    models: list[str] | None = _setting(None, "names", "It may use only these; empty means all.", min_length=1)
    limits: TenantLimits = _setting(TenantLimits(), "", "Of this tenant.")


class EdgeLimits(Section):
    """Bounds of what comes in and what engines answer."""

    body_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = _setting(
        _LIMITS.body_bytes, "bytes", "Largest body of a request."
    )
    header_bytes: Annotated[int, Field(ge=1024, le=1_048_576)] = _setting(
        _LIMITS.header_bytes, "bytes", "Request line and headers together."
    )
    header_s: PositiveSeconds = _setting(_LIMITS.header_s, "seconds", "For the headers to arrive.")
    body_s: PositiveSeconds = _setting(_LIMITS.body_s, "seconds", "For the body to arrive.")
    idle_connection_s: PositiveSeconds = _setting(
        _LIMITS.idle_connection_s, "seconds", "A client's connection without a request is closed after this."
    )
    max_connections: Count = _setting(_LIMITS.max_connections, "connections", "Open at once; further ones get 503.")
    json_depth: Annotated[int, Field(ge=1, le=512)] = _setting(
        _LIMITS.json_depth, "levels", "Deepest nesting of a JSON body."
    )
    response_bytes: Annotated[int, Field(ge=1024, le=1_073_741_824)] = _setting(
        _LIMITS.response_bytes, "bytes", "Largest answer of an engine that is not a stream."
    )


class StreamSettings(Section):
    """How answers are streamed."""

    ping_s: Seconds = _setting(_STREAM.ping_s, "seconds", "Silence after which a comment is sent; 0 switches it off.")
    write_stall_s: PositiveSeconds = _setting(
        _STREAM.write_stall_s, "seconds", "A client that takes nothing for this long is cut."
    )
    done_grace_s: Seconds = _setting(
        _STREAM.done_grace_s, "seconds", "So long may the token counts come after the end of the text."
    )


class ShutdownSettings(Section):
    """How the data plane stops."""

    drain_delay_s: Seconds = _setting(
        _SHUTDOWN.drain_delay_s, "seconds", "Unready but accepting, so that load balancers notice."
    )
    grace_s: Seconds = _setting(_SHUTDOWN.grace_s, "seconds", "For running calls to end before they are cut.")


class LogSettings(Section):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error"] = _setting("info", "", "The least serious kind that is shown.")


class CorsSettings(Section):
    """Which web pages may call."""

    origins: list[Origin] = _setting([], "origins", "`https://HOST[:PORT]`, or `*` for all.")


class FileSettings(Section):
    """The whole file."""

    listen: AddressText = _setting("127.0.0.1:7080", "HOST:PORT", "Where clients call. A change needs a restart.")
    admin: AddressText = _setting("127.0.0.1:7081", "HOST:PORT", "API and console. A change needs a restart.")
    pools: dict[Name, PoolSettings] = _setting({}, "", "By name; at least one.")
    models: dict[ModelName, ModelSettings] = _setting({}, "", "By the name that clients use; at least one.")
    tenants: list[TenantSettings] = _setting([], "", "Who may call; none means anybody, on loopback only.")
    timeouts: TimeoutSettings = _setting(TimeoutSettings(), "", "The deadlines of a call.")
    limits: EdgeLimits = _setting(EdgeLimits(), "", "Bounds of what comes in and what engines answer.")
    stream: StreamSettings = _setting(StreamSettings(), "", "How answers are streamed.")
    shutdown: ShutdownSettings = _setting(ShutdownSettings(), "", "How the data plane stops.")
    log: LogSettings = _setting(LogSettings(), "", "What is logged.")
    cors: CorsSettings = _setting(CorsSettings(), "", "Which web pages may call.")
    trusted_proxies: list[Network] = _setting(
        [], "addresses or networks", "Proxies whose X-Forwarded-For is believed, such as `10.0.0.0/8`."
    )


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds: itself, or in an optional, a list or a mapping; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part)) is not None), None)
