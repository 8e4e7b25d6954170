"""Cases 001 and 003: how an event stream may be cut and written."""

import openai
import pytest
from cases.pair import Pair
from cases.rawhttp import Response, chat
from notation import DONE, HANG, LAST_CHUNK, STOP, STREAM_HEAD, USAGE, Answer, D, chunk, raw, stream

pytestmark = pytest.mark.integration

EVENTS = (D("a"), D("b"), STOP, USAGE(3, 2), DONE)
WHOLE = b"".join(EVENTS)
ASKED = chat(stream_options={"include_usage": True})


def datas(answer: Response) -> list[str]:
    return [event.data for event in answer.events]


def check_whole(pair: Pair, answer: Response) -> None:
    assert answer.status == 200 and answer.clean
    assert datas(answer) == [event.decode()[6:-2] for event in EVENTS]
    assert answer.text == "ab"


def pieces(cut: list[bytes]) -> Answer:
    return stream(*cut, gap_s=0.001)


def test_case_001_one_byte_per_write(pair: Pair) -> None:
    pair.engine.play(pieces([WHOLE[i : i + 1] for i in range(len(WHOLE))]))
    wire = STREAM_HEAD + chunk(WHOLE) + LAST_CHUNK
    pair.engine.play(raw(*(wire[i : i + 1] for i in range(len(wire))), gap_s=0.001))
    for _ in range(2):
        answer = pair.post(ASKED)
        check_whole(pair, answer)
        row = pair.row(answer)
        assert (row["outcome"], row["input_length"], row["output_length"]) == ("ok", 3, 2)
    pair.gateway.common_ending()


def test_case_001_all_in_one_write(pair: Pair) -> None:
    pair.engine.play(pieces([WHOLE]), raw(STREAM_HEAD + chunk(WHOLE) + LAST_CHUNK))
    for _ in range(2):
        answer = pair.post(ASKED)
        check_whole(pair, answer)
        assert pair.row(answer)["output_length"] == 2
    pair.gateway.common_ending()


def test_case_001_cut_once_at_every_offset(pair: Pair) -> None:
    ids = set()
    for offset in range(1, len(WHOLE)):
        pair.engine.play(pieces([WHOLE[:offset], WHOLE[offset:]]))
        answer = pair.post(ASKED)
        check_whole(pair, answer)
        ids.add(answer.value("x-request-id"))
    assert len(ids) == len(WHOLE) - 1
    rows = pair.gateway.rows(ids)
    assert {(row["outcome"], row["input_length"], row["output_length"]) for row in rows} == {("ok", 3, 2)}
    assert "malformed" not in pair.gateway.log.lower()
    pair.gateway.common_ending()


def test_case_001_one_very_long_line(pair: Pair) -> None:
    pair.engine.play(stream(D("x" * 600_000), STOP, USAGE(3, 2), DONE))
    answer = pair.post(ASKED)
    assert answer.clean
    if answer.stream_error is None:
        assert answer.text == "x" * 600_000 and answer.finish == "stop" and answer.done
    else:
        assert not answer.done, "an error, and then a sentinel that says all is well"
    pair.gateway.common_ending()


def crlf(event: bytes) -> bytes:
    return event.replace(b"\n", b"\r\n")


CRLF_STREAM = (
    b": queued\r\n\r\n",
    b"retry: 3000\r\n\r\n",
    b'id: 7\r\ndata:{"choices":[{"index":0,"delta":{"content":"x"}}]}\r\n\r\n',
    *(crlf(event) for event in (STOP, USAGE(3, 1), DONE)),
)


def test_case_003_crlf_comments_and_control_blocks(pair: Pair) -> None:
    pair.engine.play(stream(*CRLF_STREAM))
    answer = pair.post(chat())
    assert answer.text == "x" and answer.finish == "stop" and answer.done and answer.clean
    lines = answer.body.replace(b"\r\n", b"\n").split(b"\n")
    assert not [line for line in lines if line.startswith((b"data: :", b"id:", b"retry:"))]
    assert not [line for line in lines if line.startswith(b"data:") and not line[5:].strip()]
    row = pair.row(answer)
    assert (row["input_length"], row["output_length"]) == (3, 1)
    pair.gateway.common_ending()


def test_case_003_through_the_official_client(pair: Pair) -> None:
    pair.engine.play(stream(*CRLF_STREAM))
    with openai.OpenAI(base_url=f"{pair.gateway.base_url}/v1", api_key="key-A", max_retries=0) as client:
        with client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        ) as answer:
            text = "".join(piece.choices[0].delta.content or "" for piece in answer if piece.choices)
    assert text == "x"
    pair.gateway.common_ending()


def test_case_003_every_line_ending_cut_between_its_bytes(pair: Pair) -> None:
    whole = b"".join(CRLF_STREAM)
    cut = [piece for part in whole.split(b"\r") for piece in (part, b"\r")][:-1]
    pair.engine.play(stream(*(piece for piece in cut if piece)))
    answer = pair.post(chat())
    assert answer.text == "x" and answer.done
    assert pair.row(answer)["output_length"] == 1
    pair.gateway.common_ending()


def test_a_stream_without_any_end_is_never_a_clean_success(pair: Pair) -> None:
    pair.engine.play(stream(D("a"), D("b"), HANG))
    answer = pair.post(chat(logprobs=True))
    assert answer.stream_error is not None and not answer.done and answer.clean
    pair.gateway.common_ending()
