"""Clients that leave in the middle of answers and come back: what they get, what it costs, and who may not."""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from faults.comeback import KEY, Part, Story, http_client, joined, part, send, whole
from faults.mortals import PATHS, Sim, settings_for
from gateway_process import Document, Gateway, eventually

pytestmark = pytest.mark.integration

TOKENS = 30
SHORT = [Story(shape=s, vocabulary=v, tokens=TOKENS) for s in ("chat", "completions") for v in ("ascii", "unicode")]


@pytest.fixture(scope="module")
def sims() -> Iterator[list[Sim]]:
    started = [Sim(), Sim()]
    try:
        for sim in started:
            sim.wait()
        yield started
    finally:
        for sim in started:
            sim.stop()


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with http_client(50) as client:
        yield client


def settings(sims: list[Sim], **sections: Any) -> Document:
    tenants = [{"name": "a", "keys": ["key-A", "key-of-A"]}, {"name": "b", "keys": ["key-B"]}]
    breaker = {"failures": 100_000, "open_s": 1}
    return settings_for(sims, breaker=breaker) | {"resume": {"keys": [KEY]}, "tenants": tenants} | sections


@pytest.fixture(scope="module")
def nodes(sims: list[Sim], module_gateway: Any) -> tuple[Gateway, Gateway]:
    return module_gateway(settings(sims)), module_gateway(settings(sims))


@pytest.fixture(autouse=True)
def well(sims: list[Sim]) -> Iterator[None]:
    yield
    for sim in sims:
        sim.steer("reset")


def at_rest(*gateways: Gateway) -> None:
    for gateway in gateways:
        assert eventually(gateway.idle, 30), "something is still in flight or holds a permit"
        assert "Traceback" not in gateway.log, gateway.log[-3000:]


@pytest.mark.parametrize("story", SHORT, ids=lambda s: f"{s.shape}-{s.vocabulary}")
def test_after_every_event(nodes: tuple[Gateway, Gateway], http: httpx.Client, story: Story) -> None:
    first, second = (node.base_url for node in nodes)

    def come_back_after(events: int) -> tuple[Part, Part]:
        begun = part(http, first, story, events)
        return begun, part(http, second, story, after=begun)

    with ThreadPoolExecutor(8) as pool:
        pairs = list(pool.map(come_back_after, range(1, TOKENS)))
    for begun, rest in pairs:
        assert (begun.headers["x-forebay-resume"], rest.headers["x-forebay-resume"]) == ("1", "1")
        assert story.text.startswith(begun.text) and begun.text
        assert (rest.status, rest.done, rest.error) == (200, True, ""), (begun, rest)
        whole(story, joined(begun, rest))
    at_rest(*nodes)


def test_a_client_may_come_back_again_and_again(nodes: tuple[Gateway, Gateway], http: httpx.Client) -> None:
    story = Story(vocabulary="unicode", tokens=2 * TOKENS)
    parts: list[Part] = []
    for node in itertools.islice(itertools.cycle(nodes), 6):
        parts.append(part(http, node.base_url, story, 4, Part(*_so_far(parts)) if parts else None))
    parts.append(part(http, nodes[0].base_url, story, after=Part(*_so_far(parts))))
    assert [(one.status, one.error) for one in parts] == [(200, "")] * 7
    whole(story, joined(*parts))
    first = parts[0].headers["x-forebay-call-id"]
    rows = [
        nodes[0].close_line(parts[-1].headers["x-request-id"]),
        nodes[1].close_line(parts[1].headers["x-request-id"]),
    ]
    assert [row["resumed_from"] for row in rows] == [first, first]
    assert rows[0]["output_length"] + rows[0]["resumed_tokens"] - rows[1]["resumed_tokens"] > TOKENS


def _so_far(parts: list[Part]) -> tuple[int, httpx.Headers, str, list[Document]]:
    return 200, parts[-1].headers, parts[-1].token, [chunk for one in parts for chunk in one.chunks]


def test_what_is_left_may_be_the_end_alone(nodes: tuple[Gateway, Gateway], http: httpx.Client) -> None:
    story = SHORT[0]
    complete = part(http, nodes[0].base_url, story)
    ids = len(complete.chunks) - (complete.chunks[0]["choices"][0].get("delta", {}).get("role") is not None)
    for left in (0, 1, 2):
        begun = part(http, nodes[0].base_url, story, ids - left)
        rest = part(http, nodes[1].base_url, story, after=begun)
        assert rest.done and len(rest.chunks) <= left + 1, (left, rest)
        whole(story, joined(begun, rest))


def test_its_engine_may_die_too(nodes: tuple[Gateway, Gateway], sims: list[Sim], http: httpx.Client) -> None:
    begun = [part(http, nodes[0].base_url, story, 7) for story in SHORT]
    sims[0].faults({"action": "cut", "after_tokens": 5, "always": True})
    for _ in range(2):
        rests = [part(http, nodes[1].base_url, story, after=b) for story, b in zip(SHORT, begun, strict=True)]
        for story, one, rest in zip(SHORT, begun, rests, strict=True):
            whole(story, joined(one, rest))
        begun = [part(http, nodes[0].base_url, story, 7) for story in SHORT]
    at_rest(*nodes)


Change = Callable[[Part, Document, dict[str, str]], object]


def _no_token(begun: Part, body: Document, headers: dict[str, str]) -> None:
    del headers["Last-Event-ID"]


REFUSED: dict[str, tuple[Change, int, str]] = {
    "another tenant": (lambda p, b, h: h.update(Authorization="Bearer key-B"), 400, "resume_invalid"),
    "another key": (lambda p, b, h: h.update(Authorization="Bearer key-of-A"), 400, "resume_invalid"),
    "no token": (lambda p, b, h: h.update({"Last-Event-ID": "17"}), 400, "resume_invalid"),
    "changed": (lambda p, b, h: h.update({"Last-Event-ID": p.token[:-1] + "!"}), 400, "resume_invalid"),
    "text alone": (_no_token, 400, "resume_invalid"),
    "another text": (lambda p, b, h: b.update(forebay_received=p.text + "!"), 409, "resume_mismatch"),
    "less text": (lambda p, b, h: b.update(forebay_received=p.text[:-1]), 409, "resume_mismatch"),
    "no text": (lambda p, b, h: b.pop("forebay_received"), 409, "resume_mismatch"),
    "another body": (lambda p, b, h: b.update(temperature=1), 409, "resume_mismatch"),
    "a number": (lambda p, b, h: b.update(forebay_received=1), 400, "invalid_value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_may_not(nodes: tuple[Gateway, Gateway], http: httpx.Client, case: str) -> None:
    change, status, code = REFUSED[case]
    story = SHORT[0]
    begun = part(http, nodes[0].base_url, story, 5)
    body = story.body | {"stream": True, "forebay_received": begun.text}
    headers = {"Authorization": "Bearer key-A", "X-Forebay-Resume": "1", "Last-Event-ID": begun.token}
    change(begun, body, headers)
    refused = send(http, nodes[1].base_url + PATHS["chat"], body, headers)
    assert (refused.status, refused.error) == (status, code)
    rest = part(http, nodes[1].base_url, story, after=begun)
    whole(story, joined(begun, rest)), "a refusal uses nothing"


def test_a_token_is_used_once_on_a_node(nodes: tuple[Gateway, Gateway], http: httpx.Client) -> None:
    story = SHORT[0]
    begun = part(http, nodes[0].base_url, story, 5)
    whole(story, joined(begun, part(http, nodes[1].base_url, story, after=begun)))
    again = part(http, nodes[1].base_url, story, after=begun)
    assert (again.status, again.error) == (409, "resume_used")
    with ThreadPoolExecutor(8) as pool:
        rivals = list(pool.map(lambda _: part(http, nodes[0].base_url, story, after=begun), range(8)))
    assert sorted(rival.status for rival in rivals) == [200] + [409] * 7


def test_what_came_to_nothing_uses_nothing(nodes: tuple[Gateway, Gateway], sims: list[Sim], http: httpx.Client) -> None:
    story = SHORT[0]
    begun = part(http, nodes[0].base_url, story, 5)
    for sim in sims:
        sim.faults({"action": "status", "status": 500, "always": True})
    failed = part(http, nodes[1].base_url, story, after=begun)
    assert failed.status == 502 and not failed.chunks, failed
    for sim in sims:
        sim.steer("reset")
    whole(story, joined(begun, part(http, nodes[1].base_url, story, after=begun)))
    at_rest(*nodes)


def test_who_has_not_asked_gets_no_id(nodes: tuple[Gateway, Gateway], http: httpx.Client) -> None:
    for value in (None, "0", "true"):
        headers = {"Authorization": "Bearer key-A"} | ({"X-Forebay-Resume": value} if value else {})
        with http.stream(
            "POST", nodes[0].base_url + PATHS["chat"], json=SHORT[0].body | {"stream": True}, headers=headers
        ) as answer:
            assert b"id: " not in answer.read() and "x-forebay-resume" not in answer.headers


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"logprobs": True}, "logprobs"), ({"presence_penalty": 0.5}, "penalties"), ({"stream": False}, "not_streamed")],
)
def test_what_cannot_be_resumed_says_so_and_simply_answers(
    nodes: tuple[Gateway, Gateway], http: httpx.Client, more: Document, reason: str
) -> None:
    headers = {"Authorization": "Bearer key-A", "X-Forebay-Resume": "1"}
    body = SHORT[0].body | {"stream": True} | more
    if not body["stream"]:
        del body["stream_options"]
    answer = http.post(nodes[0].base_url + PATHS["chat"], json=body, headers=headers)
    assert answer.status_code == 200 and answer.headers["x-forebay-resume"] == f"0; reason={reason}"
    assert "\nid: " not in answer.text


def test_the_official_client_reads_streams_with_ids(nodes: tuple[Gateway, Gateway]) -> None:
    with openai.OpenAI(base_url=f"{nodes[0].base_url}/v1", api_key="key-A", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=TOKENS,
                stream=True,
                extra_headers={"X-Forebay-Resume": "1"},
            )
        )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SHORT[0].text


def test_a_client_that_left_frees_its_engine_at_once(
    nodes: tuple[Gateway, Gateway], sims: list[Sim], http: httpx.Client
) -> None:
    """Case 016 holds for those that may come back as well: nothing is kept for them."""
    story = Story(tokens=20_000)
    begun = part(http, nodes[0].base_url, story, 5)
    assert eventually(lambda: not any(sim.running() for sim in sims), 30), "an engine works on for nobody"
    rest = part(http, nodes[1].base_url, story, 5, after=begun)
    assert story.text.startswith(joined(begun, rest).text) and rest.token
    assert eventually(lambda: not any(sim.running() for sim in sims), 30), "an engine works on for nobody"
    at_rest(*nodes)


def test_the_same_node_after_a_restart(sims: list[Sim], node: Callable[..., Gateway], http: httpx.Client) -> None:
    own = settings(sims) | {"resume": {"ttl_s": 100}}
    before = node(own)
    begun = [part(http, before.base_url, story, 9) for story in SHORT]
    before.process.send_signal(signal.SIGKILL)
    before.stop()
    after = node(own)
    for story, one in zip(SHORT, begun, strict=True):
        whole(story, joined(one, part(http, after.base_url, story, after=one)))
    assert (after.data_dir / "resume-key").stat().st_mode & 0o777 == 0o600


def test_it_is_no_request_more_and_its_prompt_is_paid_for(sims: list[Sim], gateway: Any, http: httpx.Client) -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 60}
    tenants = [{"name": "a", "keys": ["key-A"], "limits": limits}]
    first, second = (gateway(settings(sims, tenants=tenants)) for _ in range(2))
    story = SHORT[0]
    begun = part(http, first.base_url, story, 10)
    rest = part(http, second.base_url, story, after=begun)
    whole(story, joined(begun, rest))
    row = second.close_line(rest.headers["x-request-id"])
    assert (row["input_length"], row["resumed_from"]) == (0, begun.headers["x-forebay-call-id"])
    made = row["output_length"]
    assert made + row["resumed_tokens"] == joined(begun, rest).usages[0]["total_tokens"]
    assert second.metric("forebay_tokens_total", kind="prompt") == 0
    assert second.metric("forebay_tokens_total", kind="completion") == made
    assert part(http, second.base_url, story, 1).status == 200, "the one request of the minute is still there"
    refused = part(http, second.base_url, story, 1)
    assert (refused.status, refused.error) == (429, "requests_limit")


def test_without_the_extra(sims: list[Sim], gateway: Any, http: httpx.Client, tmp_path: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['cryptography'] = None\n", encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    bare = gateway(settings(sims), env={"PYTHONPATH": path})
    told = part(http, bare.base_url, SHORT[0])
    assert (told.status, told.headers["x-forebay-resume"], told.token) == (200, "0; reason=not_installed", "")
    back = part(http, bare.base_url, SHORT[0], after=told._replace(token="x"))
    assert (back.status, back.error) == (503, "resume_unavailable")
    at_rest(bare)
