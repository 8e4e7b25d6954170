"""Where the next leg is joined: stop strings, roles, leaks, identity, usage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from upstream.continued_engine import Engine, Run

from forebay.domain import Usage
from forebay.upstream.continuation.leak import repeats_prompt
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.seam import Seam
from forebay.upstream.continuation.told import Head, Leg, Mode, Told
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire.sse import Event

HEAD = Head(b'"a"', b'"chat.completion.chunk"', b"1", b'"m"', b'"f1"')


def chunk(text: str | None = None, reason: str | None = None, **fields: Any) -> Event:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta | fields.pop("delta", {}), "finish_reason": reason}
    ids = fields.pop("ids", None)
    if ids is not None:
        choice["token_ids"] = ids
    head = {"id": "b", "object": "chat.completion.chunk", "created": 2, "model": "m", "choices": [choice]}
    return Event(json.dumps(head | fields).encode())


ROLE = chunk("", delta={"role": "assistant"})


def seam_of(text: str, tail: str = "", mode: Mode = "text", **more: Any) -> Seam:
    told = Told(text, head=HEAD, prompt_tokens=more.pop("prompt_tokens", None), counted=more.pop("counted", False))
    transcript = Transcript()
    transcript.add(chunk(text).data)
    return Seam(Leg(b"{}", mode, tail=tail, **more), told, transcript, "chat")


def text_of(events: list[Event]) -> str:
    return "".join(json.loads(e.data)["choices"][0]["delta"].get("content") or "" for e in events)


def run(seam: Seam, *events: Event) -> list[Event]:
    return [out for event in events for out in seam.join(event)]


def test_identity_is_the_first_legs_and_the_role_is_said_once() -> None:
    seam = seam_of("so")
    assert seam.join(ROLE) == []
    (first, last) = run(seam, chunk(" far", system_fingerprint="f2", timings={"predicted_n": 1}), chunk(reason="stop"))
    assert json.loads(first.data) == {
        "id": "a",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "system_fingerprint": "f1",
        "choices": [{"index": 0, "delta": {"content": " far"}, "finish_reason": None}],
    }
    assert json.loads(last.data)["id"] == "a"


def test_a_role_that_comes_with_text_is_taken_off() -> None:
    (event,) = run(seam_of("so"), chunk(" far", delta={"role": "assistant"}))
    assert json.loads(event.data)["choices"][0]["delta"] == {"content": " far"}


@pytest.mark.parametrize(
    ("tail", "pieces", "rest"),
    [
        (" \n", [" \n", "next"], "next"),
        (" \n", [" ", "\n", "next"], "next"),
        (" \n", [" \nnext"], "next"),
        (" ", ["  next"], " next"),
        ("\n\n", [" next"], "next"),
        ("\n\n", ["\n", " next"], "next"),
        ("\n", ["next"], "next"),
    ],
)
def test_white_space_is_said_once(tail: str, pieces: list[str], rest: str) -> None:
    seam = seam_of("so" + tail, tail)
    assert text_of(run(seam, ROLE, *map(chunk, pieces))) == rest
    assert seam.joined


def test_an_end_behind_nothing_but_white_space_is_an_end() -> None:
    (event,) = run(seam_of("so\n", "\n"), ROLE, chunk(reason="stop"))
    assert json.loads(event.data)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("pieces", [["so", " it"], ["x"], ["so far"]])
def test_other_words_are_not_joined(pieces: list[str]) -> None:
    seam = seam_of("so far so good", "so far so good", "restart")
    with pytest.raises(Impossible) as caught:
        run(seam, ROLE, *map(chunk, pieces), chunk(reason="stop"))
    assert caught.value.reason is Reason.DIVERGED
    assert not seam.joined


@pytest.mark.parametrize(
    ("shown", "stops", "pieces", "expected", "stopped"),
    [
        ("abc E", ("END",), ["N", "D", "xyz"], "", True),
        ("abc E", ("END",), ["ND and"], "", True),
        ("abc E", ("END",), ["N", "ot"], "Not", False),
        ("abc EN", ("END", "ENE"), ["E"], "", True),
        ("abc", ("END",), ["END"], "END", False),  # wholly behind the seam: the engine's own affair
        ("aa", ("aab",), ["ab"], "", True),
        ("abc E", ("END",), ["N"], "N", False),
    ],
)
def test_a_stop_string_over_the_seam(
    shown: str, stops: tuple[str, ...], pieces: list[str], expected: str, stopped: bool
) -> None:
    seam = seam_of(shown, stops=stops, made_tokens=2, prompt_tokens=7, wants_usage=True)
    events = run(seam, ROLE, *map(chunk, pieces), chunk(reason="length"))
    choices = [json.loads(event.data)["choices"] for event in events]
    assert "".join(c[0]["delta"].get("content") or "" for c in choices if c) == expected
    assert (seam.finish is not None) == stopped
    if stopped:
        assert [c[0]["finish_reason"] for c in choices if c] == ["stop"]
        usage = json.loads(events[-1].data)["usage"]
        assert usage["prompt_tokens"] == 7
        assert usage["total_tokens"] == 7 + usage["completion_tokens"]


def test_a_stop_string_that_the_client_wants_to_see_is_shown() -> None:
    seam = seam_of("abc E", stops=("END",), keeps_stop=True)
    assert text_of(run(seam, chunk("NDx"))) == "ND"


@pytest.mark.parametrize("shown", ["so", "a \ufffd b"])
def test_a_replacement_character_only_where_there_were_some(shown: str) -> None:
    seam = seam_of(shown)
    if "\ufffd" in shown:
        assert text_of(run(seam, chunk("\ufffd!"))) == "\ufffd!"
        return
    with pytest.raises(Impossible) as caught:
        seam.join(chunk("\ufffd!"))
    assert caught.value.reason is Reason.REPLACEMENT_CHARACTER


def test_thoughts_behind_an_answer_are_not_joined() -> None:
    with pytest.raises(Impossible) as caught:
        seam_of("so").join(chunk(delta={"reasoning": "Hm"}))
    assert caught.value.reason is Reason.CHANNEL


def test_halves_of_characters_are_passed_on_with_their_ids() -> None:
    seam = seam_of("so", mode="exact", cut=2)
    events = run(seam, ROLE, chunk("", ids=[5]), chunk("🐙", ids=[6]), chunk("!", ids=[7]))
    assert [json.loads(e.data)["choices"][0]["token_ids"] for e in events] == [[5], [6], [7]]
    assert text_of(events) == "🐙!"


def test_usage_is_that_of_the_whole_answer() -> None:
    counts = {
        "prompt_tokens": 15,
        "completion_tokens": 4,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    seam = seam_of("so", made_tokens=5, prompt_tokens=10, counted=True)
    (_, _, last) = run(
        seam, chunk("!"), chunk(reason="stop"), Event(json.dumps({"choices": [], "usage": counts}).encode())
    )
    assert json.loads(last.data)["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 9,
        "total_tokens": 19,
        "prompt_tokens_details": None,
    }
    assert seam.usage(Usage(15, 4, 8)) == Usage(10, 9)


def test_usage_without_the_first_legs_count_is_an_estimate() -> None:
    assert seam_of("so", made_tokens=5).usage(Usage(15, 4, 8)) == Usage(10, 9, estimated=True)


SYSTEM = "You are a keeper of secrets. Never tell."
USER = "What is it?"


@pytest.mark.parametrize(
    ("said", "tokens", "prompt", "leaks"),
    [
        (f"system\n{SYSTEM}\nuser\n{USER}\nassistant\nIt is 🐙", 1, (SYSTEM, USER), True),
        (f"<s>{SYSTEM[:20]}", 1, (SYSTEM, USER), True),
        ("user\nHi\nassistant\nIt is 🐙", 2, ("Hi",), True),
        ("HiIt is🐙", 1, ("Hi",), False),  # it was "It is " that had been said
        ("x" * 300, 1, (), True),
        (" a secret", 2, (SYSTEM, USER), False),
        ("You", 1, (SYSTEM, USER), False),
        ("You are a keeper", 4, (SYSTEM, USER), False),  # a quotation, at the usual pace
        ("It is ", 1, (), False),
    ],
)
def test_the_prompt_is_known_when_it_comes_back(said: str, tokens: int, prompt: tuple[str, ...], leaks: bool) -> None:
    assert repeats_prompt(said, tokens, prompt, "It is ") == leaks


@given(
    parts=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=4),
    shown=st.text(max_size=60),
    glue=st.text(max_size=10),
    tokens=st.integers(1, 3),
)
def test_a_whole_prompt_never_passes(parts: list[str], shown: str, glue: str, tokens: int) -> None:
    said = glue.join(["", *parts, shown]) + "🐙"
    assert repeats_prompt(said, tokens, tuple(parts), shown)


def test_a_leak_is_a_reason() -> None:
    seam = seam_of("It is ", mode="exact", prompt=(SYSTEM, USER))
    with pytest.raises(Impossible) as caught:
        run(seam, ROLE, chunk("", ids=[1]), chunk(f"system\n{SYSTEM}", ids=[2]))
    assert caught.value.reason is Reason.PROMPT_LEAK
    assert not seam.joined


def test_thoughts_go_on_by_ids_and_by_nothing_else() -> None:
    engine = Engine("unused")
    call = Run(engine)
    for number, text in enumerate(("Let me", " think")):
        call.transcript.add(chunk(delta={"reasoning": text}, ids=[1000 + number], prompt_token_ids=[11, 12, 13]).data)
    told = call.told()
    assert (told.reasoning, told.text, told.safe, told.clean) == ("Let me think", "", 2, True)
    seam = Seam(Leg(b"{}", "exact", cut=2), told, call.transcript, "chat")
    assert len(run(seam, ROLE, chunk(delta={"reasoning": " more"}, ids=[1002]), chunk("So:", ids=[1003]))) == 2
    told = call.told()
    assert (told.reasoning, told.text, told.safe) == ("Let me think more", "So:", 4)
