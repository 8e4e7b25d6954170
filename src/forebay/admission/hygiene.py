r"""Input hygiene: what of a body is likely a mistake, named by rule, and taken out where that loses nothing.

It works on the JSON text itself, so that everything else reaches the engine byte for byte. Slice by slice all
of a body is looked at, at the speed of C; only slices that show something are searched and mended (halves of
characters, control characters). A second pass composes what is not in NFC. Object keys are reported and never
changed: two keys that become equal would be read two ways. A string that is one control character is a
separator (`stop`), and stays. Joiners, direction marks, soft hyphens and all other text are nobody's mistake.
"""

import asyncio
import re
import unicodedata
from json.encoder import encode_basestring_ascii
from typing import Final

from msgspec import Struct

from forebay.errors import Refused
from forebay.policy import Hygiene as Mode
from forebay.wire.members import Members, spans_of

REPAIRABLE: Final = ("lone_surrogate", "control_character", "not_nfc")
RULES: Final = (*REPAIRABLE, "replacement_character", "bom", "zero_width", "bidi_control")
LARGE_BYTES: Final = 65_536
"""Bodies above this size are looked at with turns for the loop in between."""

_SLICE_BYTES: Final = 16_384
# What a slice costs, and what one turn of the loop may: 256 KiB of base64, 64 KiB of text, one slice that is mended.
_PLAIN, _TEXT, _ESCAPED, _CHANGED, _TURN = 1, 4, 8, 16, 16
# A key longer than this is no key that anybody reads.
_MAX_KEY_BYTES: Final = 4096
_SAID: Final = {
    "lone_surrogate": "half a character (a lone surrogate, as cut text has it); send whole characters",
    "control_character": "a control character other than tab and line ends; take it out",
    "not_nfc": "text that is not in Unicode normal form NFC; compose it before you send it",
}
_ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2060\u202a-\u202e\u2066-\u2069\ufeff\ufffd]")
# NFC would replace these by other ideographs; names are written with them.
_COMPATIBILITY_IDEOGRAPHS = re.compile("[\uf900-\ufaff\U0002f800-\U0002fa1f]+")
_LONE = re.compile(rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F])")
# Written in two halves, and of scripts in which something may have to be composed.
_COMPOSABLE_PAIR = re.compile(rb"\\u[dD]8(?:[01]|34)")
# One step over an escape, or something to be mended: 1 half a character, 2 a separator, 3 any other control.
_MENDABLE = re.compile(
    rb"[\\\x7f\xc2](?:(?<=\\)(?:"
    rb"u[dD][89abAB]..\\u[dD][c-fC-F].."
    rb"|(u[dD][89a-fA-F]..)"
    rb"|(f|u000[bBcC]|u0085)"
    rb"|(b|u00(?:0[0-8eEfF]|1.|7[fF]|[89].))"
    rb"|.)|(?<=\xc2)(?:(\x85)|([\x80-\x9f]))|(?<=(\x7f)))",
    re.DOTALL,
)
_REPLACEMENTS: Final = (b"", rb"\ufffd", rb"\n", b"", rb"\n", b"", b"")
# One step over an escape that composes with nothing, or 1: text without quotes and such escapes.
_RUN = re.compile(rb'((?:[^"\\]++|\\u(?!00(?:[01].|22|5[cC]))....)++)|\\u....|\\.', re.DOTALL)
# Within such a text: what may have to be composed, with the letter before it.
_NARROW_RUN = re.compile(rb"[\x20-\x5b\x5d-\x7e]?(?:[\x80-\xff]++|\\u....)++", re.DOTALL)
# Where a text may be cut in two: outside of escapes, before what never belongs to the character before it.
_PLACE_TO_CUT = re.compile(rb"(?<=[^\\]{5})[\x00-\[\]-\x7f\xe4-\xe9]|(?<!\\)\\(?:u00[0-7]|u[4-9]|[^u])", re.DOTALL)
_PLACE_BETWEEN_CHARACTERS = re.compile(rb"[\xc2-\xf4]|(?<!\\)\\u(?![dD][c-fC-F])")
# Looking for a number is several times as fast as for a text of one byte.
_BACKSLASH: Final = 0x5C
_DELETE: Final = 0x7F
_TELLING: Final = (b"u", b"b", b"f")
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+"[ \t\r\n]*+(:?)', re.DOTALL)


class Hygiene(Struct, frozen=True):
    """What is odd about a body.

    Attributes:
        found: names of `RULES`, in that order.
        repaired: the body without what can be repaired; None when nothing was, or was to be, changed.
        fault: the rule that the first thing breaks that `repair` would change; empty without one.
        fault_at: its place in the body, in bytes.
    """

    found: tuple[str, ...] = ()
    repaired: bytes | None = None
    fault: str = ""
    fault_at: int = -1


CLEAN: Final = Hygiene()


def is_clean(body: bytes) -> bool:
    """Say whether it shows at a glance that a body has nothing odd: plain ASCII without a telling escape."""
    return body.isascii() and b"\x7f" not in body and not _has_telling_escape(body)


def inspect(body: bytes, mode: Mode) -> Hygiene:
    """Inspect a body in one go; for those above `LARGE_BYTES` use `inspect_sliced`.

    Args:
        body: JSON in UTF-8; halves of characters apart, which most readers refuse, it should be valid.
        mode: only `repair` makes a repaired body.
    """
    if body.isascii() and _DELETE not in body and not _has_telling_escape(body):
        return CLEAN
    inspection = _Inspection(body, repairs=mode == "repair")
    while inspection.goes_on():
        pass
    return inspection.result()


async def inspect_sliced(body: bytes, mode: Mode) -> Hygiene:
    """Inspect a body of any size, with turns for the loop in between."""
    inspection = _Inspection(body, repairs=mode == "repair")
    unfinished = inspection.goes_on()
    while unfinished:
        await asyncio.sleep(0)
        unfinished = inspection.goes_on()
    return inspection.result()


def refusal(seen: Hygiene, members: Members | None) -> Refused | None:
    """Return the refusal that the mode `reject` means; None when nothing is at fault.

    Args:
        seen: what `inspect` said of this body.
        members: of the same body; None when it could not be read, as with halves of characters.
    """
    if not seen.fault:
        return None
    spans = () if members is None else spans_of(members.raw, members.values).items()
    member = next((key for key, (start, _, end) in spans if start <= seen.fault_at < end), "")[:64]
    message = f"{member or 'the body'} holds {_SAID[seen.fault]}, or ask the operator for `hygiene: repair`"
    return Refused("hygiene_rejected", f"{message} (rule {seen.fault})", param=member or None)


class _Inspection:
    """The two passes over one body, slice by slice."""

    __slots__ = (
        "_at", "_composes", "_edits", "_fault", "_fault_at", "_found", "_in_key", "_repairs", "_string_end", "_text",
    )  # fmt: skip

    def __init__(self, body: bytes, *, repairs: bool) -> None:
        self._text = body
        self._repairs = repairs
        self._composes = False
        self._at = 0
        self._edits: list[tuple[int, int, bytes]] = []
        self._found: set[str] = set()
        self._fault = ""
        self._fault_at = -1
        self._string_end = 0
        self._in_key = False

    def goes_on(self) -> bool:
        """Do a turn's work; say whether more is left."""
        cost = 0
        while cost < _TURN:
            end = _cut(self._text, self._at)
            edits = len(self._edits)
            cost += self._compose(end) if self._composes else self._look(end)
            if len(self._edits) > edits + 1:
                self._fold(edits)
            self._at = end
            if end >= len(self._text) and not self._next_pass():
                return False
        return True

    def result(self) -> Hygiene:
        """Say what was found, when both passes are done."""
        found = tuple([rule for rule in RULES if rule in self._found])
        repaired = self._text if self._repairs and self._fault else None
        return Hygiene(found, repaired, self._fault, self._fault_at)

    def _next_pass(self) -> bool:
        changed = self._repairs and len(self._edits) > 0
        if changed:
            self._text = _edited(self._text, self._edits, 0, len(self._text))
        self._edits = []
        if self._composes or not (changed or "not_nfc" in self._found):
            return False
        # Seen from afar; the second pass knows.
        self._found.discard("not_nfc")
        self._composes = True
        self._at = self._string_end = 0
        return True

    def _look(self, end: int) -> int:
        """Note all that is odd in a slice, and how to mend it; return what that cost."""
        part = self._text[self._at : end]
        escaped = _BACKSLASH in part and _has_telling_escape(part)
        if not escaped and part.isascii() and _DELETE not in part:
            return _ESCAPED if _BACKSLASH in part else _PLAIN
        text = _glance(part) if escaped else part.decode(errors="replace")
        rules = {_rule_of(character) for character in set(_ODD.findall(text))}
        suspected = rules.intersection(REPAIRABLE)
        self._found |= rules - suspected
        if not unicodedata.is_normalized("NFC", text):
            self._found.add("not_nfc")
        if escaped and (b"\\b" in part or b"\\f" in part):
            suspected.add("control_character")
        if escaped and _has_halves(part, _LONE):
            suspected.add("lone_surrogate")
        if suspected and not self._knows(suspected):
            self._mend(end)
            return _CHANGED
        return _ESCAPED if escaped else _TEXT

    def _knows(self, rules: set[str]) -> bool:
        """Say whether more findings of these rules would tell nothing new: where nothing is repaired, one does."""
        return not self._repairs and self._fault != "" and self._found >= rules

    def _mend(self, end: int) -> None:
        """Take halves of characters and control characters out of a slice."""
        text = self._text
        for match in _MENDABLE.finditer(text, self._at, end):
            kind = match.lastindex
            if kind is None:
                continue
            start, stop = match.span()
            rule = "lone_surrogate" if kind == 1 else "control_character"
            self._found.add(rule)
            if not self._is_in_key(start) and (kind == 1 or not _is_alone(text, start, stop)):
                self._edit(rule, start, stop, _REPLACEMENTS[kind])

    def _compose(self, end: int) -> int:
        """Put a slice into NFC; return what that cost."""
        text = self._text
        part = text[self._at : end]
        if (part.isascii() and b"\\u" not in part) or self._knows({"not_nfc"}):
            return _PLAIN
        if unicodedata.is_normalized("NFC", _glance(part)):
            return _TEXT
        for match in _RUN.finditer(text, self._at, end):
            run = match[1]
            if run is None:
                continue
            written = _read(run)
            composed = _composed(written)
            if composed == written:
                continue
            self._found.add("not_nfc")
            start, stop = match.span()
            if not self._is_in_key(start):
                self._edit("not_nfc", start, stop, _rewritten(run, written, composed) if self._repairs else b"")
        return _CHANGED

    def _edit(self, rule: str, start: int, stop: int, replacement: bytes) -> None:
        # In the second pass the text is still the body itself, unless the first one changed, and noted, something.
        if not self._fault:
            self._fault = rule
            self._fault_at = start
        self._edits.append((start, stop, replacement))

    def _fold(self, first: int) -> None:
        """Make one edit of those of a slice: there may be thousands."""
        edits = self._edits[first:]
        start, stop = edits[0][0], edits[-1][1]
        self._edits[first:] = [(start, stop, _edited(self._text, edits, start, stop))]

    def _is_in_key(self, at: int) -> bool:
        if at >= self._string_end:
            rest = _REST_OF_STRING.match(self._text, at, at + _MAX_KEY_BYTES)
            # A string that goes on for longer than a key may be is a value.
            self._string_end = at + _MAX_KEY_BYTES if rest is None else rest.end()
            self._in_key = rest is not None and rest[1] == b":"
        return self._in_key


def _edited(text: bytes, edits: list[tuple[int, int, bytes]], at: int, end: int) -> bytes:
    """Return what stands between two places, edited."""
    pieces: list[bytes] = []
    for start, stop, replacement in edits:
        pieces += (text[at:start], replacement)
        at = stop
    pieces.append(text[at:end])
    return b"".join(pieces)


def _is_alone(text: bytes, start: int, stop: int) -> bool:
    """Say whether a string holds this and nothing else."""
    return 1 < start and stop < len(text) and text[start - 1] == text[stop] == 0x22 and text[start - 2] != _BACKSLASH


def _has_telling_escape(text: bytes) -> bool:
    r"""Say whether there is an escape that may stand for something odd: `\uXXXX`, `\b`, `\f`."""
    at = text.find(b"\\")
    while at >= 0:
        if text[at + 1 : at + 2] in _TELLING:
            return True
        at = text.find(b"\\", at + 2)
    return False


def _cut(text: bytes, at: int) -> int:
    """Return where a slice that begins here ends."""
    wanted = at + _SLICE_BYTES
    if wanted >= len(text):
        return len(text)
    place = _PLACE_TO_CUT.search(text, wanted, wanted + _MAX_KEY_BYTES)
    if place is None:
        # Kilobytes without a space: it may then cost one accent, but never a character.
        place = _PLACE_BETWEEN_CHARACTERS.search(text, wanted, wanted + _SLICE_BYTES)
    return min(wanted + _SLICE_BYTES, len(text)) if place is None else place.start()


def _glance(part: bytes) -> str:
    r"""Return a piece of JSON text with its `\uXXXX` resolved, most characters beyond U+FFFF still in two halves."""
    return _read(part) if _has_halves(part, _COMPOSABLE_PAIR) else _unescaped(part)


def _read(part: bytes) -> str:
    r"""Return a piece of JSON text with its `\uXXXX` resolved, other escapes as they are written."""
    text = _unescaped(part)
    if b"\\ud" in part or b"\\uD" in part:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _has_halves(part: bytes, which: re.Pattern[bytes]) -> bool:
    # Most texts have none, and for that two searches are much faster than the pattern.
    return (b"\\ud" in part or b"\\uD" in part) and which.search(part) is not None


def _unescaped(part: bytes) -> str:
    if b"\\u" not in part:
        return part.decode(errors="replace")
    if not part.isascii():
        part = part.decode(errors="replace").encode("raw_unicode_escape")
    # This codec knows this one escape only, and that behind an escaped backslash there is none.
    return part.decode("raw_unicode_escape", "replace")


def _composed(text: str) -> str:
    """Return a text in NFC, but with its compatibility ideographs."""
    if unicodedata.is_normalized("NFC", text):
        return text
    pieces: list[str] = []
    at = 0
    for kept in _COMPATIBILITY_IDEOGRAPHS.finditer(text):
        pieces += (unicodedata.normalize("NFC", text[at : kept.start()]), kept.group())
        at = kept.end()
    return "".join((*pieces, unicodedata.normalize("NFC", text[at:])))


def _rewritten(run: bytes, written: str, composed: str) -> bytes:
    """Return a run in NFC; what was in NFC before is written as it was."""
    if b"\\u" not in run:
        return composed.encode()
    if run.isascii() and _escaped(written) == run:
        return _escaped(composed)
    edits: list[tuple[int, int, bytes]] = []
    for match in _NARROW_RUN.finditer(run):
        narrow = match.group()
        before = _read(narrow)
        after = _composed(before)
        if after != before:
            edits.append((*match.span(), _escaped(after) if narrow.isascii() else after.encode()))
    return _edited(run, edits, 0, len(run))


def _escaped(text: str) -> bytes:
    return encode_basestring_ascii(text)[1:-1].encode()


def _rule_of(character: str) -> str:
    if character == "\ufffd":
        return "replacement_character"
    if character == "\ufeff":
        return "bom"
    if character < "\u00a0":
        return "control_character"
    return "zero_width" if character in "\u200b\u2060" else "bidi_control"
