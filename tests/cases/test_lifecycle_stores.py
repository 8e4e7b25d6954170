"""Cases 068, 070 and 072: ending well, reloading all or nothing, and stores that are down."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from cases.pair import CHAT, Pair
from cases.rawhttp import Client, Response, ask, chat, request_bytes
from gateway_process import Gateway, document, eventually, pool
from notation import DONE, STOP, USAGE, D, stream
from real_redis import RealRedis

pytestmark = pytest.mark.integration

TOKENS = 40


@pytest.mark.timeout(60)
def test_case_068_a_stop_lets_streams_end(engine: Any, gateway: Any) -> None:
    upstream = engine()
    upstream.default = stream(*(D(f"{i} ") for i in range(TOKENS)), STOP, USAGE(2, TOKENS), DONE, gap_s=0.25)
    running = gateway(document(upstream, shutdown={"drain_delay_s": 4, "grace_s": 60}))
    running.secrets = []

    def whole_stream(i: int) -> Response:
        with Client(running.address, 60) as client:
            client.send(request_bytes("POST", CHAT, chat(), headers=(f"X-Request-Id: drain-{i}",)))
            return client.response()

    with ThreadPoolExecutor(20) as threads:
        streams = [threads.submit(whole_stream, i) for i in range(20)]
        assert eventually(lambda: len(upstream.posts) == 20)
        running.process.terminate()
        assert eventually(lambda: running.get("/health/ready")[0] == 503), "ready until the drain delay is over"
        assert ask(running.address, "POST", CHAT, chat("nope")).status == 404, "refused before the drain delay is over"
        assert eventually(lambda: new_work_is_refused(running))
        assert not any(future.done() for future in streams), "the streams were over before new work was refused"
        answers = [future.result() for future in streams]
    assert running.process.wait(30) == 0
    for answer in answers:
        assert answer.text == "".join(f"{i} " for i in range(TOKENS))
        assert answer.done and answer.clean and answer.finish == "stop"
    rows = running.rows([f"drain-{i}" for i in range(20)])
    assert {(row["outcome"], row["output_length"]) for row in rows} == {("ok", TOKENS)}
    assert "Traceback" not in running.log


def new_work_is_refused(running: Gateway) -> bool:
    try:
        ask(running.address, "POST", CHAT, chat("nope"))
    except OSError:
        return True
    return False


def test_case_068_the_grace_is_a_bound(engine: Any, gateway: Any) -> None:
    upstream = engine()
    upstream.default = stream(*(D(f"{i} ") for i in range(200)), STOP, DONE, gap_s=0.1)
    running = gateway(document(upstream, shutdown={"grace_s": 1}))
    with Client(running.address) as client:
        client.send(request_bytes("POST", CHAT, chat(), headers=("X-Request-Id: cut",)))
        client.read_events(2)
        running.process.terminate()
        answer = client.response()
    assert running.process.wait(30) == 0
    assert not answer.done, "a cut stream was ended as if it were whole"
    assert answer.stream_error is not None or not answer.clean
    assert running.close_line("cut")["outcome"] != "ok"


class Traffic(threading.Thread):
    """Plain requests all the time; nothing but 200 is right."""

    def __init__(self, pair: Pair) -> None:
        super().__init__()
        self.statuses: list[int] = []
        self._over = threading.Event()
        self._pair = pair

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.statuses.append(self._pair.post(chat(stream=False)).status)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def status_of(pair: Pair, model: str) -> int:
    return pair.post(chat(model, stream=False)).status


def policy_hash(pair: Pair) -> bytes:
    return pair.gateway.get("/health/live")[1]


def config_samples(pair: Pair) -> dict[object, float]:
    return {key: value for key, value in pair.gateway.metrics().items() if "config" in key[0] and "age" not in key[0]}


@pytest.fixture
def reloading(engine: Any, gateway: Any) -> Pair:
    upstream = engine()
    return Pair(upstream, gateway(document(upstream)))


def with_models(pair: Pair, *names: str) -> bytes:
    rest = {name: section for name, section in pair.gateway.settings.items() if name != "models"}
    # Models stand last, so that the file can be cut between two of them.
    return yaml.safe_dump({**rest, "models": {name: {"pool": "main"} for name in names}}, sort_keys=False).encode()


@pytest.mark.timeout(90)
def test_case_070_a_bad_save_changes_nothing_and_a_good_one_clears_it(reloading: Pair) -> None:
    pair, file = reloading, reloading.gateway.file
    good = file.read_bytes()
    before = config_samples(pair)
    assert before, "no metric tells whether the configuration is in force"
    with Traffic(pair) as traffic:
        file.write_bytes(good.replace(b"models:", b"models"))
        assert eventually(lambda: config_samples(pair) != before, 30), "the broken file is not seen in the metrics"
        assert "forebay.yaml" in pair.gateway.log, "the broken file is not seen in the log"
        assert eventually(lambda: reload_ok(pair) is False, 30), "the broken file is not seen by the admin"
        assert status_of(pair, "m") == 200
        file.write_bytes(good)
        assert eventually(lambda: gauges(config_samples(pair)) == gauges(before), 30), "the error did not clear"
        assert eventually(lambda: reload_ok(pair) is True, 30), "the error did not clear for the admin"
        file.write_bytes(with_models(pair, "m", "m2"))
        assert eventually(lambda: status_of(pair, "m2") == 200, 30), "stuck after an error"
    assert set(traffic.statuses) == {200}
    pair.gateway.common_ending()


def reload_ok(pair: Pair) -> object:
    """What the admin status says of the latest reload; None while it says nothing."""
    status, body = pair.gateway.admin_get("/api/status")
    return json.loads(body)["reload"]["ok"] if status == 200 else None


def gauges(samples: dict[object, float]) -> dict[object, float]:
    """Leave out counters, which only grow, and times."""
    return {k: v for k, v in samples.items() if not str(k).split("'")[1].endswith(("_total", "_seconds", "_created"))}


@pytest.mark.timeout(90)
def test_case_070_a_file_written_in_two_halves(reloading: Pair) -> None:
    pair, file = reloading, reloading.gateway.file
    whole = with_models(pair, "m", "m2", "m3")
    # Cut right behind m2, so that the first half is a valid file that nobody meant.
    cut = whole.index(b"  m3:")
    seen: set[tuple[int, int]] = set()
    with Traffic(pair) as traffic:
        with file.open("wb") as half:
            half.write(whole[:cut])
            half.flush()
            time.sleep(0.2)
            half.write(whole[cut:])
        deadline = time.monotonic() + 30
        while (200, 200) not in seen and time.monotonic() < deadline:
            seen.add((status_of(pair, "m2"), status_of(pair, "m3")))
    assert (200, 200) in seen, "the new file is not in force after 30 s"
    assert seen <= {(404, 404), (404, 200), (200, 200)}, "half a file was in force"
    assert set(traffic.statuses) == {200}
    pair.gateway.common_ending()


@pytest.mark.timeout(90)
def test_case_070_nothing_of_a_document_with_one_wrong_value(reloading: Pair) -> None:
    pair, file = reloading, reloading.gateway.file
    before = policy_hash(pair)
    wrong = {
        **pair.gateway.settings,
        "models": {"m": {"pool": "main"}, "m2": {"pool": "main"}},
        "pools": {**pair.gateway.settings["pools"], "second": pool(pair.engine) | {"engine": "no-such-engine"}},
    }
    with Traffic(pair) as traffic:
        file.write_text(yaml.safe_dump(wrong, sort_keys=False))
        assert eventually(lambda: "pools.second.engine" in pair.gateway.log, 30), "no fault in the log"
        time.sleep(0.5)
        assert status_of(pair, "m2") == 404
    assert set(traffic.statuses) == {200}
    assert before.split(b"hash")[1][:20] == policy_hash(pair).split(b"hash")[1][:20]
    pair.gateway.common_ending()


def test_a_reload_keeps_streams_and_limits(engine: Any, gateway: Any) -> None:
    upstream = engine()
    tenants = [{"name": "a", "keys": ["key-A"], "limits": {"concurrency": 1}}, {"name": "b", "keys": ["key-B"]}]
    pair = Pair(upstream, gateway(document(upstream, tenants=tenants)))
    upstream.play(stream(*(D(f"{i} ") for i in range(40)), STOP, DONE, gap_s=0.1))
    with Client(pair.gateway.address) as client:
        client.send(request_bytes("POST", CHAT, chat()))
        client.read_events(2)
        pair.gateway.file.write_bytes(with_models(pair, "m", "m2"))
        assert eventually(lambda: pair.post(chat("m2"), key="key-B").status == 200, 30)
        assert pair.post(chat()).status == 429, "the reload forgot what is in flight"
        assert client.response().text == "".join(f"{i} " for i in range(40))
    pair.gateway.common_ending()


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_case_072_a_store_that_is_down_is_no_401(engine: Any, gateway: Any, tmp_path: Path, how: str) -> None:
    """Keys stand in the file of each node, never in the store: every key has its answer, and 401 is a definite no."""
    upstream = engine()
    server = RealRedis(tmp_path)
    down, back = (server.stop, server.start) if how == "refuses" else (server.freeze, server.thaw)
    try:
        down()
        pair = Pair(upstream, gateway(document(upstream, store={"url": server.url})))
        keys = {"key-A": 200, "key-B": 200, "key-X": 401}
        for _ in range(2):
            assert {key: pair.post(chat(stream=False), key=key).status for key in keys} == keys
            back()
            assert eventually(lambda: pair.gateway.metric("forebay_store_up") == 1, 30)
            assert {key: pair.post(chat(stream=False), key=key).status for key in keys} == keys
            down()
            assert eventually(lambda: pair.gateway.metric("forebay_store_up") == 0, 30)
        pair.gateway.common_ending()
    finally:
        server.thaw()
        server.stop()
