"""A simulated engine over HTTP: the shapes of vLLM, and the official clients."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from engines.sim.caller import QUICK, Caller, Play, chat, until
from msgspec.structs import replace

from forebay.domain import Replica
from forebay.engines.probe import probe
from forebay.engines.sim import tokens

pytestmark = pytest.mark.integration

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def openai_of(caller: Caller) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{caller.server.base_url}/v1", api_key="k", max_retries=0)


def anthropic_of(caller: Caller) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=caller.server.base_url, api_key="k", max_retries=0)


@pytest.mark.parametrize("plain_loop", [False, True], ids=["uvloop", "asyncio"])
def test_openai_chat(play: Play, plain_loop: bool) -> None:
    async def scenario(caller: Caller) -> None:
        async with openai_of(caller) as client:
            whole = await client.chat.completions.create(model="sim", messages=HELLO, max_tokens=3)
            assert whole.choices[0].message.content == "t0 t1 t2"
            assert whole.choices[0].finish_reason == "length"
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 3
            stream = await client.chat.completions.create(
                model="sim", messages=HELLO, max_tokens=3, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "t0 t1 t2"
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "length"]
            assert chunks[-1].usage == whole.usage.model_copy(update={"prompt_tokens_details": None})
            assert len({chunk.id for chunk in chunks}) == 1

    play(scenario, plain_loop=plain_loop)


def test_openai_completions_embeddings_and_models(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        async with openai_of(caller) as client:
            whole = await client.completions.create(model="sim", prompt="hello")
            assert whole.choices[0].text == " ".join(f"t{n}" for n in range(16))
            stream = await client.completions.create(model="sim", prompt="hello", max_tokens=2, stream=True)
            assert [chunk.choices[0].text async for chunk in stream] == ["t0", " t1", ""]
            one = await client.embeddings.create(model="sim", input="a")
            two = await client.embeddings.create(model="sim", input=["b", "a"], encoding_format="float")
            assert one.data[0].embedding == pytest.approx(two.data[1].embedding, abs=1e-6)
            assert sum(value * value for value in two.data[0].embedding) == pytest.approx(1)
            assert [model.id for model in (await client.models.list()).data] == ["sim"]

    play(scenario)


def test_openai_responses(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        async with openai_of(caller) as client:
            whole = await client.responses.create(model="sim", input="hello", max_output_tokens=3)
            assert (whole.output_text, whole.status) == ("t0 t1 t2", "incomplete")
            async with client.responses.stream(model="sim", input="hello", max_output_tokens=3) as stream:
                events = [event.type async for event in stream]
                final = await stream.get_final_response()
            assert events[0] == "response.created"
            assert events.count("response.output_text.delta") == 3
            assert events[-1] == "response.completed"
            assert final.output_text == "t0 t1 t2"

    play(scenario)


def test_anthropic_messages(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        async with anthropic_of(caller) as client:
            whole = await client.messages.create(model="sim", max_tokens=3, messages=HELLO)
            assert whole.content[0].type == "text"
            assert whole.content[0].text == "t0 t1 t2"
            assert whole.stop_reason == "max_tokens"
            async with client.messages.stream(model="sim", max_tokens=3, messages=HELLO) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
            assert text == "t0 t1 t2"
            assert final.usage.output_tokens == 3
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(model="x", max_tokens=3, messages=HELLO)

    play(scenario)


def test_token_ids_let_a_stream_go_on_where_it_was_left(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        first = await caller.chat(stream=True, return_token_ids=True, max_tokens=6, sim_vocabulary="unicode")
        chunks = [json.loads(event) for event in first.events[:-1]]
        prompt = chunks[0]["prompt_token_ids"]
        ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or []]
        assert prompt == tokens.encode("<|user|>hello<|end|><|assistant|>")
        assert len(ids) == 6
        transfer = {"prompt_token_ids": prompt + ids[:4]}
        rest = await caller.chat(stream=True, max_tokens=2, sim_vocabulary="unicode", kv_transfer_params=transfer)
        assert first.text == tokens.decode(ids[:4]) + rest.text
        leak = {"prompt_token_ids": prompt + ids[:3]}
        bad = await caller.chat(stream=True, max_tokens=1, sim_vocabulary="unicode", kv_transfer_params=leak)
        assert "hello" in bad.text

    play(scenario)


def test_chunks_are_written_as_vllm_writes_them(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.chat(stream=True, max_tokens=1)
        assert "content-type: text/event-stream" in raw.head
        assert "transfer-encoding: chunked" in raw.head
        role, token, finish, done = raw.events
        assert b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null' in role
        assert b'"delta":{"content":"t0"},"logprobs":null,"finish_reason":null,"token_ids":null}]}' in token
        assert b'"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null' in finish
        assert b'"system_fingerprint":"vllm-0.32.0-sim"' in finish
        assert done == b"[DONE]"

    play(scenario)


def test_the_reason_may_come_with_the_last_token(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.chat(stream=True, max_tokens=2)
        assert [json.loads(event)["choices"][0]["finish_reason"] for event in raw.events[:-1]] == [
            *(None, None, "length")
        ]
        assert raw.text == "t0 t1"

    play(scenario, spec=replace(QUICK, finish_with_last_token=True))


def test_usage_can_be_in_every_chunk(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        raw = await caller.chat(stream=True, max_tokens=2, stream_options=options)
        usages = [json.loads(event)["usage"]["completion_tokens"] for event in raw.events[:-1]]
        assert usages == [0, 1, 2, 2, 2]
        once = await caller.chat(stream=True, max_tokens=2, stream_options={"include_usage": True})
        assert ["usage" in json.loads(event) for event in once.events[:-1]] == [False, False, False, False, True]

    play(scenario)


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/v1/rerank", {"query": "a", "documents": ["b", "a"]}, {"index": 1, "document": {"text": "a"}}),
        ("/rerank", {"query": "a", "documents": ["b", "a"], "top_n": 1}, {"index": 1}),
        ("/v1/score", {"text_1": "a", "text_2": ["a", "b"]}, {"index": 0, "score": 1.0}),
        ("/score", {"queries": ["a", "b"], "documents": ["b", "b"]}, {"index": 0}),
    ],
)
def test_rerank_and_score(play: Play, path: str, body: dict[str, Any], part: dict[str, Any]) -> None:
    async def scenario(caller: Caller) -> None:
        answer = (await caller.post(path, {"model": "sim", **body})).json
        best = (answer.get("results") or answer["data"])[0]
        assert {key: pytest.approx(best[key]) if key == "score" else best[key] for key in part} == part
        assert answer["usage"]["prompt_tokens"] > 0

    play(scenario)


def test_a_batch_may_be_longer_than_the_model(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.post("/v1/embeddings", {"input": ["a" * 60] * 300})
        assert (raw.status, len(raw.json["data"]), raw.json["usage"]["prompt_tokens"]) == (200, 300, 4500)
        assert (await caller.post("/v1/embeddings", {"input": "a" * 16_384})).status == 400

    play(scenario)


def test_tokenize_and_back(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        made = (await caller.post("/tokenize", {"prompt": "grüße 🐙", "return_token_strs": True})).json
        assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
        assert made["max_model_len"] == QUICK.max_model_len
        assert (await caller.post("/detokenize", {"tokens": made["tokens"]})).json == {"prompt": "grüße 🐙"}
        of_chat = (await caller.post("/tokenize", {"messages": HELLO})).json
        assert tokens.decode(of_chat["tokens"]) == "<|user|>hello<|end|><|assistant|>"
        assert (await caller.post("/detokenize", {"tokens": [3]})).status == 400
        for vocabulary in tokens.VOCABULARIES.values():
            said = (await caller.post("/tokenize", {"prompt": vocabulary.texts(0, 8)})).json
            assert (said["count"], said["tokens"]) == (8, vocabulary.ids(0, 8)), "an answer has the tokens it came in"

    play(scenario)


def test_probes(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        for path in ("/health", "/ping"):
            raw = await caller.get(path)
            assert (raw.status, raw.body) == (200, b"")
        assert (await caller.get("/version")).json == {"version": "0.32.0"}
        assert (await caller.get("/load")).json == {"server_load": 0}
        card = (await caller.get("/v1/models")).json["data"][0]
        assert (card["owned_by"], card["max_model_len"]) == ("vllm", 4096)
        schemas = (await caller.get("/openapi.json")).json["components"]["schemas"]
        assert {"return_token_ids", "priority", "cache_salt"} <= schemas["ChatCompletionRequest"]["properties"].keys()
        page = await caller.get("/metrics")
        assert b"\nvllm:num_requests_running{" in page.body

    play(scenario)


def test_the_product_finds_out_what_it_is(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        async def fetch(replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
            raw = await caller.get(path)
            return raw.status, raw.body

        found = await probe(Replica("sim", caller.server.host, caller.server.port), fetch)
        assert (found.kind, found.version, found.models) == ("vllm", "0.32.0", ("sim",))
        assert (found.max_model_len, found.kv_tokens) == (4096, 8192)
        assert found.token_ids
        assert found.telemetry
        assert found.priority == "lower_first"

    play(scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error_type"),
    [
        ("POST", "/v1/chat/completions", chat(model="x"), 404, "NotFoundError"),
        ("POST", "/v1/chat/completions", chat(max_tokens=5000), 400, "BadRequestError"),
        ("POST", "/v1/chat/completions", b"{", 400, "BadRequestError"),
        ("GET", "/v1/chat/completions", None, 405, "Method Not Allowed"),
        ("POST", "/health", {}, 405, "Method Not Allowed"),
        ("GET", "/generate", None, 404, "NotFoundError"),
        ("GET", "/sim/nothing", None, 404, "NotFoundError"),
    ],
)
def test_errors_have_vllms_shape(play: Play, method: str, path: str, body: Any, status: int, error_type: str) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.send(method, path, body)
        assert raw.status == status
        error = raw.json["error"]
        assert (error["type"], error["code"]) == (error_type, status)
        assert error.keys() == {"message", "type", "param", "code"}

    play(scenario)


def test_a_full_queue_refuses_streams_inside_a_200(play: Play) -> None:
    spec = replace(QUICK, iteration_base_ms=60, max_num_seqs=1, max_num_queued_reqs=1)

    async def staggered(caller: Caller) -> None:
        # One sequence must run before the second may wait.
        first = asyncio.ensure_future(caller.chat(max_tokens=8))
        await until(lambda: caller.server.stats()["sequences_running"] == 1)
        second = asyncio.ensure_future(caller.chat(max_tokens=1))
        await until(lambda: caller.server.stats()["sequences_waiting"] == 1)
        whole, stream = await caller.chat(), await caller.chat(stream=True)
        assert (whole.status, whole.json["error"]["code"]) == (503, 503)
        assert stream.status == 200
        assert json.loads(stream.events[0])["error"]["type"] == "Service Unavailable"
        assert stream.events[1:] == [b"[DONE]"]
        page = (await caller.get("/metrics")).body
        assert b'admission_rejections_total{model_name="sim",reason="max_num_queued_reqs"} 2.0' in page
        assert {(await first).status, (await second).status} == {200}

    play(staggered, spec=spec)


def test_a_caller_that_leaves_frees_its_sequence(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.chat(stream=True, max_tokens=3000, wait_s=0.1)
        assert raw.end == "open"
        await until(lambda: caller.server.stats()["sequences_active"] == 0)
        stats = caller.server.stats()
        assert (stats["sequences_aborted"], stats["kv_blocks_used"], stats["calls_open"]) == (1, 0, 0)
        (seen,) = caller.server.log.entries()
        assert seen.disconnected_s is not None
        assert seen.ended_s is None
        assert 0 < seen.tokens < 3000
        page = (await caller.get("/metrics")).body
        assert b'request_success_total{engine="0",model_name="sim",finished_reason="abort"} 0.0' in page

    play(scenario)


def test_the_pace_is_that_of_the_model(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        answers = await asyncio.gather(*(caller.chat(max_tokens=20) for _ in range(8)))
        passed_s = loop.time() - start_s
        assert {raw.status for raw in answers} == {200}
        # 20 or 21 iterations of 10 ms: all sequences share them.
        assert 0.19 < passed_s < 0.6

    play(scenario, spec=replace(QUICK, iteration_base_ms=10))


def test_the_log_shows_what_the_engine_received(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.post("/v1/completions", {"prompt": "a"}, headers="X-Request-Id: r1\r\nX-Vllm-Priority: 3\r\n")
        await caller.get("/health")
        log = (await caller.get("/sim/log")).json
        assert (log["seen"], log["attempts"]) == (2, 1)
        first, second = log["requests"]
        assert ["X-Request-Id", "r1"] in first["headers"]
        assert first["json"] == {"prompt": "a"}
        assert (first["attempt"], first["fault"], first["status"], first["tokens"]) == (1, "ok", 200, 16)
        assert first["ended_s"] > first["arrived_s"]
        assert (second["path"], second["attempt"]) == ("/health", 0)
        assert len((await caller.get("/sim/log?after=1")).json["requests"]) == 1
        assert (await caller.post("/sim/reset", None)).status == 200
        assert (await caller.get("/sim/log")).json == {"requests": [], "seen": 0, "attempts": 0}

    play(scenario)


def test_the_priority_header_wins_and_must_be_a_number(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.post("/v1/completions", {"prompt": "a"}, headers="X-Vllm-Priority: soon\r\n")
        assert (raw.status, raw.json["error"]["param"]) == (400, "priority")

    play(scenario)


def test_the_request_id_names_the_answer(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.post("/v1/completions", {"prompt": "a"}, headers="X-Request-Id: r1\r\n")
        assert raw.json["id"] == "cmpl-r1"

    play(scenario)


def test_telemetry_that_breaks_alone(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "telemetry", "always": True})
        assert (await caller.get("/metrics")).status == 500
        assert (await caller.get("/health")).status == 200
        assert (await caller.chat()).status == 200
        await caller.faults({"action": "telemetry", "how": "garbage", "always": True})
        assert not (await caller.get("/metrics")).data.startswith(b"HTTP")
        await caller.faults()
        assert (await caller.get("/metrics")).status == 200

    play(scenario)
