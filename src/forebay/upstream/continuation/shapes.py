"""Which requests can be continued, and how: decided before the first leg is sent, because it may ask for token ids.

The closed list (`_RULES`) names the members that make a request one that cannot be continued, or not in one of
the modes. What is counted from the beginning of an answer is on it (penalties, a budget for thoughts) unless it
can be counted down (`max_tokens`, `min_tokens`).

Source: what vLLM 0.32 and llama.cpp do with a request that goes on (traps T28, T80); SGLang's from its source.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from forebay.policy import EngineKind
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.token_ids import ASKED_FOR
from forebay.wire.endpoints import Shape
from forebay.wire.members import Members

MAX_BODY_BYTES: Final = 1_048_576
"""Bodies are kept for as long as their answers run; a larger one is not."""

_OFF: Final = frozenset((b"null", b"false", b"0", b"0.0", b'""', b"[]"))
_ONE: Final = frozenset((b"null", b"1"))
_MEDIA: Final = (b'"image_url"', b'"input_audio"', b'"audio_url"', b'"video_url"', b'"image_embeds"', b'"input_image"')
_DIGITS: Final = b"0123456789"
_TOOLS: Final = frozenset(("tools", "functions"))
_TEXT_KEYS: Final = frozenset(("prompt", "include_reasoning", "add_generation_prompt"))
_stops = msgspec.json.Decoder(str | list[str]).decode
_Rule = Callable[[bytes, EngineKind, Shape], Reason | None]


class Plan(Struct, frozen=True):
    """How an answer could be continued.

    Attributes:
        kind: of the engine.
        shape: of the endpoint.
        exact: from token ids.
        text: from the text.
        collects_ids: the first leg's request asks for token ids, which are taken out again for the client.
        tools: the request names tools: a parser may hold text back.
    """

    kind: EngineKind
    shape: Shape
    exact: bool
    text: bool
    collects_ids: bool
    tools: bool = False

    @property
    def edits(self) -> dict[str, bytes | None]:
        """What the first leg's request has beyond what the client sent."""
        return {ASKED_FOR: b"true"} if self.collects_ids else {}


def shape_of(members: Members, shape: Shape, stream: bool, kind: EngineKind, token_ids: bool) -> Plan | Reason:
    """Say how the answer to a request could be continued, or why it cannot.

    Args:
        members: of the body.
        shape: of the endpoint.
        stream: the answer is a stream.
        kind: of the pool's engines.
        token_ids: its engines can send token ids (`Capabilities.token_ids`).
    """
    if not stream:
        return Reason.NOT_STREAMED
    if shape != "chat" and shape != "completions":
        return Reason.ENDPOINT
    if kind == "openai":
        return Reason.ENGINE
    if len(members.raw) > MAX_BODY_BYTES:
        return Reason.BODY_TOO_LARGE
    values = members.values
    found = _WATCHED.intersection(values)
    for key in sorted(found):
        rule = _RULES.get(key)
        reason = None if rule is None else rule(bytes(values[key]), kind, shape)
        if reason is not None:
            return reason
    collects_ids = token_ids and kind == "vllm"
    exact = collects_ids and not ("stop" in found and _holds_back(members))
    text = found.isdisjoint(_TEXT_KEYS) or _goes_by_text(members)
    if not (exact or text):
        return Reason.PROMPT_FORM
    return Plan(kind, shape, exact, text, collects_ids, not found.isdisjoint(_TOOLS))


def stops_of(members: Members) -> tuple[str, ...]:
    """Return the stop strings of a request; none when they cannot be read, which the engine will say."""
    text = members.text_of("stop")
    if text is None:
        return ()
    try:
        stops = _stops(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    return (stops,) if isinstance(stops, str) else tuple(stop for stop in stops if stop)


def _goes_by_text(members: Members) -> bool:
    """Say whether the text that the client sees is all that a prompt needs to go on."""
    prompt = members.text_of("prompt")
    opened = members.text_of("continue_final_message") == b"true"
    return (
        (prompt is None or prompt.startswith(b'"'))
        and members.text_of("include_reasoning") != b"false"
        and (opened or members.text_of("add_generation_prompt") != b"false")
    )


def has_media(members: Members) -> bool:
    """Say whether a prompt has pictures or sound: its ids stand for nothing without them."""
    return any(sign in members.raw for sign in _MEDIA)


def _holds_back(members: Members) -> bool:
    """Say whether the engine's ids run ahead of its text.

    To be able to leave a stop string out, vLLM holds back as many characters as the longest has, less one, whatever
    they are: ids that have been sent stand for text that has not, and no id says where the text ends.
    """
    if members.text_of("include_stop_str_in_output") == b"true":
        return False
    stops = stops_of(members)
    return not stops or max(map(len, stops)) > 1


def _unless(neutral: frozenset[bytes], reason: Reason) -> _Rule:
    def rule(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
        return None if raw in neutral else reason

    return rule


def _not_neutral(reason: Reason) -> _Rule:
    return _unless(_OFF, reason)


def _penalty(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    """Allow it on llama.cpp, which counts the tokens of the prompt as well."""
    if kind == "llamacpp" or raw == b"null":
        return None
    try:
        return Reason.PENALTIES if float(raw) else None
    except ValueError:
        return Reason.PENALTIES


class _Format(Struct):
    type: str = ""


def _response_format(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    """Plain text is no structure."""
    reason = _grammar(raw, kind, shape)
    try:
        return None if reason is None or msgspec.json.decode(raw, type=_Format).type == "text" else reason
    except (msgspec.DecodeError, UnicodeDecodeError):
        return reason


def _grammar(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    """Allow it in llama.cpp's chats: they take the beginning of the answer through the grammar."""
    primed = kind == "llamacpp" and shape == "chat"
    return None if raw == b"null" or primed else Reason.STRUCTURED_OUTPUT


def _tool_choice(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    """A tool that must be called is called by a grammar."""
    return None if raw in (b'"auto"', b'"none"') else _grammar(raw, kind, shape)


def _prompt(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    """One text, or the ids of one."""
    inner = raw[1:].lstrip()[:1] if raw[:1] == b"[" else b""
    if raw[:1] == b'"' or (inner and inner in _DIGITS and kind == "vllm"):
        return None
    return Reason.SEVERAL_CHOICES if inner in (b'"', b"[") and inner else Reason.PROMPT_FORM


def _logprobs(raw: bytes, kind: EngineKind, shape: Shape) -> Reason | None:
    return None if raw in (b"null", b"false") else Reason.LOGPROBS


_RULES: Final[dict[str, _Rule]] = {
    "n": _unless(_ONE, Reason.SEVERAL_CHOICES),
    "best_of": _unless(_ONE, Reason.SEVERAL_CHOICES),
    "use_beam_search": _not_neutral(Reason.SEVERAL_CHOICES),
    "prompt": _prompt,
    "prompt_embeds": _not_neutral(Reason.PROMPT_FORM),
    "logprobs": _logprobs,
    "top_logprobs": _not_neutral(Reason.LOGPROBS),
    "prompt_logprobs": _logprobs,
    "n_probs": _not_neutral(Reason.LOGPROBS),
    "echo": _not_neutral(Reason.ECHO),
    "suffix": _not_neutral(Reason.SUFFIX),
    "response_format": _response_format,
    "tool_choice": _tool_choice,
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "thinking_token_budget": _not_neutral(Reason.THINKING_BUDGET),
    "thinking_budget_tokens": _not_neutral(Reason.THINKING_BUDGET),
    "truncate_prompt_tokens": _not_neutral(Reason.TRUNCATION),
    "audio": _not_neutral(Reason.AUDIO),
    "modalities": _unless(frozenset((b"null", b'["text"]')), Reason.AUDIO),
} | dict.fromkeys(
    (
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
        "json_schema", "grammar", "regex", "ebnf",
    ),
    _grammar,
)  # fmt: skip

_WATCHED: Final = frozenset((*_RULES, *_TEXT_KEYS, *_TOOLS, "stop"))
