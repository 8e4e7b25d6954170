"""Find out what one replica is and can do, by GET requests that disturb no engine.

Two rounds. The first asks what the engine is. The second depends on that, because each scrape of
llama.cpp's `/metrics` resets gauges that its owner may be reading.
"""

import asyncio
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from forebay.domain import Replica
from forebay.engines import llamacpp, sglang, vllm
from forebay.engines.contract import Capabilities, Fetch, PriorityOrder, Telemetry
from forebay.engines.registry import ENGINES
from forebay.policy import EngineKind

STEP_S = 2.0
MAX_MODELS = 256
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024

_PRODUCTS: dict[EngineKind, str] = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
_OWNERS: dict[str, EngineKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}


class _Meta(Struct, frozen=True):
    n_ctx: int | None = None


class _Card(Struct, frozen=True):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    meta: _Meta | None = None


class _Models(Struct, frozen=True):
    data: list[_Card] | None  # Ollama without a model says null


class _Version(Struct, frozen=True):
    version: str


class _Props(Struct, frozen=True):
    total_slots: int | None = None
    build_info: str = ""
    default_generation_settings: dict[str, Raw] | None = None


class _ServerInfo(Struct, frozen=True):
    """The part of SGLang's `/server_info` that matters: launch arguments beside the scheduler's state."""

    version: str = ""
    max_total_num_tokens: int | None = None
    dp_size: int = 1
    enable_metrics: bool | None = None
    enable_cache_report: bool | None = None
    enable_priority_scheduling: bool | None = None
    schedule_low_priority_values_first: bool = False


class _Schema(Struct, frozen=True):
    properties: dict[str, Raw] = {}


class _Components(Struct, frozen=True):
    schemas: dict[str, _Schema] = {}


class _OpenApi(Struct, frozen=True):
    components: _Components = _Components()


class _First(Struct, frozen=True):
    """What the first round brought.

    Attributes:
        cards: the model list; None when there is none.
        guarded: the model list wants a key.
    """

    cards: list[_Card] | None
    guarded: bool
    version: _Version | None
    props: _Props | None
    info: _ServerInfo | None


_T = TypeVar("_T")


class _Steps:
    """Single bounded steps on one replica: a failed one is None.

    Attributes:
        unanswered: one of them had no answer, or none in time.
    """

    def __init__(self, replica: Replica, fetch: Fetch, step_s: float) -> None:
        self._replica = replica
        self._fetch = fetch
        self._step_s = step_s
        self.unanswered = False

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body; status 0 when there is no answer in time or the body is too large."""
        try:
            async with asyncio.timeout(self._step_s):
                status, body = await self._fetch(self._replica, path, self._step_s)
        except OSError:
            self.unanswered = True
            return 0, b""
        return (status, body) if len(body) <= MAX_DOCUMENT_BYTES else (0, b"")

    async def document(self, path: str, shape: type[_T]) -> _T | None:
        """Return the JSON document at a path when it answers 200 in that shape."""
        return _decoded(await self.get(path), shape)

    async def page(self, path: str) -> bytes:
        """Return the body of a 200 answer, or nothing."""
        status, body = await self.get(path)
        return body if status == 200 else b""


async def probe(replica: Replica, fetch: Fetch, step_s: float = STEP_S) -> Capabilities:
    """Ask one replica what it is and can do; what it does not tell stays unknown.

    Never raises for what the engine does: an address where nothing answers gives the defaults, with
    `identified` false.

    Args:
        replica: whom to ask.
        fetch: does one GET.
        step_s: bound of each step in seconds; there are at most three rounds of concurrent steps.
    """
    steps = _Steps(replica, fetch, step_s)
    found = await _found(steps)
    return replace(found, complete=False) if steps.unanswered else found


async def _found(steps: _Steps) -> Capabilities:
    first = await _first_round(steps)
    match _identify(first):
        case "vllm":
            return await _vllm(steps, first)
        case "sglang":
            return await _sglang(steps, first)
        case "llamacpp":
            return await _llamacpp(steps, first)
        case _:
            return await _generic(steps, first)


async def identify(replica: Replica, fetch: Fetch, step_s: float = STEP_S) -> EngineKind | None:
    """Return the kind of engine at an address, `openai` for any other, None when nothing there is one."""
    found = await probe(replica, fetch, step_s)
    return found.kind if found.identified else None


async def _first_round(steps: _Steps) -> _First:
    models, version, props, info = await asyncio.gather(
        steps.get("/v1/models"),
        steps.document("/version", _Version),
        steps.document("/props", _Props),
        steps.document("/server_info", _ServerInfo),
    )
    listed = _decoded(models, _Models)
    cards = None if listed is None else (listed.data or [])
    return _First(cards, models[0] in (401, 403), version, props, info)


def _identify(first: _First) -> EngineKind | None:
    """Decide the kind from the first round; None when it takes a look at the metrics page."""
    owner = first.cards[0].owned_by if first.cards else ""
    if owner in _OWNERS:
        return _OWNERS[owner]
    if first.props is not None and first.props.default_generation_settings is not None:
        return "llamacpp"
    if first.info is not None and first.info.max_total_num_tokens is not None:
        return "sglang"
    return None


async def _vllm(steps: _Steps, first: _First) -> Capabilities:
    page, document = await asyncio.gather(steps.page("/metrics"), steps.document("/openapi.json", _OpenApi))
    fields = _chat_fields(document)
    load = _telemetry("vllm", page)
    return replace(
        _base("vllm", first),
        version=first.version.version if first.version else "",
        kv_tokens=_whole(load.kv_tokens.value),
        telemetry=load.running.value is not None,
        token_ids="return_token_ids" in fields,
        priority="lower_first" if "priority" in fields else None,
        cache_salt="cache_salt" in fields,
        usage_in_stream="stream_options" in fields or None,
        missing=vllm.missing_flags(page, has_priority="priority" in fields),
    )


async def _sglang(steps: _Steps, first: _First) -> Capabilities:
    page, document, info = await asyncio.gather(
        steps.page("/metrics"), steps.document("/openapi.json", _OpenApi), _server_info(steps, first)
    )
    fields = _chat_fields(document)
    load = _telemetry("sglang", page)
    room = info.max_total_num_tokens
    return replace(
        _base("sglang", first),
        version=info.version,
        kv_tokens=_whole(load.kv_tokens.value) if room is None else room * max(info.dp_size, 1),
        telemetry=load.running.value is not None,
        token_ids=False,  # its schema has return_token_ids, but a chat stream refuses it
        priority=_sglang_priority(info),
        cache_salt="cache_salt" in fields,
        usage_in_stream="stream_options" in fields or None,
        missing=sglang.missing_flags(info.enable_metrics, info.enable_cache_report, info.enable_priority_scheduling),
    )


async def _llamacpp(steps: _Steps, first: _First) -> Capabilities:
    status, body = await steps.get("/slots")
    load = _telemetry("llamacpp", body if status == 200 else b"")
    slots = _whole(load.slots.value)
    return replace(
        _base("llamacpp", first),
        version=_build(first.props),
        kv_tokens=_whole(load.kv_tokens.value),
        slots=first.props.total_slots if slots is None and first.props else slots,
        telemetry=load.running.value is not None,
        usage_in_stream=True,
        missing=llamacpp.missing_flags(status),
    )


async def _generic(steps: _Steps, first: _First) -> Capabilities:
    """Look at the metrics page: a fork may name another owner, and a guarded list names none."""
    if first.cards is None and not first.guarded:
        return Capabilities()
    page, ollama = await asyncio.gather(steps.page("/metrics"), steps.document("/api/version", _Version))
    if b"\nvllm:" in page:
        return await _vllm(steps, first)
    if b"\nsglang:" in page:
        return await _sglang(steps, first)
    if ollama is None:
        return _base("openai", first)
    return replace(_base("openai", first), product="Ollama", version=ollama.version)


async def _server_info(steps: _Steps, first: _First) -> _ServerInfo:
    if first.info is not None:
        return first.info
    return await steps.document("/get_server_info", _ServerInfo) or _ServerInfo()


def _base(kind: EngineKind, first: _First) -> Capabilities:
    cards = (first.cards or [])[:MAX_MODELS]
    return Capabilities(
        kind=kind,
        product=_PRODUCTS.get(kind, ""),
        models=tuple(card.id for card in cards),
        max_model_len=max((length for card in cards if (length := _length(card)) is not None), default=None),
        guarded=first.guarded,
    )


def _length(card: _Card) -> int | None:
    if card.max_model_len is not None:
        return card.max_model_len
    return card.meta.n_ctx if card.meta else None


def _build(props: _Props | None) -> str:
    """Return llama.cpp's build; one that was built outside its repository calls itself b0-unknown."""
    return "" if props is None or props.build_info.startswith("b0-") else props.build_info


def _sglang_priority(info: _ServerInfo) -> PriorityOrder | None:
    if not info.enable_priority_scheduling:
        return None
    return "lower_first" if info.schedule_low_priority_values_first else "higher_first"


def _chat_fields(document: _OpenApi | None) -> frozenset[str]:
    schemas = document.components.schemas if document else {}
    chat = schemas.get("ChatCompletionRequest")
    return frozenset(chat.properties) if chat else frozenset()


def _telemetry(kind: EngineKind, page: bytes) -> Telemetry:
    try:
        return ENGINES[kind].read_telemetry(page) if page else Telemetry()
    except ValueError:
        return Telemetry()


def _decoded(answer: tuple[int, bytes], shape: type[_T]) -> _T | None:
    status, body = answer
    if status != 200:
        return None
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
