import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from forebay import __version__
from forebay.clock import ManualClock, timestamp
from forebay.console.app import build
from forebay.console.dataplane import DataPlaneView
from forebay.console.overrides import MAX_OVERRIDES, Change
from forebay.console.state import ConsoleState

TOKEN = "t" * 43
OVERRIDES = "/api/policy/overrides"
DRAIN: dict[str, Any] = {"kind": "drain", "target": "127.0.0.1:9001", "ttl_s": 60, "reason": "new driver", "by": "ann"}
REFUSE: dict[str, Any] = {**DRAIN, "kind": "refuse_long_inputs", "target": "qwen", "tokens": 8192}
STATUS = {
    "replicas": [{"pool": "main", "replica": "127.0.0.1:9001"}, {"pool": "main", "replica": "127.0.0.1:9002"}],
    "models": {"qwen": True, "glm": False},
    "documents": {
        "config_ok": False,
        "last_error": ["forebay.yaml:3: pools: is missing; add it"],
        "warnings": [],
        "override": {"epoch": 1_900_000_000, "seq": 4, "reason": ""},
    },
    "children": [{"name": "console", "state": "running"}],
    "journal": "ok",
}


def reachable(status: dict[str, Any]) -> DataPlaneView:
    return DataPlaneView(reachable=True, age_s=0.0, status=status, fault=None)


def test_status_shows_both_planes(client: TestClient, state: ConsoleState, clock: ManualClock) -> None:
    clock.advance(12.5)
    state.data_plane.seen = reachable(STATUS)  # type: ignore[attr-defined]
    answer = client.get("/api/status").json()
    own = answer["control_plane"]
    assert (own["version"], own["uptime_s"], own["config_file"], own["faults"]) == (
        __version__, 12.5, "forebay.yaml", []
    )  # fmt: skip
    assert answer["data_plane"] == {"reachable": True, "age_s": 0.0, "fault": None, "status": STATUS}
    for part in ("documents", "children", "journal"):
        assert answer[part] == STATUS[part]
    assert answer["reload"] == {"ok": False, "faults": ["forebay.yaml:3: pools: is missing; add it"], "warnings": []}
    assert TOKEN not in json.dumps(answer)


def test_status_without_a_data_plane(client: TestClient) -> None:
    answer = client.get("/api/status")
    assert answer.status_code == 200
    assert answer.json()["data_plane"] == {"reachable": False, "age_s": None, "fault": "not started", "status": None}
    assert answer.json()["children"] is None
    assert answer.json()["reload"] is None


def test_drain_list_and_end(client: TestClient, clock: ManualClock, tmp_path: Path) -> None:
    assert client.get(OVERRIDES).json() == {"epoch": 0, "seq": 0, "overrides": []}
    made = client.post(OVERRIDES, json=DRAIN)
    assert made.status_code == 201
    shown = made.json()
    assert {name: shown[name] for name in ("kind", "target", "reason", "by")} == {
        name: DRAIN[name] for name in ("kind", "target", "reason", "by")
    }
    assert (shown["created"], shown["expires"]) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:01:00.000Z")
    clock.advance(10)
    listed = client.get(OVERRIDES).json()
    assert (listed["epoch"], listed["seq"]) == (1_800_000_000, 1)
    assert listed["overrides"] == [{**shown, "expires_in_s": 50.0}]
    assert "127.0.0.1:9001" in (tmp_path / "policy" / "override.json").read_text()
    ended = client.delete(f"{OVERRIDES}/{shown['id']}", params={"by": "ben"})
    assert (ended.status_code, ended.content) == (204, b"")
    assert client.get(OVERRIDES).json() == {"epoch": 1_800_000_000, "seq": 2, "overrides": []}
    assert "127.0.0.1:9001" not in (tmp_path / "policy" / "override.json").read_text()
    actions = [(a["kind"], a["by"], a["target"]) for a in client.get("/api/timeline").json()["actions"]]
    assert actions == [
        ("override.deleted", "ben", "127.0.0.1:9001"),
        ("override.created", "ann", "127.0.0.1:9001"),
        ("console.started", "forebay", ""),
    ]


def test_an_override_ends_after_its_time(client: TestClient, state: ConsoleState, clock: ManualClock) -> None:
    client.post(OVERRIDES, json=DRAIN)
    clock.advance(60)
    assert client.get(OVERRIDES).json()["overrides"] == []
    assert client.portal is not None
    client.portal.call(state.expire)
    assert state.overrides.document.entries == ()
    assert client.get("/api/timeline", params={"limit": 1}).json()["actions"][0]["kind"] == "override.expired"


def test_ended_overrides_stay_until_the_disk_takes_the_document(
    client: TestClient, state: ConsoleState, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.post(OVERRIDES, json=DRAIN)
    clock.advance(60)
    assert client.portal is not None
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        client.portal.call(state.expire)
        assert client.get("/api/status").json()["control_plane"]["faults"] == [
            "override.json: No space left on device; ended overrides are still in it"
        ]
    client.portal.call(state.expire)
    assert state.faults() == []


def test_version_goes_beyond_what_the_data_plane_holds(client: TestClient, state: ConsoleState) -> None:
    state.data_plane.seen = reachable(STATUS)  # type: ignore[attr-defined]
    client.post(OVERRIDES, json=DRAIN)
    assert (state.overrides.document.epoch, state.overrides.document.seq) == (1_900_000_001, 1)


def test_an_unknown_replica_is_refused_when_the_data_plane_answers(client: TestClient, state: ConsoleState) -> None:
    stale = DataPlaneView(reachable=False, age_s=9.0, status=STATUS, fault="gone")
    state.data_plane.seen = reachable(STATUS)  # type: ignore[attr-defined]
    refused = client.post(OVERRIDES, json={**DRAIN, "target": "127.0.0.1:9003"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "No pool has this replica. Known: 127.0.0.1:9001, 127.0.0.1:9002."
    )  # fmt: skip
    assert state.overrides.active() == ()
    state.data_plane.seen = stale  # type: ignore[attr-defined]
    assert client.post(OVERRIDES, json={**DRAIN, "target": "127.0.0.1:9003"}).status_code == 201


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kind": "restart"}, "kind"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 604_801}, "ttl_s"),
        ({"ttl_s": "60"}, "ttl_s"),
        ({"ttl_s": True}, "ttl_s"),
        ({"ttl_s": None}, "ttl_s"),
        ({"target": "http://user:CANARY@engine:9001"}, "target"),
        ({"target": "engine"}, "target"),
        ({"reason": ""}, "reason"),
        ({"reason": "   "}, "reason"),
        ({"reason": "x" * 201}, "reason"),
        ({"reason": "two\nlines"}, "reason"),
        ({"tokens": 8192}, "tokens"),
        ({"by": "a\x1b[31mb"}, "by"),
        ({"by": "x" * 65}, "by"),
        ({"CANARY": 1}, "CANARY"),
    ],
)
def test_a_bad_override_is_refused_by_field(
    client: TestClient, state: ConsoleState, change: dict[str, Any], param: str
) -> None:
    answer = client.post(OVERRIDES, json={**DRAIN, **change})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert "CANARY@" not in answer.text
    assert state.overrides.document.seq == 0


@pytest.mark.parametrize("target", ["10.0.0.5:9001", "engine-0.lan:80", "[2001:db8::1]:9001", "engine:443/openai/v1"])
def test_names_that_replicas_may_have(client: TestClient, target: str) -> None:
    assert client.post(OVERRIDES, json={**DRAIN, "target": target}).json()["target"] == target


@pytest.mark.parametrize("missing", sorted(DRAIN.keys() - {"kind"}))
def test_every_field_but_the_kind_is_required(client: TestClient, missing: str) -> None:
    answer = client.post(OVERRIDES, json={name: value for name, value in DRAIN.items() if name != missing})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_value")
    assert answer.json()["error"]["param"] == missing


def test_without_a_kind_a_replica_is_drained(client: TestClient) -> None:
    answer = client.post(OVERRIDES, json={name: value for name, value in DRAIN.items() if name != "kind"})
    assert (answer.status_code, answer.json()["kind"], answer.json()["tokens"]) == (201, "drain", None)


@pytest.mark.parametrize("target", ["qwen", "*", "Qwen/Qwen3-32B: long, é"])
def test_refuse_long_inputs_list_and_end(client: TestClient, state: ConsoleState, target: str) -> None:
    made = client.post(OVERRIDES, json={**REFUSE, "target": target})
    assert made.status_code == 201
    shown = {"kind": "refuse_long_inputs", "target": target, "tokens": 8192}
    assert shown.items() <= made.json().items()
    assert shown.items() <= client.get(OVERRIDES).json()["overrides"][0].items()
    (entry,) = state.overrides.active()
    assert (entry.kind, entry.target, entry.tokens) == ("refuse_long_inputs", target, 8192)
    assert client.delete(f"{OVERRIDES}/{made.json()['id']}").status_code == 204
    assert client.get(OVERRIDES).json()["overrides"] == []
    lines = client.get("/api/timeline", params={"limit": 2}).json()["actions"]
    assert [(a["kind"], a["change"], a["target"], a["tokens"]) for a in lines] == [
        ("override.deleted", "refuse_long_inputs", target, 8192),
        ("override.created", "refuse_long_inputs", target, 8192),
    ]


@pytest.mark.parametrize(
    ("change", "code", "param", "words"),
    [
        ({"tokens": None}, "missing_value", "tokens", "tokens: is missing; give the tokens of the longest input"),
        ({"tokens": 0}, "invalid_value", "tokens", "greater than or equal to 1"),
        ({"tokens": "8192"}, "invalid_value", "tokens", "valid integer"),
        ({"tokens": 8192.5}, "invalid_value", "tokens", "valid integer"),
        ({"tokens": 10**12}, "invalid_value", "tokens", "less than or equal to 1000000000"),
        ({"target": ""}, "invalid_value", "target", "at least 1 character"),
        ({"target": "a\nb"}, "invalid_value", "target", "one line"),
        ({"target": "x" * 513}, "invalid_value", "target", "at most 512"),
        ({"kind": "drain", "tokens": None}, "invalid_value", "target", "is not the name of a replica; write host:port"),
        ({"kind": "drain", "target": "h:1"}, "invalid_value", "tokens", "does not belong to `drain`; leave it out"),
    ],
)
def test_a_bad_refusal_is_refused_by_field(
    client: TestClient, state: ConsoleState, change: dict[str, Any], code: str, param: str, words: str
) -> None:
    asked = {name: value for name, value in {**REFUSE, **change}.items() if value is not None}
    answer = client.post(OVERRIDES, json=asked)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert words in error["message"]
    assert state.overrides.document.seq == 0


def test_an_unknown_model_is_refused_when_the_data_plane_answers(client: TestClient, state: ConsoleState) -> None:
    state.data_plane.seen = reachable(STATUS)  # type: ignore[attr-defined]
    refused = client.post(OVERRIDES, json={**REFUSE, "target": "qwne"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "There is no such model; `*` means all. Known: glm, qwen."
    for target in ("qwen", "glm", "*"):
        assert client.post(OVERRIDES, json={**REFUSE, "target": target}).status_code == 201


@pytest.mark.parametrize(("asked", "left_out"), [(REFUSE, "models_left_out"), (DRAIN, "replicas_left_out")])
def test_any_name_is_taken_when_the_status_does_not_list_all(
    client: TestClient, state: ConsoleState, asked: dict[str, Any], left_out: str
) -> None:
    state.data_plane.seen = reachable({**STATUS, left_out: 1})  # type: ignore[attr-defined]
    assert client.post(OVERRIDES, json={**asked, "target": "other:1"}).status_code == 201


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 60_000])
def test_a_body_that_is_no_object(client: TestClient, body: bytes) -> None:
    answer = client.post(OVERRIDES, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_number_of_overrides_is_bounded(client: TestClient, state: ConsoleState) -> None:
    for _ in range(MAX_OVERRIDES):
        state.overrides.add(Change("drain", "h:1"), 60, reason="r", by="ann", held=(0, 0))
    answer = client.post(OVERRIDES, json=DRAIN)
    assert answer.status_code == 400
    assert "the most there may be" in answer.json()["error"]["message"]


def no_space(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


def test_full_disk_is_told_and_changes_nothing(
    client: TestClient, state: ConsoleState, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = client.post(OVERRIDES, json=DRAIN).json()["id"]
    monkeypatch.setattr("os.fsync", no_space)
    for answer in (client.post(OVERRIDES, json=DRAIN), client.delete(f"{OVERRIDES}/{id}")):
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "No space left on device" in answer.json()["error"]["message"]
    assert [o.id for o in state.overrides.active()] == [id]
    assert [a.kind for a in state.timeline.latest(9)] == ["override.created", "console.started"]


def test_unknown_override_path_and_method(client: TestClient) -> None:
    assert client.delete(f"{OVERRIDES}/nothing").json()["error"]["code"] == "route_not_found"
    assert client.get("/api/nothing").status_code == 404
    assert client.get("/api/status/").status_code == 404
    assert client.put("/api/status").json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_timeline_limit_is_bounded(client: TestClient, limit: str) -> None:
    answer = client.get("/api/timeline", params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


def test_timeline_shows_what_forebay_did_by_itself(client: TestClient, data_plane: Any, clock: ManualClock) -> None:
    def line(what: str, **more: object) -> dict[str, object]:
        at = timestamp(clock.wall_s())
        return {"at": at, "pool": "main", "kind": "tenant", "what": what, "target": "t7 (m)", "reason": "late", **more}

    moved = line("moved", ttl_s=600.0, undo="by itself")
    clock.advance(5)
    actions: list[object] = [line("returned", ttl_s=None, undo=""), moved, "not a line"]
    data_plane.seen = DataPlaneView(reachable=True, age_s=0.0, status={"actions": actions}, fault=None)
    shown = client.get("/api/timeline").json()["actions"]
    assert [a["kind"] for a in shown] == ["tenant.returned", "console.started", "tenant.moved"]
    told = next(a for a in shown if a["kind"] == "tenant.moved")
    assert (told["by"], told["target"], told["reason"], told["ttl_s"], told["undo"]) == (
        "forebay", "t7 (m)", "late", 600.0, "by itself"
    )  # fmt: skip
    assert [a["kind"] for a in client.get("/api/timeline", params={"limit": 1}).json()["actions"]] == [
        "tenant.returned"
    ]
    data_plane.seen = DataPlaneView(reachable=True, age_s=0.0, status={"actions": "none"}, fault=None)
    assert [a["kind"] for a in client.get("/api/timeline").json()["actions"]] == ["console.started"]


def test_timeline_survives_a_restart(client: TestClient, state: ConsoleState, tmp_path: Path) -> None:
    client.post(OVERRIDES, json=DRAIN)
    again = ConsoleState(state.clock, tmp_path, state.data_plane, listen=state.listen, token=TOKEN)
    headers = {"authorization": f"Bearer {TOKEN}"}
    with TestClient(build(again), base_url="http://127.0.0.1:7081", headers=headers) as later:
        kinds = [action["kind"] for action in later.get("/api/timeline").json()["actions"]]
        assert kinds == ["console.started", "override.created", "console.started"]
        assert len(later.get(OVERRIDES).json()["overrides"]) == 1


def test_health_says_nothing_else(stranger: TestClient) -> None:
    assert stranger.get("/health").json() == {"status": "ok"}
