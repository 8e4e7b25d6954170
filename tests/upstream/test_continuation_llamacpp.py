"""A real llama.cpp, left in the middle of an answer and asked to go on from the text."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.engines import embedded
from forebay.upstream.continuation.chunks import read_piece
from forebay.upstream.continuation.resume import resume_request
from forebay.upstream.continuation.seam import Seam
from forebay.upstream.continuation.shapes import Plan, shape_of
from forebay.upstream.continuation.told import Leg
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire.endpoints import Shape
from forebay.wire.members import read_members
from forebay.wire.sse import DONE, Event, Framer

pytestmark = [pytest.mark.integration, pytest.mark.engine]

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
QUESTION = "Repeat exactly: Grüße 🐙🎉 aus 東京, Zoë."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    missing = embedded.available()
    if missing is not None:
        pytest.skip(f"the embedded engine is not installed: {missing}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = embedded.command(port, threads=1, slots=1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        base = f"http://127.0.0.1:{port}"
        try:
            until_s = time.monotonic() + 60
            while not _is_up(base):
                assert time.monotonic() < until_s, "llama.cpp did not start"
                time.sleep(0.1)
            yield base
        finally:
            process.terminate()
            process.wait(10)


def _is_up(base: str) -> bool:
    try:
        return httpx.get(f"{base}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def events_of(url: str, body: bytes) -> list[Event]:
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60)
    assert answer.status_code == 200, answer.text
    return [event for event in Framer().feed(answer.content) if event.data != DONE]


@pytest.mark.parametrize("shape", ["chat", "completions"])
def test_every_seam_is_clean(url: str, shape: Shape) -> None:
    """The words behind the seam may differ where two are nearly as likely; what is joined may not."""
    asked: dict[str, Any] = {"model": "default", "stream": True, "temperature": 0, "max_tokens": 24}
    asked |= {"stream_options": {"include_usage": True}}
    messages = [{"role": "system", "content": "You are a parrot."}, {"role": "user", "content": QUESTION}]
    body = json.dumps(asked | ({"messages": messages} if shape == "chat" else {"prompt": QUESTION + "\n"})).encode()
    plan = shape_of(read_members(body), shape, True, "llamacpp", False)
    assert isinstance(plan, Plan)
    whole = events_of(url + PATHS[shape], body)
    says = [number for number, event in enumerate(whole) if read_piece(event.data).says]
    for cut in says[:-1:5]:
        transcript = Transcript()
        for event in whole[: cut + 1]:
            transcript.add(event.data)
        told = transcript.told()
        leg = resume_request(body, told, plan)
        assert isinstance(leg, Leg)
        assert leg.mode in ("words", "text")
        seam = Seam(leg, told, transcript, shape)
        joined = [out for event in events_of(url + PATHS[shape], leg.body) for out in seam.join(event)]
        pieces = [read_piece(event.data) for event in joined]
        assert not pieces[0].text.startswith("\ufffd")
        assert not any(piece.role for piece in pieces)
        assert [piece.finished for piece in pieces if piece.finished] in (["stop"], ["length"])
        assert {json.loads(event.data)["id"] for event in joined} == {json.loads(whole[0].data)["id"]}
        usage = json.loads(joined[-1].data)["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] <= 24 + told.text.count("\ufffd")
