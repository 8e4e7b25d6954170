"""Write answers as vLLM 0.32 does: chat and plain completions, streamed and whole.

A dialect turns the progress of one call into server-sent events. The parts of a chunk that stay the same
are put together once, so that a token costs one join.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import msgspec

from forebay.engines.sim.calls import Call
from forebay.engines.sim.errors import error_fields
from forebay.engines.sim.faults import ErrorEvent
from forebay.engines.sim.spec import SimSpec

encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"


class Dialect(Protocol):
    """One endpoint's way to answer one call; `total` counts the tokens generated in this call."""

    done: bytes

    def opening(self) -> list[bytes]:
        """Return the events before the first token."""
        ...

    def delta(self, first: int, stop: int, reason: str | None) -> list[bytes]:
        """Return the events of the tokens first..stop-1; reason is the finish_reason if they are the last."""
        ...

    def closing(self, total: int, reason: str | None) -> list[bytes]:
        """Return the events after the last token; without a reason, the one that would carry it is left out."""
        ...

    def whole(self, total: int, reason: str | None) -> bytes:
        """Return the body of an answer that is not streamed."""
        ...

    def error(self, fault: ErrorEvent) -> bytes:
        """Return the event of an error inside the stream."""
        ...


def fingerprint(spec: SimSpec) -> str:
    """Return the system_fingerprint: engine, version and what makes its answers."""
    return f"vllm-{spec.version}-sim"


def usage_fields(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Return the usage object, in vLLM's order."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def openai_error_event(fault: ErrorEvent) -> bytes:
    """Return an error event of the OpenAI endpoints in one of its three shapes."""
    fields = error_fields(fault.message, fault.type, code=fault.code)
    if fault.shape == "flat":
        return b"data: %b\n\n" % encode({"object": "error", **fields})
    name = b"event: error\n" if fault.shape == "event" else b""
    return b"%bdata: %b\n\n" % (name, encode({"error": fields}))


class _Completion(ABC):
    """What chat and plain completions share: identity, usage and the order of the last chunks."""

    done = DONE

    def __init__(self, call: Call, spec: SimSpec, reply_id: str, created_s: int, kind: str) -> None:
        self._call = call
        self._merges = spec.finish_with_last_token
        self._reason_sent = False
        self._identity = {"id": reply_id, "object": kind, "created": created_s, "model": call.model}
        self._fingerprint = fingerprint(spec)
        head = encode({**self._identity, "choices": []})
        self._head = b"data: " + head.removesuffix(b"]}")
        self._stamp = b"" if call.include_usage else b',"system_fingerprint":%b' % encode(self._fingerprint)

    def error(self, fault: ErrorEvent) -> bytes:
        """Return the event of an error inside the stream."""
        return openai_error_event(fault)

    def closing(self, total: int, reason: str | None) -> list[bytes]:
        """Return the chunk with the finish_reason, unless it went out with the last token, and the usage chunk."""
        events = []
        if reason and not self._reason_sent:
            events.append(self._chunk(self._choice(total, total, reason), total, self._stamp))
        if self._call.include_usage:
            usage = usage_fields(self._call.prompt_tokens, total)
            chunk = {**self._identity, "choices": [], "usage": usage, "system_fingerprint": self._fingerprint}
            events.append(b"data: %b\n\n" % encode(chunk))
        return events

    def delta(self, first: int, stop: int, reason: str | None) -> list[bytes]:
        """Return one chunk with the tokens first..stop-1."""
        if reason and self._merges:
            self._reason_sent = True
            return [self._chunk(self._choice(first, stop, reason), stop, self._stamp)]
        return [self._chunk(self._choice(first, stop, None), stop)]

    @abstractmethod
    def _choice(self, first: int, stop: int, reason: str | None) -> bytes:
        """Write the choice that carries the tokens first..stop-1."""

    def _chunk(self, choice: bytes, total: int, extra: bytes = b"") -> bytes:
        usage = b""
        if self._call.continuous_usage:
            usage = b',"usage":%b' % encode(usage_fields(self._call.prompt_tokens, total))
        return b"%b%b]%b%b}\n\n" % (self._head, choice, usage, extra)

    def _ids(self, first: int, stop: int) -> bytes:
        return encode(self._call.ids(first, stop)) if self._call.return_token_ids else b"null"

    def _whole(self, choice: dict[str, Any], total: int) -> dict[str, Any]:
        return {
            **self._identity,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": usage_fields(self._call.prompt_tokens, total) | {"prompt_tokens_details": None},
        }


class Chat(_Completion):
    """`/v1/chat/completions`."""

    def __init__(self, call: Call, spec: SimSpec, reply_id: str, created_s: int) -> None:
        super().__init__(call, spec, reply_id, created_s, "chat.completion.chunk")

    def opening(self) -> list[bytes]:
        """Return the chunk with the role, and the prompt's ids for who asked for ids."""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        ids = encode(self._call.prompt_ids()) if self._call.return_token_ids else b"null"
        return [self._chunk(choice, 0, b',"prompt_token_ids":%b,"prompt_text":null' % ids)]

    def whole(self, total: int, reason: str | None) -> bytes:
        """Return a `chat.completion`."""
        wants_ids = self._call.return_token_ids
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": self._call.text(0, total),
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": self._call.ids(0, total) if wants_ids else None,
        }
        body = self._whole(choice, total) | {"object": "chat.completion"}
        return encode(body | {"prompt_token_ids": self._call.prompt_ids() if wants_ids else None})

    def _choice(self, first: int, stop: int, reason: str | None) -> bytes:
        ids = self._ids(first, stop)
        text = encode(self._call.text(first, stop))
        if reason is None:
            form = b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":null,"token_ids":%b}'
            return form % (text, ids)
        form = (
            b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b,"stop_reason":null,"token_ids":%b}'
        )
        return form % (text, encode(reason), ids)


class Completions(_Completion):
    """`/v1/completions`."""

    def __init__(self, call: Call, spec: SimSpec, reply_id: str, created_s: int) -> None:
        super().__init__(call, spec, reply_id, created_s, "text_completion")
        self._prompt_ids_due = call.return_token_ids

    def opening(self) -> list[bytes]:
        """Return nothing: the first chunk has a token."""
        return []

    def whole(self, total: int, reason: str | None) -> bytes:
        """Return a `text_completion`."""
        wants_ids = self._call.return_token_ids
        choice = {
            "index": 0,
            "text": self._call.text(0, total),
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "token_ids": self._call.ids(0, total) if wants_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._call.prompt_ids() if wants_ids else None,
        }
        return encode(self._whole(choice, total))

    def _choice(self, first: int, stop: int, reason: str | None) -> bytes:
        prompt_ids = encode(self._call.prompt_ids()) if self._prompt_ids_due else b"null"
        self._prompt_ids_due = False
        form = (
            b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":null,'
            b'"prompt_token_ids":%b,"token_ids":%b}'
        )
        text = encode(self._call.text(first, stop))
        return form % (text, encode(reason), prompt_ids, self._ids(first, stop))
