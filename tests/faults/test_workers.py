"""Several workers behind one gate: they are one gateway to clients, and each of them may die."""

import os
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from cases.rawhttp import ask, chat, request_bytes
from faults.client import Link
from faults.conftest import Field
from faults.crew import STREAMS, kill, of_process, pid_of, shown, start, streams
from faults.load import CHAT, Load, text_of
from faults.process_view import is_alive
from faults.test_take_over import ended
from gateway_process import Gateway, eventually

pytestmark = pytest.mark.integration


def unharmed(load: Load) -> None:
    assert not load.failures, load.failures[:5]
    assert len(load.samples) == len(load.asked)


def refuses(gateway: Gateway) -> bool:
    """Whether nobody listens: a connection is refused, and does not wait for nobody."""
    try:
        socket.create_connection(gateway.address, timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # it was listened on until this moment
    return False


def at_rest(gateway: Gateway) -> None:
    assert eventually(gateway.idle, 30), "something is still in flight or holds a permit"
    assert "Traceback" not in gateway.log, gateway.log[-3000:]


def test_two_workers_are_one_gateway(field: Field) -> None:
    gateway = start(field)

    def call(number: int) -> str:
        with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="key-A", max_retries=0) as client:
            chunks = client.chat.completions.create(
                model="small", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(call, range(60))) == {text_of(5)}
    assert gateway.metric("forebay_requests_total", model="small", outcome="ok") == 60
    assert gateway.metric("forebay_tokens_total", model="small", kind="completion") == 300
    assert gateway.metric("forebay_time_to_first_token_seconds_count", model="small") == 60
    status = shown(gateway)
    assert {worker["policy_hash"] for worker in status["workers"]} == {status["policy_hash"]}
    assert len({row["call_id"].partition("-")[0] for row in gateway.closes()}) == 2, "one worker served nothing"
    at_rest(gateway)
    assert gateway.stop() == 0


def test_keep_alive_connections_are_shared_out(field: Field) -> None:
    gateway = start(field)
    body = request_bytes("POST", CHAT, chat("small", stream=False, max_tokens=1))
    seen: Counter[str] = Counter()

    async def connect() -> list[Link]:
        links = []
        for _ in range(32):
            link = await Link.open(gateway.address)
            answer = (await link.ask(body)).response
            assert answer.status == 200
            seen[(answer.value("x-forebay-call-id") or "").partition("-")[0]] += 1
            links.append(link)
        return links

    links = field.thread.run(connect())
    # A proxy's connections are not one worker's; 16 each, but for the moments in which a machine does other things.
    assert len(seen) == 2 and min(seen.values()) >= 4, seen
    for link in links:
        field.thread.loop.call_soon_threadsafe(link.close)


def test_all_workers_know_where_a_prompt_is_cached(field: Field) -> None:
    gateway = start(field)
    text = "The same beginning for all. " * 400
    long = chat("small", stream=False, max_tokens=1, messages=[{"role": "user", "content": text}])
    every: list[Link] = []
    links: dict[str, Link] = {}

    async def one_of_each_worker() -> None:
        for _ in range(32):
            every.append(link := await Link.open(gateway.address))
            answer = await link.ask(request_bytes("POST", CHAT, chat("small", stream=False, max_tokens=1)))
            links.setdefault((answer.response.value("x-forebay-call-id") or "").partition("-")[0], link)

    field.thread.run(one_of_each_worker())
    assert len(links) == 2, "one worker served nothing"
    for link in [*links.values()] * 2:
        # With no call left that would speak for the other replica.
        assert eventually(gateway.idle, 30)
        assert field.thread.run(link.ask(request_bytes("POST", CHAT, long))).response.status == 200
    assert eventually(lambda: len(gateway.closes()) == 36, 30)
    replicas = [row["replica"] for row in gateway.closes() if (row["input_length"] or 0) > 1000]
    for link in every:
        field.thread.loop.call_soon_threadsafe(link.close)
    assert len(replicas) == 4 and len(set(replicas)) == 1, replicas


def test_limits_are_those_of_one_process(field: Field) -> None:
    tenants = [
        {"name": "a", "keys": ["key-A"], "limits": {"concurrency": 8}},
        {"name": "b", "keys": ["key-B"], "limits": {"requests_per_minute": 10}},
    ]
    gateway = start(field, tenants=tenants)
    body = chat("paced", stream=False, max_tokens=20)
    with ThreadPoolExecutor(40) as threads:
        for _ in range(2):
            answers = list(threads.map(lambda _: ask(gateway.address, "POST", CHAT, body), range(40)))
            codes = [answer.status for answer in answers]
            # Some may come when the first have ended; never more than eight at once, which the engine sees.
            assert codes.count(200) >= 8 and set(codes) == {200, 429}
        quick = chat("small", stream=False, max_tokens=1)
        answers = list(threads.map(lambda _: ask(gateway.address, "POST", CHAT, quick, key="key-B"), range(40)))
    assert [answer.status for answer in answers].count(200) == 10
    at_rest(gateway)
    most = max(sum(begun <= at_s < over for begun, over in spans(gateway)) for at_s, _ in spans(gateway))
    assert most <= 8, f"{most} at once"


def spans(gateway: Gateway) -> list[tuple[float, float]]:
    """When the calls of tenant `a` were with an engine, in seconds since the epoch; a little shorter than true."""
    rows = [row for row in gateway.closes() if row["tenant"] == "a" and row["status"] == 200]
    return [(row["ts"] - (row["total_ms"] - row["queue_ms"]) / 1000 + 0.01, row["ts"] - 0.01) for row in rows]


def test_a_killed_worker_takes_only_its_own_streams_along(field: Field) -> None:
    tenants = [{"name": "a", "keys": ["key-A"], "limits": {"concurrency": STREAMS + 5}}]
    gateway = start(field, tenants=tenants)
    pid = pid_of(gateway, "worker 0")
    others = pid_of(gateway, "worker 1"), pid_of(gateway, "gate"), gateway.process.pid
    counted: list[float] = []

    def die() -> None:
        # Whose a stream is stands in the journal a moment after it has begun.
        assert eventually(lambda: len({line["call_id"] for line in gateway.journal()}) >= STREAMS, 30)
        kill(pid)
        # Its places are free at once: others come in who would have had none.
        assert eventually(lambda: gateway.metric("forebay_permits_held", tenant="a") < STREAMS, 30)
        counted.append(gateway.metric("forebay_requests_total", outcome="ok"))

    ends = streams(field, gateway, die)
    mine = of_process(gateway, pid)
    harmed = {end.request_id for end in ends if end.fault}
    assert 0 < len(mine) < STREAMS, f"the killed one had {len(mine)} of {STREAMS} streams"
    assert harmed == mine, (harmed ^ mine, [end.fault for end in ends if end.fault][:3])
    assert all(map(is_alive, others))
    assert eventually(lambda: pid_of(gateway, "worker 0") != pid, 30)
    assert eventually(lambda: len(shown(gateway).get("workers", ())) == 2, 30)
    at_rest(gateway)
    assert gateway.metric("forebay_requests_total", outcome="ok") >= counted[0]
    lost = gateway.rows(list(mine), 10)
    assert {row["outcome"] for row in lost} == {"lost"}
    assert not [end for end in streams(field, gateway, lambda: None, prefix="later") if end.fault]


def test_a_killed_gate_harms_no_stream(field: Field) -> None:
    tenants = [{"name": "a", "keys": ["key-A"], "limits": {"concurrency": STREAMS + 1}}]
    gateway = start(field, tenants=tenants)
    pid = pid_of(gateway, "gate")
    quick = chat("small", stream=False, max_tokens=1)
    seen: list[int] = []

    def die() -> None:
        kill(pid)
        began_s = time.monotonic()
        with ThreadPoolExecutor(3) as threads:
            seen.extend(
                answer.status for answer in threads.map(lambda _: ask(gateway.address, "POST", CHAT, quick), range(3))
            )
        assert time.monotonic() - began_s < 30
        # What runs was announced: there is room for one more, and no more.
        assert gateway.metric("forebay_permits_held", tenant="a") <= STREAMS + 1

    ends = streams(field, gateway, die)
    assert not [end for end in ends if end.fault], [end for end in ends if end.fault][:3]
    assert seen.count(200) >= 1 and set(seen) <= {200, 429}, seen
    assert eventually(lambda: pid_of(gateway, "gate") != pid, 30)
    at_rest(gateway)
    assert gateway.metric("forebay_requests_total", model="paced", outcome="ok") == STREAMS


def test_a_stop_lets_all_streams_end(field: Field) -> None:
    gateway = start(field)
    children = [pid_of(gateway, name) for name in ("worker 0", "worker 1", "gate")]

    def stop() -> None:
        gateway.process.terminate()
        assert eventually(lambda: refuses(gateway), 30), "the address is still bound"

    ends = streams(field, gateway, stop)
    assert not [end for end in ends if end.fault], [end for end in ends if end.fault][:3]
    assert ended(gateway.process) == 0
    assert not any(map(is_alive, children))
    assert list((gateway.data_dir / "run").glob("*.sock")) == []


def test_a_killed_supervisor_leaves_no_orphans(field: Field) -> None:
    gateway = start(field)
    children = [pid_of(gateway, name) for name in ("worker 0", "worker 1", "gate")]

    def die() -> None:
        gateway.process.kill()
        gateway.process.wait()
        assert eventually(lambda: refuses(gateway), 30), "the address is still bound"

    ends = streams(field, gateway, die)
    assert not [end for end in ends if end.fault], [end for end in ends if end.fault][:3]
    assert eventually(lambda: not any(map(is_alive, children)), 30)


def test_counters_never_go_back(field: Field) -> None:
    gateway = start(field)
    names = ("forebay_requests_total", "forebay_tokens_total", "forebay_request_duration_seconds_count")
    last = [0.0] * len(names)
    with field.load(gateway.address, streams=4) as load:
        for _ in range(2):
            pid = pid_of(gateway, "worker 1")
            for turn in range(12):
                if turn == 4:
                    kill(pid)
                values = [gateway.metric(name) for name in names]
                assert all(a >= b for a, b in zip(values, last, strict=True)), (values, last)
                last = values
                time.sleep(0.1)
            assert eventually(lambda: len(shown(gateway).get("workers", ())) == 2, 30)
        load.stop()
    at_rest(gateway)


def test_a_take_over_of_several_by_several(field: Field) -> None:
    gateway = start(field)
    with field.load(gateway.address, streams=40) as load:
        assert eventually(lambda: gateway.metric("forebay_requests_in_flight") >= 40, 30)
        assert ended(gateway.replaced(), 30) == 0
        time.sleep(0.5)
        load.stop()
    unharmed(load)
    assert {row["outcome"] for row in gateway.rows(load.asked, 20)} == {"ok"}
    assert eventually(lambda: len(shown(gateway).get("workers") or ()) == 2, 30), "the admin port is not served"
    at_rest(gateway)
    assert ended(gateway.again(), 30) == 3
    assert f"is in use by process {gateway.process.pid}:" in gateway.log
    # Back to a single process, and from there to several again.
    for workers in (1, 2):
        gateway.file.write_text(gateway.file.read_text().replace(f"workers: {3 - workers}", f"workers: {workers}"))
        assert ended(gateway.replaced(), 30) == 0
        assert eventually(lambda: gateway.get("/health/ready")[0] == 200, 30)
    gateway.common_ending("small")


def test_one_that_hangs_holds_up_nobody(field: Field) -> None:
    gateway = start(field)
    pid = pid_of(gateway, "worker 1")
    os.kill(pid, signal.SIGSTOP)
    try:
        # Connections that it had accepted before are its own; new ones are the other's.
        began_s = time.monotonic()
        for _ in range(10):
            assert gateway.get("/metrics")[0] == 200
        assert time.monotonic() - began_s < 60
        assert ask(gateway.address, "POST", CHAT, chat("small", stream=False, max_tokens=1)).status == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    gate = pid_of(gateway, "gate")
    os.kill(gate, signal.SIGSTOP)
    answer = ask(gateway.address, "POST", CHAT, chat("small", stream=False, max_tokens=1))
    if answer.status != 200:
        assert (answer.status, answer.error["code"], answer.value("retry-after")) == (503, "gate_unavailable", "2")
    assert gateway.get("/health/live")[0] == 200 and gateway.get("/metrics")[0] == 200
    # The supervisor hears nothing of it, and kills it.
    assert eventually(lambda: not is_alive(gate), 30)
    assert eventually(lambda: pid_of(gateway, "gate") != gate, 30)
    gateway.common_ending("small")


def test_a_reload_reaches_all(field: Field) -> None:
    gateway = start(field)
    before = shown(gateway)["policy_hash"]
    gateway.file.write_text(gateway.file.read_text().replace("name: b", "name: c"))

    def followed() -> bool:
        status = shown(gateway)
        hashes = {worker["policy_hash"] for worker in status["workers"]} | {status["policy_hash"]}
        return len(hashes) == 1 and before not in hashes

    assert eventually(followed, 30)
    # One that is started while the file is faulty has the last good one.
    good = gateway.file.read_text()
    gateway.file.write_text("pools: 5\n")
    kill(pid_of(gateway, "worker 0"))
    assert eventually(lambda: len(shown(gateway).get("workers", ())) == 2, 30)
    assert followed()
    gateway.file.write_text(good)
    gateway.common_ending("small")
