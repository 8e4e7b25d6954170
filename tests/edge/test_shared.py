"""One answer for several clients: everybody gets all of it, nobody waits for the slow, work ends with the last."""

import asyncio
from typing import Any

import pytest
from edge.client_side import DATE, FakeTransport, read_answers
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge import shared
from forebay.edge.reply import Reply
from forebay.edge.shared import Shared, Stock

STREAM = ((b"content-type", b"text/event-stream"),)


class Client:
    """A real reply on a transport without a network."""

    def __init__(self, *, chunked: bool = True) -> None:
        self.transport = FakeTransport()
        self.reply = Reply(self.transport, lambda _: None, DATE, chunked, True, False)  # type: ignore[arg-type]
        self.firsts = 0

    def first(self) -> None:
        self.firsts += 1

    @property
    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        (answer,) = read_answers(self.transport.sent)
        return answer


class Engine:
    """Who makes an answer, as far as it hears of the clients."""

    def __init__(self, answer: Shared) -> None:
        answer.listener = self
        self.gone = 0
        self.paces: list[bool] = []

    def client_gone(self) -> None:
        self.gone += 1

    def client_ready(self, ready: bool) -> None:
        self.paces.append(ready)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def make(*clients: Client, linger_s: float = 0.0, stock: Stock | None = None) -> Shared:
    answer = Shared("chat", stock or Stock(), linger_s, None)
    for client in clients:
        answer.board(client.reply, None, client.first)
    return answer


PARTS = st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=30)), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(PARTS, st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5))
def test_everybody_gets_the_same_whenever_he_comes(
    parts: list[tuple[bool, bytes]], comers: list[tuple[int, bool]]
) -> None:
    """Before the head, between two parts, behind the end; with and without chunks."""
    clients = [(at, Client(chunked=chunked)) for at, chunked in [(0, True), *comers]]
    answer = make()

    def come(step: int) -> None:
        for at, client in clients:
            if at == step:
                answer.board(client.reply, None, client.first)

    come(0)
    answer.extra = b"x-forebay-pool: main\r\n"
    answer.head(200, STREAM, None)
    for place, (framed, data) in enumerate(parts):
        come(place + 1)
        if framed:
            answer.pass_chunk(chunk(data))
        else:
            answer.write(data)
    come(len(parts) + 1)
    answer.end()
    for step in range(len(parts) + 2, 10):
        come(step)
    body = b"".join(data for _, data in parts)
    said = answer.said()
    assert said is not None and said.body == body
    answer.close()
    for at, client in clients:
        if at <= 9:
            status, headers, seen = client.answer
            assert (status, seen, headers[b"x-forebay-pool"]) == (200, body, b"main")
            assert client.firsts == any(not data.startswith(b":") for _, data in parts)


def test_a_whole_answer_has_its_length_for_all() -> None:
    clients = [Client(), Client(chunked=False)]
    answer = make(*clients)
    answer.whole(429, ((b"retry-after", b"1"),), b"{}")
    for client in clients:
        assert client.answer == (429, {b"date": DATE, b"retry-after": b"1", b"content-length": b"2"}, b"{}")


def test_a_comment_is_no_first_content() -> None:
    client = Client()
    answer = make(client)
    answer.head(200, STREAM, None)
    answer.write(b": keep-alive\n\n")
    assert client.firsts == 0
    answer.write(b"data: {}\n\n")
    answer.write(b"data: {}\n\n")
    assert client.firsts == 1


def test_the_engine_is_slowed_down_only_while_all_are_full() -> None:
    one, other = Client(), Client()
    answer = make(one, other)
    engine = Engine(answer)
    one.reply.client_ready(False)
    assert not answer.blocked and engine.paces == []
    other.reply.client_ready(False)
    assert answer.blocked and engine.paces == [False]
    one.reply.client_ready(True)
    assert not answer.blocked and engine.paces == [False, True]
    other.reply.client_ready(True)
    one.reply.client_ready(False)
    other.reply.client_gone()
    # The one that is left is full.
    assert answer.blocked and engine.paces == [False, True, False]
    answer.board(Client().reply)
    assert engine.paces[-1] is True


def test_who_falls_behind_is_cut_off_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ANSWER_BYTES", 100)
    slow, quick = Client(), Client()
    answer = make(slow, quick)
    answer.head(200, STREAM, None)
    slow.reply.client_ready(False)
    answer.write(b"x" * 60)
    slow.reply.client_ready(True)
    slow.reply.client_ready(False)
    answer.write(b"y" * 60)
    assert not slow.reply.ended
    answer.pass_chunk(chunk(b"z" * 60))
    assert slow.reply.ended and answer.clients == 1
    answer.write(b"end")
    answer.end()
    assert quick.answer[2] == b"x" * 60 + b"y" * 60 + b"z" * 60 + b"end"
    behind, _, error = slow.answer[2].partition(b"data: ")
    assert behind == b"x" * 60 + b"y" * 60 + b"z" * 60 and b"client_too_slow" in error


def test_the_only_client_is_never_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ANSWER_BYTES", 100)
    client = Client()
    answer = make(client)
    answer.head(200, STREAM, None)
    client.reply.client_ready(False)
    answer.write(b"x" * 500)
    assert not client.reply.ended


def test_nobody_joins_what_is_not_kept_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ANSWER_BYTES", 100)
    stock, client = Stock(), Client()
    answer = make(client, stock=stock)
    answer.head(200, STREAM, None)
    answer.write(b"x" * 100)
    assert answer.open and stock.held_bytes == 100
    answer.write(b"y")
    assert not answer.open and stock.held_bytes == 0 and answer.said() is None
    answer.end()
    answer.close()
    assert client.answer[2] == b"x" * 100 + b"y" and stock.held_bytes == 0


def test_all_answers_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "MAX_ALL_BYTES", 100)
    stock = Stock()
    first, second = make(Client(), stock=stock), make(Client(), stock=stock)
    for answer in (first, second):
        answer.head(200, STREAM, None)
        answer.write(b"x" * 60)
    assert first.open and not second.open and stock.held_bytes == 60
    first.end()
    first.close()
    assert stock.held_bytes == 0


def test_so_many_clients_and_no_more() -> None:
    answer = make(*[Client() for _ in range(shared.MAX_CLIENTS)])
    assert not answer.open


def test_the_engine_hears_of_the_last_one_that_leaves() -> None:
    clients = [Client(), Client()]
    answer = make(*clients)
    engine = Engine(answer)
    assert clients[0].reply.client_gone()
    assert engine.gone == 0 and not answer.gone
    assert clients[1].reply.client_gone()
    assert engine.gone == 1 and answer.gone and not answer.open


def test_whoever_waits_for_an_engine_is_cancelled_with_the_last_one() -> None:
    async def run() -> tuple[bool, list[Any]]:
        loop = asyncio.get_running_loop()
        client, over = Client(), loop.create_future()
        work = loop.create_task(asyncio.sleep(60))
        answer = Shared("chat", Stock(), 0.0, work)
        answer.board(client.reply, over)
        await asyncio.sleep(0)
        client.reply.client_gone()
        await asyncio.wait((work,))
        answer.close()
        return work.cancelled(), [over.result(), client.transport.aborted]

    assert asyncio.run(run()) == (True, ["left", False])


@pytest.mark.parametrize("comes_again", [False, True])
def test_work_that_lingers_waits_for_who_comes_again(comes_again: bool) -> None:
    async def run() -> int:
        first, second = Client(), Client()
        answer = make(first, linger_s=0.02)
        engine = Engine(answer)
        first.reply.client_gone()
        assert engine.gone == 0 and answer.open and not answer.blocked
        if comes_again:
            answer.board(second.reply)
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.05, done.set_result, None)
        await done
        answer.close()
        return engine.gone

    assert asyncio.run(run()) == (0 if comes_again else 1)


def test_an_answer_that_cannot_be_finished_is_cut_for_all() -> None:
    clients = [Client(), Client()]
    answer = make(*clients)
    answer.head(200, STREAM, None)
    answer.write(b"x")
    answer.close()
    assert all(client.transport.aborted for client in clients)


def test_nobody_joins_an_answer_that_was_cut() -> None:
    answer = make(Client())
    answer.head(200, STREAM, None)
    answer.write(b"half of it")
    answer.abort()
    assert not answer.open, "who came now would take half of it for all"
