"""The members that are read of requests, as structs that msgspec decodes into.

They stand apart from the code that uses them, because that is compiled for wheels and their annotations must
stay readable (decisions/0006).
"""

from msgspec import Raw, Struct


class StreamOptions(Struct):
    """The member `stream_options`."""

    include_usage: bool | None = None


class Function(Struct, gc=False):
    """The function that a tool call names."""

    name: Raw = Raw()
    arguments: Raw = Raw()


class ToolCall(Struct, gc=False):
    """A call that the model made before."""

    function: Function | None = None


class Source(Struct, gc=False):
    """Where an Anthropic document or picture comes from."""

    type: Raw = Raw()
    data: Raw = Raw()


class Message(Struct, gc=False):
    """A message of a chat."""

    content: Raw = Raw()
    tool_calls: Raw = Raw()


class Part(Struct, gc=False):
    """A part of a content or an item of an input, of whatever protocol."""

    type: Raw = Raw()
    text: Raw = Raw()
    content: Raw = Raw()
    output: Raw = Raw()
    arguments: Raw = Raw()
    input: Raw = Raw()
    thinking: Raw = Raw()
    refusal: Raw = Raw()
    source: Raw = Raw()
    image: Raw = Raw()
    input_audio: Raw = Raw()
    audio: Raw = Raw()
    audio_url: Raw = Raw()
