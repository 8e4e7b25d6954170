"""Read a generation request as vLLM does: four endpoints, one `Call`.

Fields that a simulator has no use for are accepted and ignored, as long as their shape is no lie about what
comes back (`n` above 1 and `echo` are refused).
"""

from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from forebay.engines.sim import tokens
from forebay.engines.sim.errors import SimError
from forebay.engines.sim.spec import SimSpec, VocabularyName
from forebay.engines.sim.tokens import VOCABULARIES, Continuation, Vocabulary

Endpoint = Literal["chat", "completions", "responses", "messages"]

DEFAULT_MAX_TOKENS = 16


class Call(Struct, frozen=True, kw_only=True, dict=True):
    """One request to generate.

    Attributes:
        prompt: as text, or as the token ids that the caller gave.
        max_tokens: tokens to generate.
        priority: of the body; the header may override it.
        continuation: where the answer begins.
        has_prefix: the caller gave the beginning of the answer, by message or by ids.
    """

    endpoint: Endpoint
    model: str
    prompt: str | list[int]
    max_tokens: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    priority: int = 0
    vocabulary: Vocabulary = VOCABULARIES["ascii"]
    continuation: Continuation = Continuation()
    has_prefix: bool = False

    @cached_property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return tokens.count(self.prompt) if isinstance(self.prompt, str) else len(self.prompt)

    def prompt_ids(self) -> list[int]:
        """Return the ids of the prompt."""
        return tokens.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt

    def ids(self, first: int, stop: int) -> list[int]:
        """Return the ids of the generated tokens first..stop-1, counted from 0 in this call."""
        return self.vocabulary.ids(self.continuation.start + first, self.continuation.start + stop)

    def text(self, first: int, stop: int) -> str:
        """Return what the caller sees of the generated tokens first..stop-1.

        Raises:
            ValueError: the prompt has ids of no vocabulary, and its text is due.
        """
        start = self.continuation.start
        text = self.vocabulary.texts(start + first, start + stop)
        if first or not (self.continuation.skip_chars or self.continuation.leads_with_prompt):
            return text
        if self.continuation.leads_with_prompt:
            text = tokens.decode(self.prompt_ids()) + text
        return text[self.continuation.skip_chars :]


class Message(Struct):
    """One message of a conversation, as far as its text goes."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class _StreamOptions(Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Transfer(Struct):
    prompt_token_ids: list[int] | None = None


class _Body(Struct, kw_only=True):
    """What all four endpoints share."""

    model: str | None = None
    stream: bool | None = False
    n: int | None = 1
    priority: int = 0
    sim_vocabulary: VocabularyName | None = None


class _OpenAiBody(_Body, kw_only=True):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = False
    echo: bool | None = False


class _ChatBody(_OpenAiBody, kw_only=True):
    messages: list[Message]
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    kv_transfer_params: _Transfer | None = None


class _CompletionsBody(_OpenAiBody, kw_only=True):
    prompt: Any


class _ResponsesBody(_Body, kw_only=True):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None


class _MessagesBody(_Body, kw_only=True):
    messages: list[Message]
    max_tokens: int
    system: str | list[dict[str, Any]] | None = None


def read(endpoint: Endpoint, body: bytes, spec: SimSpec) -> Call:
    """Read a request.

    Raises:
        SimError: 400 for a malformed or too long one, 404 for a model that is not served.
    """
    call = _READERS[endpoint](body, spec)
    if call.prompt_tokens + call.max_tokens > spec.max_model_len:
        raise SimError(
            400,
            f"This model's maximum context length is {spec.max_model_len} tokens. However, you requested "
            f"{call.max_tokens} output tokens and your prompt contains {call.prompt_tokens} input tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
            param="input_tokens",
        )
    return call


def served(model: str | None, spec: SimSpec) -> str:
    """Return the model to use: the named one, or the only one.

    Raises:
        SimError: 404, it is not served.
    """
    if not model:
        return spec.models[0]
    if model not in spec.models:
        raise SimError(404, f"The model `{model}` does not exist.", param="model")
    return model


_B = TypeVar("_B")


def decoded(body: bytes, shape: type[_B]) -> _B:
    """Decode a JSON body.

    Raises:
        SimError: 400, it is no JSON or has another shape.
    """
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SimError(400, f"the request body cannot be read: {error}") from None


def text_of(content: str | list[dict[str, Any]] | None) -> str:
    """Return the text of a message's content; parts that are no text count for nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(str(part.get("text", "")) for part in content)


def rendered(messages: list[tuple[str, str]], continues: bool, generation_prompt: bool = True) -> str:
    """Return the prompt of a conversation: a small chat template of our own.

    Args:
        messages: role and text.
        continues: the last message is left open.
        generation_prompt: the head of the answer follows; not read when the last message is left open.
    """
    text = "".join(f"<|{role}|>{content}<|end|>" for role, content in messages)
    if continues:
        return text.removesuffix("<|end|>")
    return text + "<|assistant|>" if generation_prompt else text


def _chat(body: bytes, spec: SimSpec) -> Call:
    fields = decoded(body, _ChatBody)
    if not fields.messages:
        raise SimError(400, "messages must hold at least one message", param="messages")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise SimError(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    messages = [(message.role, text_of(message.content)) for message in fields.messages]
    role, final = messages[-1]
    continues = fields.continue_final_message and role == "assistant"
    given = fields.kv_transfer_params.prompt_token_ids if fields.kv_transfer_params else None
    vocabulary = _vocabulary(fields, spec)
    if given:
        continuation = vocabulary.continued_ids(given)
    else:
        continuation = vocabulary.continued_text(final) if continues else Continuation()
    prompt = given or rendered(messages, fields.continue_final_message, fields.add_generation_prompt)
    return _openai_call("chat", fields, spec, prompt, continuation, continues or bool(continuation.start))


def _completions(body: bytes, spec: SimSpec) -> Call:
    fields = decoded(body, _CompletionsBody)
    prompt = fields.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt):
        continuation = _vocabulary(fields, spec).continued_ids(prompt)
    elif isinstance(prompt, str):
        continuation = _vocabulary(fields, spec).continued_end(prompt)
    else:
        raise SimError(400, "prompt must be a text or a list of token ids; one prompt in a call", param="prompt")
    return _openai_call("completions", fields, spec, prompt, continuation, bool(continuation.start))


def _openai_call(
    endpoint: Endpoint,
    fields: _OpenAiBody,
    spec: SimSpec,
    prompt: str | list[int],
    continuation: Continuation,
    has_prefix: bool,
) -> Call:
    if fields.echo:
        raise SimError(400, "the simulated engine does not echo prompts", param="echo")
    options = fields.stream_options or _StreamOptions()
    if fields.stream_options and not fields.stream:
        raise SimError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    if fields.max_completion_tokens is not None:
        asked = fields.max_completion_tokens
    else:
        asked = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    return Call(
        endpoint=endpoint,
        model=_checked(fields, spec),
        prompt=prompt,
        max_tokens=_positive(asked, "max_tokens"),
        stream=bool(fields.stream),
        include_usage=bool(options.include_usage),
        # vLLM sends no usage at all unless include_usage asks for it.
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(fields.return_token_ids),
        priority=fields.priority,
        vocabulary=_vocabulary(fields, spec),
        continuation=continuation,
        has_prefix=has_prefix,
    )


def _responses(body: bytes, spec: SimSpec) -> Call:
    fields = decoded(body, _ResponsesBody)
    messages = [("system", fields.instructions)] if fields.instructions else []
    if isinstance(fields.input, str):
        messages.append(("user", fields.input))
    else:
        messages += [(str(item.get("role", "user")), _item_text(item)) for item in fields.input]
    asked = DEFAULT_MAX_TOKENS if fields.max_output_tokens is None else fields.max_output_tokens
    return Call(
        endpoint="responses",
        model=_checked(fields, spec),
        prompt=rendered(messages, continues=False),
        max_tokens=_positive(asked, "max_output_tokens"),
        stream=bool(fields.stream),
        priority=fields.priority,
        vocabulary=_vocabulary(fields, spec),
    )


def _messages(body: bytes, spec: SimSpec) -> Call:
    fields = decoded(body, _MessagesBody)
    if not fields.messages:
        raise SimError(400, "messages must hold at least one message", param="messages")
    system = [("system", text_of(fields.system))] if fields.system else []
    messages = system + [(message.role, text_of(message.content)) for message in fields.messages]
    role, final = messages[-1]
    continues = role == "assistant"
    vocabulary = _vocabulary(fields, spec)
    return Call(
        endpoint="messages",
        model=_checked(fields, spec),
        prompt=rendered(messages, continues),
        max_tokens=_positive(fields.max_tokens, "max_tokens"),
        stream=bool(fields.stream),
        priority=fields.priority,
        vocabulary=vocabulary,
        continuation=vocabulary.continued_text(final) if continues else Continuation(),
        has_prefix=continues,
    )


_READERS = {"chat": _chat, "completions": _completions, "responses": _responses, "messages": _messages}


def _item_text(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, list):
        content = [part for part in content if isinstance(part, dict)]
    return text_of(content) if isinstance(content, str | list) else ""


def _vocabulary(fields: _Body, spec: SimSpec) -> Vocabulary:
    return VOCABULARIES[fields.sim_vocabulary or spec.vocabulary]


def _checked(fields: _Body, spec: SimSpec) -> str:
    if fields.n not in (None, 1):
        raise SimError(400, "the simulated engine makes one choice: n must be 1", param="n")
    return served(fields.model, spec)


def _positive(asked: int, name: str) -> int:
    if asked < 1:
        raise SimError(400, f"{name} must be at least 1, got {asked}.", param=name)
    return asked
