"""Timed requests to a real engine: streamed completions, each in a thread of its own.

Measures what a client sees, so HTTP is part of it; run it on the engine's host or close to it. The prompts are
random words, so that no two begin alike and no prefix cache helps.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from random import Random
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from forebay.clock import Clock

_WORDS = (
    "river stone cloud maple amber quiet seven north paper wheel garden silver winter orange candle music table green "
    "window mountain letter bridge forest copper summer pencil harbor yellow basket marble"
).split()
_TIMEOUT_S = 300.0
_SHOWN_BYTES = 300


class EngineError(Exception):
    """The engine cannot be measured; says what it answered and what to do."""


class Asked(Struct, frozen=True):
    """One request to be sent.

    Attributes:
        after_s: seconds after the first of its group.
        words: of its prompt: roughly its tokens.
        output_tokens: to be generated, whatever the model would like.
    """

    after_s: float
    words: int
    output_tokens: int


class Timed(Struct, frozen=True):
    """One answer, as its client saw it.

    Attributes:
        sent_s: when the request was sent, on the injected clock.
        prompt_tokens: as the engine counted them.
        token_s: when each token came, on the same clock; never empty.
    """

    sent_s: float
    prompt_tokens: int
    token_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.token_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between tokens."""
        return [after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False)]


class _Choice(Struct):
    text: str | None = None


class _Usage(Struct):
    prompt_tokens: int = 0


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class Engine:
    """An engine's `/v1/completions`.

    Args:
        url: of the engine, with or without `/v1`.
        model: its name there.
        key: for the Authorization header; empty sends none.
        clock: that times are taken from.
        random: makes the prompts.

    Raises:
        ValueError: the URL is none of HTTP.
    """

    def __init__(self, url: str, model: str, key: str, clock: Clock, random: Random) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{url} is no URL of an engine; it should look like http://127.0.0.1:8000")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._clock = clock
        self._random = random

    def together(self, group: Sequence[Asked]) -> list[Timed]:
        """Send requests at their times and return their answers, in the same order.

        Raises:
            EngineError: one was not answered as it should.
        """
        bodies = [self._body(asked) for asked in group]
        start_s = self._clock.now_s()
        with ThreadPoolExecutor(max_workers=len(group)) as threads:
            answers = []
            for asked, body in zip(group, bodies, strict=True):
                time.sleep(max(0.0, start_s + asked.after_s - self._clock.now_s()))
                answers.append(threads.submit(self._stream, body))
            return [answer.result() for answer in answers]

    def one(self, words: int, output_tokens: int) -> Timed:
        """Send one request and wait for it.

        Raises:
            EngineError: it was not answered as it should.
        """
        (timed,) = self.together([Asked(0.0, words, output_tokens)])
        return timed

    def _body(self, asked: Asked) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": " ".join(self._random.choices(_WORDS, k=asked.words)),
                "max_tokens": asked.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    def _stream(self, body: bytes) -> Timed:
        kind = HTTPSConnection if self._tls else HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            sent_s = self._clock.now_s()
            connection.request("POST", self._path, body, self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                said = answer.read(_SHOWN_BYTES).decode(errors="replace")
                raise EngineError(f"the engine answered {answer.status}: {said}")
            return self._read(answer, sent_s)
        except (OSError, HTTPException) as error:
            raise EngineError(f"no answer from {self._host}: {error!r}; is the engine running there?") from None
        finally:
            connection.close()

    def _read(self, answer: HTTPResponse, sent_s: float) -> Timed:
        decoder = msgspec.json.Decoder(_Chunk)
        token_s: list[float] = []
        prompt_tokens = 0
        while line := answer.readline():
            if not line.startswith(b"data:") or line.startswith(b"data: [DONE]"):
                continue
            now_s = self._clock.now_s()
            try:
                chunk = decoder.decode(line[5:])
            except msgspec.MsgspecError as error:
                raise EngineError(f"the engine sent a chunk that is no completion: {error}") from None
            if any(choice.text for choice in chunk.choices):
                token_s.append(now_s)
            if chunk.usage is not None:
                prompt_tokens = chunk.usage.prompt_tokens
        if not token_s or not prompt_tokens:
            raise EngineError("the engine streamed no text or no usage: /v1/completions with include_usage is needed")
        return Timed(sent_s, prompt_tokens, tuple(token_s))
