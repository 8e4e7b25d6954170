"""The official clients, used as they are: what they return through the gateway is what the engine gave."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from conformance.cases import HELLO, JSON_SCHEMA, TALK, TOO_LONG, UNICODE
from conformance.compare import Flat, Members, Number, Repeated, flatten
from conformance.world import World

pytestmark = [pytest.mark.integration, pytest.mark.engine]
SHORT: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "seed": 1}
# Anthropic's client has no argument for it any more.
GREEDY = {"temperature": 0}
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Clients(NamedTuple):
    """Both official clients, set to one server."""

    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    model: str


@pytest.fixture(scope="module")
def direct(world: World) -> Iterator[Clients]:
    host, port = world.engine("llamacpp")
    base_url = f"http://{host}:{port}"
    # llama.cpp closes a connection after a streamed answer without saying so: nothing is kept alive.
    more: dict[str, Any] = {"api_key": "none", "max_retries": 0, "default_headers": {"Connection": "close"}}
    with openai.OpenAI(base_url=f"{base_url}/v1", **more) as one:
        with anthropic.Anthropic(base_url=base_url, **more) as other:
            yield Clients(one, other, "default")


@pytest.fixture(scope="module")
def through(world: World) -> Iterator[Clients]:
    base_url = world.gateway.base_url
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="key-A", max_retries=0) as one:
        with anthropic.Anthropic(base_url=base_url, api_key="key-A", max_retries=0) as other:
            yield Clients(one, other, "alias")


def flat(returned: Any) -> Flat:
    """Lay out what a client returned: an object, or the events of a stream."""
    if hasattr(returned, "model_dump"):
        return flatten(plain(returned.model_dump()))
    return flatten([Members([("data", plain(event.model_dump()))]) for event in returned], "events")


def plain(value: Any) -> Any:
    """Objects and numbers as the comparison knows them."""
    if isinstance(value, dict):
        return Members((key, plain(member)) for key, member in value.items())
    if isinstance(value, list):
        return [plain(member) for member in value]
    return Number(value) if type(value) in (int, float) else value


def chat(**more: Any) -> Callable[[Clients], Any]:
    return lambda c: c.openai.chat.completions.create(model=c.model, **{"messages": HELLO, **SHORT, **more})


def complete(**more: Any) -> Callable[[Clients], Any]:
    return lambda c: c.openai.completions.create(model=c.model, **{"prompt": "The sky is", **SHORT, **more})


def respond(**more: Any) -> Callable[[Clients], Any]:
    return lambda c: c.openai.responses.create(
        model=c.model, **{"input": "Say hi", "max_output_tokens": 6, "temperature": 0, **more}
    )


def message(**more: Any) -> Callable[[Clients], Any]:
    return lambda c: c.anthropic.messages.create(
        model=c.model, **{"messages": HELLO, "max_tokens": 6, "extra_body": GREEDY, **more}
    )


def embed(**more: Any) -> Callable[[Clients], Any]:
    return lambda c: c.openai.embeddings.create(model=c.model, **{"input": ["The sky is", "蓝色"], **more})


def streamed_message(c: Clients) -> Iterable[Any]:
    with c.anthropic.messages.stream(model=c.model, messages=UNICODE, max_tokens=12, extra_body=GREEDY) as stream:
        yield from stream


CALLS = {
    "chat": chat(messages=TALK),
    "chat-json": chat(response_format=JSON_SCHEMA, max_tokens=24),
    "chat-stream": chat(messages=UNICODE, stream=True, max_tokens=16),
    "chat-stream-usage": chat(**USAGE),
    "chat-stream-logprobs": chat(logprobs=True, top_logprobs=2, stream=True),
    "completions": complete(),
    "completions-stream": complete(**USAGE),
    "responses": respond(),
    "responses-stream": respond(input=UNICODE, stream=True),
    "messages": message(system="Be terse."),
    "messages-stream": message(stream=True),
    "messages-stream-helper": streamed_message,
    "embeddings": embed(),
    "embeddings-float": embed(encoding_format="float"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_client_gets_the_same(direct: Clients, through: Clients, call: Callable[[Clients], Any]) -> None:
    flat(call(direct))
    repeated = Repeated(lambda: flat(call(direct)))
    assert repeated.faults(flat(call(through)), through.model) == []


REFUSED: dict[str, tuple[Callable[[Clients], Any], int]] = {
    "chat-too-long": (chat(messages=[{"role": "user", "content": TOO_LONG}]), 400),
    "chat-stream-too-long": (chat(messages=[{"role": "user", "content": TOO_LONG}], stream=True), 400),
    "chat-bad-temperature": (chat(temperature="hot"), 400),
    "chat-no-messages": (chat(messages=None), 400),
    "completions-too-long": (complete(prompt=TOO_LONG, stream=True), 400),
    "responses-too-long": (respond(input=TOO_LONG), 400),
    "messages-too-long": (message(messages=[{"role": "user", "content": TOO_LONG}]), 400),
    "messages-stream-too-long": (message(messages=[{"role": "user", "content": TOO_LONG}], stream=True), 400),
}


@pytest.mark.parametrize(("call", "status"), REFUSED.values(), ids=REFUSED)
def test_a_client_raises_the_same(
    direct: Clients, through: Clients, call: Callable[[Clients], Any], status: int
) -> None:
    raised: list[Any] = []
    for clients in (direct, through):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as info:
            list(call(clients))
        raised.append(info.value)
    assert [type(error) for error in raised] == [type(raised[0])] * 2
    assert [error.status_code for error in raised] == [status] * 2
    assert raised[1].message


def test_the_models_are_those_of_the_gateway(direct: Clients, through: Clients) -> None:
    engines = list(direct.openai.models.list())
    ours = {model.id: model for model in through.openai.models.list()}
    assert [model.id for model in engines] == ["default"]
    assert {"default", "alias", "sim"} <= set(ours)
    assert {model.object for model in ours.values()} == {"model"}
    assert through.openai.models.retrieve("alias") == ours["alias"]
    with pytest.raises(openai.NotFoundError):
        through.openai.models.retrieve("nope")


def test_a_wrong_model_is_refused_where_llamacpp_takes_any(direct: Clients, through: Clients) -> None:
    wrong = {"model": "nope", "messages": HELLO, **SHORT}
    assert direct.openai.chat.completions.create(**wrong).model == "default"
    with pytest.raises(openai.NotFoundError) as info:
        through.openai.chat.completions.create(**wrong)
    assert info.value.code == "model_not_found"
    assert info.value.param == "model"


def test_a_wrong_key_is_refused(through: Clients) -> None:
    with pytest.raises(openai.AuthenticationError):
        through.openai.with_options(api_key="wrong").models.list()
    with pytest.raises(anthropic.AuthenticationError):
        message()(through._replace(anthropic=through.anthropic.with_options(api_key="wrong")))
