"""Requests that are nearly right: a grammar of the usual and the suspicious, then mutations of its bytes."""

import random

METHODS = (b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"get", b"CONNECT", b"BREW", b"")
TARGETS = (
    b"/", b"/v1/chat/completions", b"/v1/models/a%2Fb?x=y&z", b"*", b"http://h/v1/models", b"/a b", b"/\xc3\xa9",
    b"/#f",    b"h:443", b"//", b"",
)  # fmt: skip
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/1.10", b"http/1.1", b"HTTP/1", b"")
LINE_ENDS = (b"\n", b"\r", b"\r\r\n", b"\n\r", b" \r\n", b"\r\n ", b"")
PLAIN = (
    b"Accept: */*", b"X-A: 1", b"x-a: 2", b"X-B:\t b ", b"X-C:", b"Authorization: Bearer k", b"Cookie: a=b; c=d",
    b"X-D: \xe9\xff", b"Connection: keep-alive", b"User-Agent: x/1 (y; z)",
)  # fmt: skip
ODD = (
    b"Connection: close",
    b"Connection: close, keep-alive",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Host: other",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Expect: 200-ok",
    b"Trailer: X-T",
    b"TE: trailers",
    b" X-E: folded",
    b"\tX-E: folded",
    b"X-F : 1",
    b"X G: 1",
    b": 1",
    b"X-H",
    b"X-I: a\x00b",
    b"X-J: a\x01\x7fb",
    b"X-\xe9: 1",
    b"X-K: a\rb",
    b"Content-Length: 0",
    b"Content-Length: 3",
    b"Content-Length: 3, 3",
    b"Content-Length: +3",
    b"Content-Length: 3 3",
    b"Content-Length: 0x3",
    b"Content-Length: -1",
    b"Content-Length:",
    b"Content-Length: 99999999999999999999",
    b"Content-Length : 3",
    b"content_length: 3",
    b"Content-Length: 3\t",
    b"Content-Length: 03",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, gzip",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: chunked, chunked",
    b'Transfer-Encoding: "chunked"',
    b"Transfer_Encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:",
    b"Transfer-Encoding: CHUNKED",
    b"Transfer-Encoding: chunked ",
    b"transfer-encoding: chunked;q=1",
    b"X: y\nHost: z",
)
BODIES = (b"", b"{}", b"abc", b"\x00\xff\r\n", b"0\r\n\r\n", b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n", b"x" * 40)
SIZES = (b"%x", b"%X", b"0%x", b"%x ", b"%x;a=b", b'%x;a="b"', b"%x;\r", b"+%x", b"0x%x", b" %x", b"%xg", b"%x;a\nb")
TRAILERS = (
    b"X-T: 1",
    b"Host: evil",
    b"Content-Length: 5",
    b"Transfer-Encoding: chunked",
    b"Authorization: Bearer evil",
)
BYTES = (
    b"\r",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"0",
    b"1",
    b"f",
    b"\x00",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"/",
    b"\r\n\r\n",
)


def _one_in(dice: random.Random, chances: int) -> bool:
    return dice.random() * chances < 1


def _end(dice: random.Random) -> bytes:
    return dice.choice(LINE_ENDS) if _one_in(dice, 150) else b"\r\n"


def _chunked(dice: random.Random, body: bytes) -> bytes:
    out = []
    while body:
        size = dice.randint(1, len(body))
        piece, body = body[:size], body[size:]
        size_text = (dice.choice(SIZES) if _one_in(dice, 6) else b"%x") % len(piece)
        out.append(size_text + _end(dice) + piece + _end(dice))
    last = dice.choice((b"00", b"0;a", b"0 ", b"-0")) if _one_in(dice, 20) else b"0"
    trailers = [dice.choice(TRAILERS) + _end(dice) for _ in range(dice.randint(1, 2))] if _one_in(dice, 8) else []
    return b"".join((*out, last, _end(dice), *trailers, _end(dice)))


def request(dice: random.Random) -> bytes:
    """Make one request; about half of them are flawless."""
    method = dice.choice(METHODS) if _one_in(dice, 12) else dice.choice(METHODS[:3])
    target = dice.choice(TARGETS) if _one_in(dice, 8) else dice.choice(TARGETS[:3])
    version = dice.choice(VERSIONS) if _one_in(dice, 12) else VERSIONS[0]
    space = dice.choice((b"  ", b"\t", b"")) if _one_in(dice, 60) else b" "
    lines = [] if _one_in(dice, 40) else [b"Host: h"]
    lines += [dice.choice(PLAIN) for _ in range(dice.randint(0, 2))]
    lines += [dice.choice(ODD) for _ in range(dice.randint(1, 2))] if _one_in(dice, 6) else []
    body = b""
    framing = dice.choice((0, 0, 1, 1, 2, 2)) if method in (b"POST", b"PUT") else dice.choice((0, 0, 0, 0, 1, 2))
    if framing == 1:
        body = dice.choice(BODIES)
        lines.append(b"Content-Length: %d" % (len(body) + (dice.choice((-1, 1, 7)) if _one_in(dice, 30) else 0)))
    elif framing == 2:
        body = _chunked(dice, dice.choice(BODIES))
        lines.append(b"Transfer-Encoding: chunked")
    dice.shuffle(lines)
    head = [method + space + target + space + version, *lines]
    return b"".join(line + _end(dice) for line in head) + _end(dice) + body


def _mutated(dice: random.Random, wire: bytes) -> bytes:
    at = dice.randrange(len(wire) + 1)
    kind = dice.randrange(5)
    if kind == 0:
        return wire[:at] + dice.choice(BYTES) + wire[at:]
    if kind == 1:
        return wire[:at] + wire[at + dice.choice((1, 1, 2, 5)) :]
    if kind == 2:
        return wire[:at] + dice.choice(BYTES) + wire[at + 1 :]
    if kind == 3:
        end = min(len(wire), at + dice.choice((1, 2, 10, 40)))
        return wire[:end] + wire[at:end] + wire[end:]
    return wire[:at] + bytes((dice.randrange(256),)) + wire[at + 1 :]


def stream(dice: random.Random) -> bytes:
    """Make the bytes of one connection: one to three requests, mutated or not."""
    wire = b"".join(request(dice) for _ in range(dice.choice((1, 1, 2, 3))))
    if _one_in(dice, 30):
        wire = dice.choice((b"\r\n", b"\n", b"\r\n\r\n", b" ", b"\x00")) + wire
    while _one_in(dice, 3):
        wire = _mutated(dice, wire)
    return wire


def reads(dice: random.Random, wire: bytes) -> list[bytes]:
    """Cut a stream into the reads that a loop would hand over: mostly one."""
    if not _one_in(dice, 4):
        return [wire]
    places = sorted({0, len(wire), *(dice.randrange(len(wire) + 1) for _ in range(dice.randint(1, 3)))})
    return [wire[a:b] for a, b in zip(places, places[1:], strict=False)]
