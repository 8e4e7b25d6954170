"""A sentence of ours at the end of a chat's answer: in the text of its first choice, and nowhere else.

The finish reason and the usage stay the engine's: the client is told apart from what a model said.
"""

import msgspec
from msgspec import Raw

from forebay.wire.members import DuplicateKey, InvalidJson, TooDeep, read_members
from forebay.wire.splice import edit

_list = msgspec.json.Decoder(list[Raw]).decode
_text = msgspec.json.Decoder(str).decode
_FAULTS = (InvalidJson, DuplicateKey, TooDeep, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# An answer that is data or code has no place for a sentence.
_NO_PROSE = ("{", "[", "<", "```")


def with_notice(text: bytes, key: bytes, notice: str) -> bytes:
    """Return an answer, or the event that ends one, with a notice behind its text; as it is where it has no place.

    Args:
        text: JSON of a whole answer, or of the event with the finish reason.
        key: the member of a choice that holds its text: `message` of a whole answer, `delta` of an event.
        notice: to be added.
    """
    name = key.decode()
    try:
        answer = read_members(text)
        choices = _list(answer.values["choices"])
        choice = read_members(bytes(choices[0]))
        said = read_members(choice.text_of(name) or b"{}")
        content = said.text_of("content")
        before = "" if content is None else _text(content)
    except (*_FAULTS, KeyError, IndexError):
        return text
    if name == "message" and (not before or before.lstrip().startswith(_NO_PROSE)):
        return text
    told = edit(said, {"content": msgspec.json.encode(before + notice)})
    ended = edit(choice, {name: told})
    rest = [bytes(other) for other in choices[1:]]
    return edit(answer, {"choices": b"[" + b",".join([ended, *rest]) + b"]"})
