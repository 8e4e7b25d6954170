"""Write answers of the two newer endpoints: `/v1/responses` and `/v1/messages`, streamed and whole."""

from typing import Any

from forebay.engines.sim.calls import Call
from forebay.engines.sim.faults import ErrorEvent
from forebay.engines.sim.shapes import encode, openai_error_event
from forebay.engines.sim.spec import SimSpec


def _named(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event))


class Responses:
    """`/v1/responses`; its stream has numbered events and no `[DONE]`."""

    done = b""

    def __init__(self, call: Call, spec: SimSpec, reply_id: str, created_s: int) -> None:
        self._call = call
        self._reply_id = reply_id
        self._created_s = created_s
        self._item_id = reply_id.replace("resp_", "msg_", 1)
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._sequence = 0

    def opening(self) -> list[bytes]:
        """Return the events that open the response, its item and its text."""
        started = self._response("in_progress", [], None)
        item = {"id": self._item_id, "type": "message", "role": "assistant", "content": [], "status": "in_progress"}
        return [
            self._event("response.created", response=started),
            self._event("response.in_progress", response=started),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=_text_part("")),
        ]

    def delta(self, first: int, stop: int, reason: str | None) -> list[bytes]:
        """Return one text delta, or nothing when the tokens have no text yet."""
        text = self._call.text(first, stop)
        if not text:
            return []
        return [self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])]

    def closing(self, total: int, reason: str | None) -> list[bytes]:
        """Return the events that close the text and the item, and `response.completed` if there is a reason."""
        text = self._call.text(0, total)
        events = [
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=_text_part(text)),
            self._event("response.output_item.done", output_index=0, item=self._item(text)),
        ]
        if reason:
            events.append(self._event("response.completed", response=self._ended(total, reason)))
        return events

    def whole(self, total: int, reason: str | None) -> bytes:
        """Return the response object."""
        return encode(self._ended(total, reason))

    def error(self, fault: ErrorEvent) -> bytes:
        """Return an error event; the shape `event` is the endpoint's own, the others are vLLM's leak of chat's."""
        if fault.shape != "event":
            return openai_error_event(fault)
        return self._event("error", code=str(fault.code), message=fault.message, param=None)

    def _event(self, event_type: str, **fields: Any) -> bytes:
        event = _named({"type": event_type, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return event

    def _item(self, text: str) -> dict[str, Any]:
        content = [_text_part(text)]
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "status": "completed",
        }

    def _ended(self, total: int, reason: str | None) -> dict[str, Any]:
        status = {"length": "incomplete", "abort": "cancelled"}.get(reason or "", "completed")
        prompt_tokens = self._call.prompt_tokens
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": total,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens + total,
        }
        return self._response(status, [self._item(self._call.text(0, total))], usage)

    def _response(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self._reply_id,
            "created_at": self._created_s,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": None,
            "model": self._call.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._call.max_tokens,
            "previous_response_id": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


class Messages:
    """`/v1/messages`; its stream ends with `message_stop`, which counts as its `[DONE]`."""

    done = _named({"type": "message_stop"})

    def __init__(self, call: Call, spec: SimSpec, reply_id: str, created_s: int) -> None:
        self._call = call
        self._reply_id = reply_id

    def opening(self) -> list[bytes]:
        """Return `message_start` and the start of the text block."""
        block = {"type": "text", "text": ""}
        return [
            _named({"type": "message_start", "message": self._message([], None, 0)}),
            _named({"type": "content_block_start", "index": 0, "content_block": block}),
        ]

    def delta(self, first: int, stop: int, reason: str | None) -> list[bytes]:
        """Return one text delta, or nothing when the tokens have no text yet."""
        text = self._call.text(first, stop)
        if not text:
            return []
        delta = {"type": "text_delta", "text": text}
        return [_named({"type": "content_block_delta", "index": 0, "delta": delta})]

    def closing(self, total: int, reason: str | None) -> list[bytes]:
        """Return the end of the text block, and `message_delta` if there is a reason."""
        events = [_named({"type": "content_block_stop", "index": 0})]
        if reason:
            delta = {"stop_reason": _STOP_REASONS.get(reason, reason), "stop_sequence": None}
            events.append(_named({"type": "message_delta", "delta": delta, "usage": self._usage(total)}))
        return events

    def whole(self, total: int, reason: str | None) -> bytes:
        """Return the message object."""
        content = [{"type": "text", "text": self._call.text(0, total)}]
        return encode(self._message(content, reason, total))

    def error(self, fault: ErrorEvent) -> bytes:
        """Return the endpoint's error event, whatever the shape: it has one only."""
        return _named({"type": "error", "error": {"type": fault.type, "message": fault.message}})

    def _usage(self, total: int) -> dict[str, int]:
        return {"input_tokens": self._call.prompt_tokens, "output_tokens": total}

    def _message(self, content: list[dict[str, str]], reason: str | None, total: int) -> dict[str, Any]:
        return {
            "id": self._reply_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._call.model,
            "stop_reason": _STOP_REASONS.get(reason, reason) if reason else None,
            "stop_sequence": None,
            "usage": self._usage(total),
        }
