"""What a body holds for the model to read, and how many answers to it are due."""

import re

import msgspec
from msgspec import Raw

from forebay.edge.body import Asked
from forebay.edge.shapes import Message, Part, Source, ToolCall
from forebay.traffic import Prompt

WHOLE_BYTES = 262_144
"""Text up to this length is kept whole; of longer text there are three samples."""
HEAD_BYTES = 131_072
SAMPLE_BYTES = 32_768

# A large body that may be in more pieces than this is taken as one text: to list them all would hold the loop
# for more than some 20 ms. One sign each, because only a search for one byte is quick.
MAX_PIECES = 32_768
_SIGNS_OF_CHAT = ((b"{", MAX_PIECES),)
_SIGNS_OF_LIST = ((b"{", MAX_PIECES), (b'"', 4 * MAX_PIECES), (b",", 4 * MAX_PIECES))
_CHAT_KEYS = ("system", "documents")
_TEXT_KEYS = (
    *("instructions", "system", "prompt", "suffix", "input", "content", "tokens"),
    *("query", "queries", "documents", "text_1", "text_2", "data_1", "data_2"),
)
_TOOL_KEYS = ("tools", "functions", "response_format", "tool_choice", "text", "output_config")
# Of these one stands before each of the others, so the model reads it as often.
_REPEATED_KEYS = ("query", "text_1", "data_1")
_SOUNDS = (b'"input_audio"', b'"audio"', b'"audio_url"')
_NO_PICTURES = (b"", b'"message"', b'"reasoning"', b'"redacted_thinking"', b'"item_reference"')
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_QUOTE, _BRACKET, _NULL = 0x22, 0x5B, 0x6E


_read_messages = msgspec.json.Decoder(list[Message]).decode
_read_prompts = msgspec.json.Decoder(list[Raw]).decode
_read_parts = msgspec.json.Decoder(list[Part]).decode
_read_part = msgspec.json.Decoder(Part).decode
_read_source = msgspec.json.Decoder(Source).decode
_read_tool_calls = msgspec.json.Decoder(list[ToolCall]).decode
_write_text = msgspec.json.Encoder().encode
_COUNT = re.compile(rb"[1-9][0-9]{0,3}")
# A flat array of numbers is one prompt, as token ids.
_SEVERAL_PROMPTS = re.compile(rb'\[\s*["\[]')
_TOKEN_IDS = re.compile(rb"\[\s*(\[)?\s*[0-9]")
# Where JSON text may be cut: before a whole character that no escape is near, or before an escape (the first of a
# row of backslashes begins one) that is not the second half of a pair.
_CUT = re.compile(rb"(?<=[^\\]{6})[^\x80-\xbf]|(?<!\\)\\(?!u[dD][c-fC-F])")


def prompt_of(asked: Asked) -> Prompt:
    """Take out of a body what the model is to read: contents, tool calls and their results, schemas.

    Text stays as it stands in the body, JSON escapes and all; contents are joined by a blank. Up to WHOLE_BYTES it
    is whole; of longer text there are the first HEAD_BYTES, and SAMPLE_BYTES from the middle and the end. Pictures and
    sound never count as text. What cannot be read counts by its size, and nothing is refused here.
    """
    values = asked.members.values
    body = asked.members.raw
    messages = values.get("messages")
    signs = _SIGNS_OF_LIST if messages is None else _SIGNS_OF_CHAT
    found = _Found(len(body) > WHOLE_BYTES and _is_shredded(body, signs))
    for key in _TEXT_KEYS if messages is None else _CHAT_KEYS:
        if key in values:
            found.add_value(values[key])
    if messages is not None:
        found.add_chat(messages)
    tools_bytes = 0
    for key in _TOOL_KEYS:
        if key in values:
            tools_bytes += len(values[key])
    text, text_bytes = _joined(found.pieces)
    if messages is None and found.messages > 2:
        repeated_bytes = sum(len(values[key]) for key in _REPEATED_KEYS if key in values)
        text_bytes += repeated_bytes * (found.messages - 2)
    return Prompt(text, text_bytes, found.messages or 1, found.images, found.audio_bytes, tools_bytes)


def choices(asked: Asked) -> int:
    """Return how many choices an answer must have: `n` for each prompt; what cannot be read counts as one."""
    count = asked.members.text_of("n")
    each = int(count) if count is not None and _COUNT.fullmatch(count) else 1
    prompt = asked.members.text_of("prompt")
    if prompt is None or not _SEVERAL_PROMPTS.match(prompt) or bytes(prompt).count(b",") > MAX_PIECES:
        # No engine takes so many prompts: to list them would hold the loop for an answer that is an error.
        return each
    return each * len(_read_prompts(prompt))


class _Found:
    """What has been found in a body so far.

    Attributes:
        shredded: the body is in too many pieces, so each value is taken as it stands.
        pieces: bodies of JSON strings, not copied.
        messages: number of messages, or of prompts.
        images: number of pictures.
        audio_bytes: of sound, as it stands in the body.
    """

    def __init__(self, shredded: bool) -> None:
        self.shredded = shredded
        self.pieces: list[memoryview] = []
        self.messages = 0
        self.images = 0
        self.audio_bytes = 0

    def add_chat(self, raw: Raw) -> None:
        """Add an array of messages."""
        if self.shredded:
            self._add_odd(raw)
            return
        try:
            messages = _read_messages(raw)
        except _DECODE_ERRORS:
            self._add_odd(raw)
            return
        self.messages += len(messages)
        for message in messages:
            content = message.content
            if content:
                view = memoryview(content)
                if view[0] == _QUOTE:
                    self.pieces.append(view[1:-1])
                else:
                    self._add_content(content)
            if message.tool_calls:
                self._add_tool_calls(message.tool_calls)

    def add_value(self, raw: Raw) -> None:
        """Add one text, a list of texts or items, token ids, or several lists of them."""
        view = memoryview(raw)
        if view[0] != _BRACKET:
            self.messages += view[0] != _NULL
            self._add_content(raw)
            return
        ids = _TOKEN_IDS.match(view)
        if ids is not None:
            self.messages += bytes(view).count(b"[", 1) if ids.group(1) else 1
            self.pieces.append(view[1:-1])
        elif self.shredded:
            self._add_odd(raw)
        else:
            self._add_items(raw)

    def _add_items(self, raw: Raw) -> None:
        try:
            items = _read_prompts(raw)
        except _DECODE_ERRORS:
            self._add_odd(raw)
            return
        self.messages += len(items)
        for item in items:
            self._add_item(item)

    def _add_content(self, raw: Raw) -> None:
        view = memoryview(raw)
        first = view[0]
        if first == _QUOTE:
            self.pieces.append(view[1:-1])
        elif first == _BRACKET:
            try:
                parts = _read_parts(raw)
            except _DECODE_ERRORS:
                self._add_odd(raw)
                return
            for part in parts:
                self._add_part(part)
        elif first != _NULL:
            self._add_item(raw)

    def _add_item(self, raw: Raw) -> None:
        view = memoryview(raw)
        if view[0] == _QUOTE:
            self.pieces.append(view[1:-1])
            return
        try:
            part = _read_part(raw)
        except _DECODE_ERRORS:
            self._add_odd(raw)
            return
        self._add_part(part)

    def _add_part(self, part: Part) -> None:
        if part.text:
            self._add_text(part.text)
            return
        kind = bytes(part.type)
        if kind in _SOUNDS:
            self.audio_bytes += len(part.input_audio) + len(part.audio) + len(part.audio_url)
            return
        said = [raw for raw in (part.content, part.output) if raw]
        for raw in said:
            self._add_content(raw)
        told = [raw for raw in (part.arguments, part.input, part.thinking, part.refusal) if raw]
        for raw in told:
            self._add_text(raw)
        if part.source and self._add_source(part.source):
            return
        if part.image or not (said or told or kind in _NO_PICTURES):
            self.images += 1

    def _add_source(self, raw: Raw) -> bool:
        """Add a document of plain text, and say whether it is one."""
        try:
            source = _read_source(raw)
        except _DECODE_ERRORS:
            return False
        if bytes(source.type) != b'"text"' or not source.data:
            return False
        self._add_text(source.data)
        return True

    def _add_tool_calls(self, raw: Raw) -> None:
        try:
            calls = _read_tool_calls(raw)
        except _DECODE_ERRORS:
            self._add_text(raw)
            return
        for call in calls:
            if call.function is not None:
                for value in (call.function.name, call.function.arguments):
                    if value:
                        self._add_text(value)

    def _add_text(self, raw: Raw) -> None:
        view = memoryview(raw)
        if view[0] == _QUOTE:
            self.pieces.append(view[1:-1])
        elif view[0] != _NULL:
            self._add_odd(raw)

    def _add_odd(self, raw: Raw) -> None:
        """Add JSON that is no string as text; escaped, unless it is too long for that."""
        view = memoryview(raw)
        if len(raw) <= SAMPLE_BYTES:
            view = memoryview(_write_text(bytes(raw).decode(errors="replace")))[1:-1]
        self.pieces.append(view)


def _is_shredded(body: bytes, signs: tuple[tuple[bytes, int], ...]) -> bool:
    """Say whether a body has one of these signs more often than it may; stops at the first too many."""
    for sign, most in signs:
        at = body.find(sign)
        for _ in range(most):
            if at < 0:
                break
            at = body.find(sign, at + 1)
        else:
            return True
    return False


def _joined(pieces: list[memoryview]) -> tuple[bytes, int]:
    """Return the text, or samples of it, and the length of the whole."""
    length = sum(map(len, pieces)) + max(0, len(pieces) - 1)
    if length <= WHOLE_BYTES:
        return b" ".join(pieces), length
    head = _span(pieces, 0, HEAD_BYTES)
    middle = _span(pieces, (length - SAMPLE_BYTES) // 2, (length + SAMPLE_BYTES) // 2)
    end = _span(pieces, length - SAMPLE_BYTES, length)
    return b" ".join((_cut_end(head), _cut_end(_cut_start(middle)), _cut_start(end))), length


def _span(pieces: list[memoryview], start: int, stop: int) -> bytes:
    """Return the bytes from start to stop of the pieces joined by blanks."""
    taken: list[memoryview] = []
    at = 0
    for piece in pieces:
        if at >= stop:
            break
        if at + len(piece) > start:
            taken.append(piece[max(0, start - at) : stop - at])
        at += len(piece) + 1
    return b" ".join(taken)


def _cut_start(text: bytes) -> bytes:
    found = _CUT.search(text, 1, 64)
    return text if found is None else text[found.start() :]


def _cut_end(text: bytes) -> bytes:
    found = _CUT.search(text, max(1, len(text) - 64))
    return text if found is None else text[: found.start()]
