"""The request of the next leg: where the answer is cut, and how the engine is told what has been said."""

from array import array
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forebay.domain import Usage
from forebay.policy import EngineKind
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.shapes import Plan, has_media, stops_of
from forebay.upstream.continuation.told import Finish, Leg, Mode, Told
from forebay.wire import splice
from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members

MODES: Final[tuple[Mode, ...]] = ("exact", "words", "text", "restart")
"""In the order in which they are tried."""
DEFAULT_COMPLETION_TOKENS: Final = 16
"""Of plain completions that name no limit, in vLLM and SGLang (OpenAI's own default); llama.cpp has none."""
MAX_TAIL_CHARS: Final = 64
"""The last word may be this long, with the white space around it."""
MAX_FRESH_BYTES: Final = 16_384
"""Up to this size llama.cpp computes the prompt of a greedy request anew.

What it has cached of another prompt was computed in other batches, which flips words that are nearly as likely:
with the cache 32 of 61 chats went on with the same words, without it 58 of 62 (135M, Q4_1, two engines).
"""
_GREEDY: Final = (b"0", b"0.0")
_LIMIT_KEYS: Final = {"chat": ("max_completion_tokens", "max_tokens"), "completions": ("max_tokens",)}
_NONE: Final[frozenset[Mode]] = frozenset()

_items = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.encode


class _Message(Struct):
    role: str = ""
    content: str | list[dict[str, Raw]] | None = None


class _StreamOptions(Struct):
    include_usage: bool | None = None


_messages = msgspec.json.Decoder(list[_Message]).decode
_message = msgspec.json.Decoder(_Message).decode
_text = msgspec.json.Decoder(str).decode
_stream_options = msgspec.json.Decoder(_StreamOptions).decode


def resume_request(body: bytes, told: Told, plan: Plan, barred: frozenset[Mode] = _NONE) -> Leg | Finish:
    """Make the request of the next leg, in the best mode that is possible.

    Args:
        body: of the first leg's request, as it was sent, with the plan's edits.
        told: what the client has.
        plan: made before the first leg.
        barred: modes that have failed already.

    Returns:
        The leg, or the end of the answer when no token is left of `max_tokens`.

    Raises:
        Impossible: no mode is left; the reason is that of the best one.
    """
    if told.flaw is not None:
        raise Impossible(told.flaw)
    if told.tools:
        raise Impossible(Reason.TOOL_CALLS)
    try:
        members = read_members(body)
        return _in_some_mode(_Old(members, told, plan), barred)
    except (InvalidJson, DuplicateKey, TooDeep, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Impossible(Reason.UNREADABLE) from None


def at_limit(body: bytes, told: Told) -> Finish:
    """Return the end of an answer that fills the engine's context.

    Raises:
        Impossible: `unreadable`.
    """
    try:
        return Finish("length", usage_so_far(told), _wants_usage(read_members(body)))
    except (InvalidJson, DuplicateKey, TooDeep, msgspec.DecodeError, UnicodeDecodeError):
        raise Impossible(Reason.UNREADABLE) from None


def usage_so_far(told: Told) -> Usage:
    """Return the usage of what the client has; 0 prompt tokens where the engine never said how many."""
    estimated = not told.counted or told.prompt_tokens is None
    return Usage(told.prompt_tokens or 0, told.tokens, told.cached_tokens, estimated=estimated)


class _Old(Struct, frozen=True):
    """The answer so far and the request that it answers."""

    members: Members
    told: Told
    plan: Plan


def _in_some_mode(old: _Old, barred: frozenset[Mode]) -> Leg | Finish:
    by_text = old.plan.text and old.told.says
    possible = {
        "exact": old.plan.exact and old.told.says,
        "words": by_text and _is_greedy(old.members),
        "text": by_text,
        "restart": True,
    }
    first: Impossible | None = None
    for mode in MODES:
        if mode in barred or not possible[mode]:
            continue
        try:
            return _MAKERS[mode](old)
        except Impossible as impossible:
            first = first or impossible
    raise first or Impossible(Reason.PREFIX_REFUSED)


def _exact(old: _Old) -> Leg | Finish:
    """Go on from the ids, cut behind the last one whose text came out whole."""
    told, plan = old.told, old.plan
    if plan.tools and told.text:
        raise Impossible(Reason.TOOLS_AFTER_REASONING)
    if told.prompt_ids is None or not told.safe:
        raise Impossible(Reason.NO_IDS)
    if has_media(old.members):
        raise Impossible(Reason.PROMPT_FORM)
    cut, tail = told.safe, ""
    if not told.clean:
        # The tokens behind the last sure boundary must come again.
        chars = len(told.reasoning) + len(told.text) - told.clean_chars
        if not told.clean_ids or told.reasoning:
            raise Impossible(Reason.SPLIT_CHARACTER)
        cut, tail = told.clean_ids, told.text[len(told.text) - chars :]
    made_tokens = told.tokens - (told.safe - cut)
    ids = _ids_text(told.prompt_ids, told.ids[:cut])
    prompt = b'{"prompt_token_ids":%b}' % ids if plan.shape == "chat" else ids
    key = "kv_transfer_params" if plan.shape == "chat" else "prompt"
    return _leg(old, {key: prompt}, ("exact", cut, tail, made_tokens))


def _by_words(old: _Old) -> Leg | Finish:
    """Go on from the text less its last word: cut there, it falls into the same tokens as it was made of.

    For greedy requests alone, which say the word again: 53 of 54 plain completions went on with the same words on
    another engine; cut where the text happened to end, 49 of 57 (llama.cpp, 135M, Q4_1, without its cache).
    """
    text = old.told.text.rstrip()
    last = text.rsplit(maxsplit=1)[-1] if text else ""
    kept = text[: len(text) - len(last)].rstrip()
    if not kept or len(old.told.text) - len(kept) > MAX_TAIL_CHARS:
        raise Impossible(Reason.PREFIX_FORM)
    return _behind(old, kept, "words")


def _by_text(old: _Old) -> Leg | Finish:
    """Go on from the text. Many chat templates strip messages, so that white space at its end is said again."""
    stripped = old.plan.shape == "chat" and old.plan.kind != "llamacpp"
    kept = old.told.text.rstrip() if stripped else old.told.text
    return _behind(old, kept, "text")


def _behind(old: _Old, kept: str, mode: Mode) -> Leg | Finish:
    """Go on behind a part of the text."""
    told, plan = old.told, old.plan
    if told.reasoning:
        raise Impossible(Reason.TOOLS_AFTER_REASONING if plan.tools and told.text else Reason.REASONING)
    if not kept:
        raise Impossible(Reason.PREFIX_FORM)
    edits: dict[str, bytes | None] = {}
    if plan.shape == "completions":
        edits["prompt"] = (old.members.text_of("prompt") or b'""')[:-1] + _encode(kept)[1:]
    else:
        edits["messages"] = _with_beginning(old.members, kept, plan.kind)
        if plan.kind != "llamacpp":
            edits["continue_final_message"] = b"true"
        if plan.kind == "vllm":
            edits["add_generation_prompt"] = b"false"
    tail = told.text[len(kept) :]
    # White space falls into one token with the word behind it.
    again = 0 if tail.isspace() else _tokens_of(tail, told)
    return _leg(old, edits, (mode, 0, tail, told.tokens - again))


def _again(old: _Old) -> Leg | Finish:
    """Ask anew; what comes must begin with what the client has. Costs no more than the first tokens if it does not."""
    if old.told.reasoning:
        raise Impossible(Reason.REASONING)
    return _leg(old, {}, ("restart", 0, old.told.text, 0))


_MAKERS: Final = {"exact": _exact, "words": _by_words, "text": _by_text, "restart": _again}


def _leg(old: _Old, edits: dict[str, bytes | None], how: tuple[Mode, int, str, int]) -> Leg | Finish:
    mode, cut, tail, made_tokens = how
    members, told = old.members, old.told
    wants_usage = _wants_usage(members)
    if made_tokens:
        limits = _limits_left(members, old.plan, made_tokens)
        if limits is None:
            return Finish("length", usage_so_far(told), wants_usage)
        edits |= limits
    if old.plan.kind == "llamacpp" and _is_greedy(members) and len(members.raw) <= MAX_FRESH_BYTES:
        edits["cache_prompt"] = b"false"
    return Leg(
        splice.edit(members, edits),
        mode,
        cut,
        tail,
        told.text[: len(told.text) - len(tail)] if mode in ("words", "text") else "",
        made_tokens,
        _said_by_prompt(members) if mode == "exact" else (),
        stops_of(members),
        members.text_of("include_stop_str_in_output") == b"true",
        wants_usage,
    )


def _is_greedy(members: Members) -> bool:
    return members.text_of("temperature") in _GREEDY


def _limits_left(members: Members, plan: Plan, made_tokens: int) -> dict[str, bytes | None] | None:
    """Return the limits less what has been made; None when nothing is left."""
    left: dict[str, bytes | None] = {}
    for key in _LIMIT_KEYS[plan.shape]:
        text = members.text_of(key)
        if text is not None and text.isdigit():
            if int(text) <= made_tokens:
                return None
            left[key] = b"%d" % (int(text) - made_tokens)
    if not left and plan.shape == "completions" and plan.kind != "llamacpp":
        if made_tokens >= DEFAULT_COMPLETION_TOKENS:
            return None
        left["max_tokens"] = b"%d" % (DEFAULT_COMPLETION_TOKENS - made_tokens)
    least = members.text_of("min_tokens")
    if least is not None and least.isdigit():
        left["min_tokens"] = b"%d" % max(0, int(least) - made_tokens)
    return left


def _with_beginning(members: Members, text: str, kind: EngineKind) -> bytes:
    """Return the messages with the beginning of the answer behind them, joined to one that the client gave itself."""
    raw = members.text_of("messages") or b"[]"
    items = _items(raw)
    last = _message(items[-1]) if items else _Message()
    opened = kind == "llamacpp" or members.text_of("continue_final_message") == b"true"
    if opened and last.role == "assistant":
        if not isinstance(last.content, str):
            raise Impossible(Reason.PREFIX_FORM)
        head = raw[: raw.rindex(bytes(items[-1]))]
        return head + splice.with_member(bytes(items[-1]), "content", _encode(last.content + text)) + b"]"
    head = raw[: raw.rindex(b"]")]
    return b'%b%b{"role":"assistant","content":%b}]' % (head, b"," if items else b"", _encode(text))


def _said_by_prompt(members: Members) -> tuple[str, ...]:
    """Return what the prompt says, in order; of a prompt of ids nothing is known."""
    prompt = members.text_of("prompt")
    if prompt is not None:
        return (_text(prompt),) if prompt.startswith(b'"') else ()
    contents = [message.content for message in _messages(members.text_of("messages") or b"[]")]
    return tuple([said for content in contents for said in _texts_of(content) if said.strip()])


def _texts_of(content: str | list[dict[str, Raw]] | None) -> list[str]:
    if isinstance(content, list):
        return [_text(part["text"]) for part in content if bytes(part.get("text", b"")).startswith(b'"')]
    return [content] if content else []


def _wants_usage(members: Members) -> bool:
    text = members.text_of("stream_options")
    return text is not None and _stream_options(text).include_usage is True


def _tokens_of(tail: str, told: Told) -> int:
    """Return how many of the latest events it took to say this, at least."""
    chars = tokens = 0
    while chars < len(tail) and tokens < len(told.recent):
        tokens += 1
        chars += len(told.recent[-tokens])
    return min(tokens, told.tokens)


def _ids_text(prompt: "array[int]", made: "array[int]") -> bytes:
    return _encode(prompt.tolist() + made.tolist())
