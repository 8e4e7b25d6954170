"""The errors that a fault answers with, on the wire."""

import asyncio

import pytest
from engines.sim.caller import Caller, Play, Raw, one

pytestmark = pytest.mark.integration


def test_status_with_message_and_retry_after(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert raw.status == 429
        assert "\r\nretry-after: 2\r\n" in raw.head
        assert raw.json["error"] == {"message": "slow down", "type": "Too Many Requests", "param": None, "code": 429}

    one(play, {"action": "status", "status": 429, "message": "slow down", "retry_after": 2}, check)


def test_status_in_flat_form_or_with_a_body_of_its_own(play: Play) -> None:
    def flat(raw: Raw) -> None:
        assert raw.json.keys() == {"object", "message", "type", "param", "code"}

    def own(raw: Raw) -> None:
        assert (raw.status, raw.body) == (502, b"<html>")

    one(play, {"action": "status", "status": 500, "flat": True}, flat)
    one(play, {"action": "status", "status": 502, "body": "<html>"}, own)


@pytest.mark.parametrize("code", ["context_length_exceeded", "content_policy_violation"])
def test_the_two_final_refusals(play: Play, code: str) -> None:
    def check(raw: Raw) -> None:
        assert (raw.status, raw.json["error"]["code"]) == (400, code)

    one(play, {"action": code}, check, stream=True)


def test_a_prefix_is_refused_and_anything_else_is_served(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "refuse_prefix", "always": True})
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "t0"}]
        flags = {"continue_final_message": True, "add_generation_prompt": False}
        assert (await caller.chat(messages=messages, **flags)).status == 400
        assert (await caller.chat()).status == 200

    play(scenario)


def test_draining_refuses_calls_while_health_is_well(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "drain", "always": True})
        raw = await caller.chat(stream=True)
        assert raw.status == 500
        assert "after shutdown" in raw.json["error"]["message"]
        assert (await caller.get("/health")).status == 200

    play(scenario)


def test_loading_shows_on_health_and_ends(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "loading", "for_s": 2.0})
        assert (await caller.get("/health")).status == 503
        assert (await caller.get("/v1/models")).status == 200
        assert (await caller.chat()).status == 503
        assert (await caller.post("/tokenize", {"prompt": "a"})).status == 503
        async with asyncio.timeout(60):
            while (await caller.get("/health")).status != 200:
                await asyncio.sleep(0.02)
        assert (await caller.chat()).status == 200

    play(scenario)
