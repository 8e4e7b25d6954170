"""The requests that are sent to an engine and through the gateway: deterministic, and short."""

from typing import Any, NamedTuple

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
EMBEDDINGS = "/v1/embeddings"
HELLO: list[Any] = [{"role": "user", "content": "Say hi"}]
TALK: list[Any] = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": [{"type": "text", "text": "Name a colour."}, {"type": "text", "text": "Only one."}]},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another."},
]
UNICODE: list[Any] = [{"role": "user", "content": "请用中文回答：你好吗？😀🐙 \u202e\u0301 é\u0000"}]
TOO_LONG = "word " * 5000
TOOL = {
    "name": "get_weather",
    "description": "Current weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "auto"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
STREAM: dict[str, Any] = {"stream": True}
# vLLM moves it into the usage chunk, which Forebay asks for and takes out again.
FINGERPRINT = frozenset({"system_fingerprint"})
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Case(NamedTuple):
    """One request.

    Attributes:
        id: names the test.
        target: where the engine serves it.
        body: without the model.
        engine: `llamacpp` or `sim`.
        status: that the engine answers with.
        through: where Forebay serves it, when elsewhere.
        lost: names of members that the answer lacks when it comes through Forebay.
    """

    id: str
    target: str
    body: dict[str, Any]
    engine: str = "llamacpp"
    status: int = 200
    through: str = ""
    lost: frozenset[str] = frozenset()

    @property
    def warm(self) -> bool:
        """Whether the state of the engine's prompt cache shows in the answer."""
        return self.status == 200 and self.engine == "llamacpp" and "tokenize" not in self.target


def chat(id: str, *, status: int = 200, **more: Any) -> Case:
    """A chat with llama.cpp."""
    body = {"messages": HELLO, "max_tokens": 6, "temperature": 0, "seed": 1, **more}
    return Case(f"chat-{id}", CHAT, body, status=status)


def complete(id: str, *, status: int = 200, **more: Any) -> Case:
    """A completion by llama.cpp."""
    body = {"prompt": "The sky is", "max_tokens": 6, "temperature": 0, **more}
    return Case(f"completions-{id}", COMPLETIONS, body, status=status)


def respond(id: str, *, status: int = 200, **more: Any) -> Case:
    """A response by llama.cpp."""
    body = {"input": "Say hi", "max_output_tokens": 6, "temperature": 0, **more}
    return Case(f"responses-{id}", RESPONSES, body, status=status)


def message(id: str, *, status: int = 200, **more: Any) -> Case:
    """A message by llama.cpp."""
    body = {"messages": HELLO, "max_tokens": 6, "temperature": 0, **more}
    return Case(f"messages-{id}", MESSAGES, body, status=status)


def sim(
    id: str, target: str, *, status: int = 200, through: str = "", lost: frozenset[str] = frozenset(), **body: Any
) -> Case:
    """A request to the simulated engine."""
    return Case(f"sim-{id}", target, body, "sim", status, through, lost)


CASES = [
    chat("plain"),
    chat("talk", messages=TALK),
    chat("unicode", messages=UNICODE, max_tokens=16),
    chat("one-choice", n=1),
    chat("two-choices", n=2),
    chat("sampled", temperature=0.9, top_p=0.8),
    chat("at-once", max_tokens=0),
    chat("newer-limit", max_completion_tokens=3),
    chat("to-the-end", max_tokens=48, stop=["."]),
    chat("stop-text", stop=" to", max_tokens=12),
    chat("tools", **TOOLS),
    chat("json-object", response_format={"type": "json_object"}, max_tokens=24),
    chat("json-schema", response_format=JSON_SCHEMA, max_tokens=24),
    chat("logprobs", logprobs=True, top_logprobs=3, max_tokens=3),
    chat("unknown-members", foo={"model": "x", "stream": [1.0, 1e2, -0]}, metadata={"model": "default"}),
    chat("not-streamed", stream=False, stream_options=None),
    chat("stream", **STREAM),
    chat("stream-usage", **USAGE),
    chat("stream-without-usage", stream=True, stream_options={"include_usage": False}),
    chat("stream-talk", messages=TALK, **USAGE),
    chat("stream-unicode", messages=UNICODE, max_tokens=24, **STREAM),
    chat("stream-stop", stop=[" to", "."], max_tokens=24, **STREAM),
    chat("stream-tools", **TOOLS, **STREAM),
    chat("stream-json-schema", response_format=JSON_SCHEMA, max_tokens=24, **STREAM),
    chat("stream-logprobs", logprobs=True, top_logprobs=2, max_tokens=3, **STREAM),
    chat("stream-timings", timings_per_token=True, **STREAM),
    chat("stream-progress", return_progress=True, **STREAM),
    chat("stream-at-once", max_tokens=0, **STREAM),
    chat("bad-temperature", status=400, temperature="hot"),
    chat("bad-format", status=400, response_format={"type": "nonsense"}),
    chat("bad-message", status=400, messages=[5]),
    chat("bad-content", status=400, messages=[{"role": "user"}]),
    chat("overflow", status=400, messages=[{"role": "user", "content": TOO_LONG}]),
    chat("stream-overflow", status=400, messages=[{"role": "user", "content": TOO_LONG}], **STREAM),
    complete("plain"),
    complete("two-prompts", prompt=["The sky is", "A dog"]),
    complete("token-ids", prompt=[504, 6376, 314]),
    complete("logprobs", logprobs=2),
    complete("stream", **STREAM),
    complete("stream-usage", **USAGE),
    complete("stream-unicode", prompt="😀 世界", max_tokens=16, **STREAM),
    complete("no-prompt", status=400, prompt=None),
    complete("overflow", status=400, prompt=TOO_LONG, **STREAM),
    respond("plain"),
    respond("talk", input=HELLO, instructions="Be terse.", metadata={"model": "default"}),
    respond("stream", **STREAM),
    respond("stream-unicode", input=UNICODE, max_output_tokens=16, **STREAM),
    respond("no-input", status=400, input=None),
    respond("overflow", status=400, input=TOO_LONG, **STREAM),
    message("plain"),
    message("system", system="Be terse.", stop_sequences=[" you"]),
    message("tools", tools=[{"name": "f", "description": "d", "input_schema": SCHEMA}]),
    message("stream", **STREAM),
    message("stream-unicode", messages=UNICODE, max_tokens=16, **STREAM),
    message("stream-stop", stop_sequences=[" you"], **STREAM),
    message("overflow", status=400, messages=[{"role": "user", "content": TOO_LONG}], **STREAM),
    Case("embeddings-plain", EMBEDDINGS, {"input": "The sky is 蓝色 😀"}),
    Case("embeddings-several", EMBEDDINGS, {"input": ["The sky is", "a dog"], "encoding_format": "base64"}),
    Case("embeddings-token-ids", EMBEDDINGS, {"input": [504, 6376, 314]}),
    Case("embeddings-no-input", EMBEDDINGS, {}, status=400),
    Case("embeddings-too-long", EMBEDDINGS, {"input": "word " * 600}, status=500),
    Case("tokenize-plain", "/tokenize", {"content": "hello 世界 😀"}),
    Case("tokenize-pieces", "/tokenize", {"content": "hello 世界 😀", "with_pieces": True}, through="/v1/tokenize"),
    Case("detokenize-plain", "/detokenize", {"tokens": [28120, 905]}),
    Case("detokenize-other-path", "/detokenize", {"tokens": [28120, 905]}, through="/v1/detokenize"),
    sim("chat", CHAT, messages=UNICODE, max_tokens=5),
    sim("chat-stream", CHAT, lost=FINGERPRINT, messages=HELLO, max_tokens=5, **STREAM),
    sim("chat-stream-usage", CHAT, messages=HELLO, max_tokens=5, **USAGE),
    sim("chat-stream-no-usage", CHAT, lost=FINGERPRINT, messages=HELLO, max_tokens=5, stream=True, stream_options={}),
    sim("chat-stream-unicode", CHAT, lost=FINGERPRINT, messages=HELLO, sim_vocabulary="unicode", **STREAM),
    sim("chat-bad-message", CHAT, status=400, messages=[5]),
    sim("chat-overflow", CHAT, status=400, messages=HELLO, max_tokens=200_000),
    sim("completions", COMPLETIONS, prompt="The sky", max_tokens=5),
    sim("completions-stream", COMPLETIONS, lost=FINGERPRINT, prompt="The sky", max_tokens=5, **STREAM),
    sim("completions-stream-usage", COMPLETIONS, prompt="The sky", max_tokens=5, **USAGE),
    sim("responses", RESPONSES, input="Say hi", max_output_tokens=5),
    sim("responses-stream", RESPONSES, input="Say hi", max_output_tokens=5, **STREAM),
    sim("messages", MESSAGES, messages=HELLO, max_tokens=5),
    sim("messages-stream", MESSAGES, messages=HELLO, max_tokens=5, **STREAM),
    sim("embeddings", EMBEDDINGS, input=["a", "b"]),
    sim("rerank", "/v1/rerank", query="sky", documents=["blue 蓝", "a dog", "sky"]),
    sim("rerank-top", "/rerank", query="sky", documents=["blue", "a dog", "sky"], top_n=1),
    sim("rerank-v2", "/v2/rerank", query="sky", documents=["blue", "a dog"], through="/rerank"),
    sim("rerank-no-documents", "/v1/rerank", status=400, query="sky"),
    sim("score", "/v1/score", text_1="sky", text_2=["blue", "天空"]),
    sim("score-short-path", "/score", text_1=["a", "b"], text_2=["a", "c"]),
    sim("score-uneven", "/score", status=400, text_1=["a", "b"], text_2=["a", "b", "c"], through="/v1/score"),
    sim("tokenize", "/tokenize", messages=HELLO, return_token_strs=True),
    sim("detokenize", "/detokenize", tokens=[1 << 20, (1 << 20) + 1]),
]
