"""What a level of the ladder takes from a request: decided on its raw members. Pure.

A request with a structure (tools, a response format, a grammar, several choices, log probabilities, pictures, a prompt
that asks for JSON) is never altered: an answer that is cut, or that ends with a sentence of ours, would break whoever
reads it (T18). What is left out of a chat is whole messages, never the system's and never the last of the user.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from forebay.degrade.shapes import Heard, read_messages, read_parts
from forebay.wire.endpoints import Shape
from forebay.wire.members import Members

_OFF: Final = frozenset((b"null", b"false", b"0", b"0.0", b'""', b"[]", b"{}"))
_PLAIN_CHOICES: Final = frozenset((b"null", b'"none"', b'"auto"'))
_TEXT_ALONE: Final = frozenset((b"null", b"[]", b'["text"]'))
# Members that ask for more than one answer or for log probabilities, and the values with which they do not.
_ONE: Final = frozenset((b"null", b"0", b"1"))
_NO: Final = frozenset((b"null", b"false"))
_COSTLY: Final = {
    "n": _ONE,
    "best_of": _ONE,
    "use_beam_search": _NO,
    "logprobs": _NO,
    "top_logprobs": frozenset((b"null", b"0")),
    "prompt_logprobs": _NO,
}
_STRUCTURED: Final = frozenset(
    (
        "tools", "functions", "function_call", "audio", "prediction", "web_search_options", "documents", "n_probs",
        "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag",
        "json_schema", "grammar", "regex", "ebnf", "min_tokens", "thinking", "thinking_token_budget",
        "thinking_budget_tokens", "suffix", "echo", "prompt_embeds", "continue_final_message", "truncate_prompt_tokens",
    )
)  # fmt: skip
# What the system or the user says who wants an answer for a machine.
_FORMATS: Final = (b"json", b"xml", b"yaml", b"csv")
_LOOKED_AT_BYTES: Final = 16_384
MAX_BYTES: Final = 1_048_576
"""A larger body is left as it is: to look at it would hold up the others."""
_SYSTEM: Final = ("system", "developer")
_SPEAKERS: Final = ("system", "developer", "user", "assistant")
_TEXT_PARTS: Final = (b'"text"',)

ENGLISH: Final = (
    "\n\n(The service is very busy. This answer takes only the latest part of our conversation into account.)"
)
CHINESE: Final = "\n\n（当前服务繁忙，本次回答只参考了最近的对话内容，较早的内容未被考虑。）"
# Chinese has few signs for much meaning: this part of the letters is enough, also between English names.
_CHINESE_RATIO: Final = 0.2


class Cut(Struct, frozen=True):
    """A chat with fewer messages.

    Attributes:
        messages: JSON text of those that stay.
        left_out: how many were left out.
        kept_ratio: part of the text that stays.
        notice: says so at the end of the answer, in the user's language.
    """

    messages: bytes
    left_out: int
    kept_ratio: float
    notice: str


def costly(members: Members) -> str:
    """Return the member that asks for more than one answer, or for log probabilities; empty when there is none."""
    for key, without in _COSTLY.items():
        if key in members.values and bytes(members.values[key]) not in without:
            return key
    return ""


def is_structured(members: Members, shape: Shape) -> bool:
    """Say whether an answer has a form that somebody relies on, so that it must neither be shortened nor added to."""
    values = members.values
    if costly(members) or len(members.raw) > MAX_BYTES:
        return True
    if any(bytes(values[key]) not in _OFF for key in _STRUCTURED.intersection(values)):
        return True
    if "response_format" in values and not _is_text(bytes(values["response_format"])):
        return True
    if "tool_choice" in values and bytes(values["tool_choice"]) not in _PLAIN_CHOICES:
        return True
    if "modalities" in values and bytes(values["modalities"]) not in _TEXT_ALONE:
        return True
    if shape == "chat":
        return _is_structured_chat(values.get("messages"))
    prompt = bytes(values.get("prompt", b""))
    return not prompt.startswith(b'"') or _names_a_format(prompt)


def shortened(members: Members, history_tokens: int, prompt_tokens: int) -> Cut | None:
    """Leave out the oldest messages of a plain chat.

    Args:
        members: of a body that `is_structured` says no to.
        history_tokens: of the latest messages that stay, beside those of the system.
        prompt_tokens: of the whole, as estimated.

    Returns:
        None when nothing can be left out.
    """
    raw = members.values.get("messages")
    heard = None if raw is None else read_messages(raw)
    if raw is None or not heard:
        return None
    roles = [message.role for message, _ in heard]
    if "user" not in roles:
        return None
    last_user = len(roles) - 1 - roles[::-1].index("user")
    sizes = [len(message.content) for message, _ in heard]
    tokens_per_byte = prompt_tokens / max(1, sum(sizes))
    first = _first_kept(roles, sizes, last_user, history_tokens / max(1e-9, tokens_per_byte))
    kept = [at for at in range(len(heard)) if at >= first or roles[at] in _SYSTEM]
    if len(kept) == len(heard):
        return None
    text = b"[" + b",".join([bytes(heard[at][1]) for at in kept]) + b"]"
    kept_ratio = sum(sizes[at] for at in kept) / max(1, sum(sizes))
    notice = CHINESE if is_chinese(bytes(heard[last_user][0].content)) else ENGLISH
    return Cut(text, len(heard) - len(kept), kept_ratio, notice)


def is_chinese(text: bytes) -> bool:
    """Say whether JSON text is in Chinese; Japanese, which has these signs too, is told by its own."""
    try:
        said = str(msgspec.json.decode(text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    signs = sum("\u4e00" <= sign <= "\u9fff" or "\u3400" <= sign <= "\u4dbf" for sign in said)
    kana = sum("\u3040" <= sign <= "\u30ff" for sign in said)
    return signs > 4 * kana and signs >= _CHINESE_RATIO * sum(sign.isalpha() for sign in said) and signs > 0


def _first_kept(roles: list[str], sizes: list[int], last_user: int, room_bytes: float) -> int:
    """Return the place of the oldest message of the conversation that stays: a user's, as templates demand."""
    first = last_user
    left = room_bytes - sum(sizes[last_user:])
    for at in range(last_user - 1, -1, -1):
        if roles[at] in _SYSTEM:
            continue
        left -= sizes[at]
        if left < 0:
            break
        if roles[at] == "user":
            first = at
    return first


def _is_text(response_format: bytes) -> bool:
    """Say whether a response format is no format."""
    try:
        return response_format in _OFF or bool(msgspec.json.decode(response_format).get("type") == "text")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return False


def _is_structured_chat(messages: Raw | None) -> bool:
    heard = None if messages is None else read_messages(messages)
    if not heard or not all(_is_said(message) for message, _ in heard):
        return True
    asking = [message.content for message, _ in heard if message.role in _SYSTEM]
    asking += [message.content for message, _ in heard if message.role == "user"][-1:]
    return any(_names_a_format(bytes(content)) for content in asking)


def _names_a_format(text: bytes) -> bool:
    """Say whether a prompt speaks, at its beginning or its end, of a format that machines read."""
    ends = text if len(text) <= 2 * _LOOKED_AT_BYTES else text[:_LOOKED_AT_BYTES] + text[-_LOOKED_AT_BYTES:]
    said = ends.lower()
    return any(word in said for word in _FORMATS)


def _is_said(message: Heard) -> bool:
    """Say whether a message is plain words of one of the three who take part in a plain chat."""
    if message.role not in _SPEAKERS:
        return False
    if any(bytes(odd) not in _OFF for odd in (message.tool_calls, message.function_call, message.audio) if odd):
        return False
    content = bytes(message.content)
    if content.startswith(b'"'):
        return True
    parts = read_parts(message.content) if content.startswith(b"[") else None
    return parts is not None and all(bytes(part.type) in _TEXT_PARTS for part in parts)
