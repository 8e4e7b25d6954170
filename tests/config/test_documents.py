"""The state and override documents: order, format, writing, merging."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.documents import (
    MAX_BYTES,
    DocumentError,
    Override,
    OverrideDocument,
    StateDocument,
    merge,
    newer,
    path_of,
    read_document,
    write_document,
)
from forebay.domain import Replica
from forebay.policy import Action, Condition, Model, Policy, Pool, Rule

NOW_S = 1_800_000_000.0


def state(seq: int = 1, *drained: str, epoch: int = 1) -> StateDocument:
    return StateDocument(epoch=epoch, seq=seq, schema=1, drained=drained)


def drain(target: str, expires_at: float = NOW_S + 60, id: str = "1") -> Override:
    return Override(id, "drain", target, expires_at, "ann", "new driver", NOW_S)


def refuse(target: str, tokens: int, expires_at: float = NOW_S + 60, id: str = "1") -> Override:
    return Override(id, "refuse_long_inputs", target, expires_at, "ann", "too much load", NOW_S, tokens)


def override(seq: int = 1, *entries: Override) -> OverrideDocument:
    return OverrideDocument(epoch=1, seq=seq, schema=1, entries=entries)


def policy() -> Policy:
    replicas = (Replica("h:1", "h", 1), Replica("h:2/base", "h", 2, base_path="/base"), Replica("h:3", "h", 3))
    pools = {"p": Pool("p", "vllm", replicas), "q": Pool("q", "vllm", replicas[:1])}
    return Policy(pools=pools, models={}, tenants={}, hash="0123456789ab")


def drained(merged: Policy) -> dict[str, set[str]]:
    return {name: set(pool.drained) for name, pool in merged.pools.items()}


def test_order_of_documents() -> None:
    assert newer(None, state()).take
    assert newer(state(1), state(2)).take
    assert newer(state(9, epoch=1), state(0, epoch=2)).take
    assert newer(state(2), state(1)).reason == "epoch 1 seq 1 is older than epoch 1 seq 2, which stays"
    assert newer(state(0, epoch=2), state(9, epoch=1)).reason.startswith("epoch 1 seq 9 is older")
    assert newer(state(1, "h:1"), state(1, "h:1")).reason == ""
    assert newer(state(1), state(1, "h:1")).reason.startswith("epoch 1 seq 1 has changed without a new seq")
    assert not newer(state(1), state(1, "h:1")).take


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["", "h:1", "h:2"])), max_size=12))
def test_what_is_held_only_grows(offers: list[tuple[int, int, str]]) -> None:
    held: StateDocument | None = None
    for epoch, seq, target in offers:
        offered = state(seq, *([target] if target else []), epoch=epoch)
        verdict = newer(held, offered)
        assert verdict.take or offered == held or verdict.reason
        assert not (verdict.take and verdict.reason)
        if verdict.take:
            assert held is None or (offered.epoch, offered.seq) > (held.epoch, held.seq)
            held = offered
        assert held is not None and (held.epoch, held.seq) >= (epoch, seq)


def test_written_documents_are_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "policy"
    assert read_document(folder, "state") is None and read_document(folder, "override") is None
    write_document(folder, "state", state(7, "h:1"))
    write_document(folder, "override", override(3, drain("h:2"), refuse("*", 8192)))
    assert read_document(folder, "state") == state(7, "h:1")
    assert read_document(folder, "override") == override(3, drain("h:2"), refuse("*", 8192))
    assert sorted(path.name for path in folder.iterdir()) == ["override.json", "state.json"]
    assert folder.stat().st_mode & 0o077 == 0 and path_of(folder, "state").stat().st_mode & 0o077 == 0


def test_the_format_is_the_one_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "config.md").read_text(encoding="utf-8")
    shown = [json.loads(block.split("```")[0]) for block in page.split("```json")[1:]]
    folder_state, folder_override = shown
    assert StateDocument(**{**folder_state, "drained": tuple(folder_state["drained"])}) == state(7, "127.0.0.1:9001")
    entry = Override("4f1c", "drain", "127.0.0.1:9001", NOW_S + 600, "ann", "new driver", NOW_S)
    assert [Override(**found) for found in folder_override["entries"]] == [entry]


def test_a_write_replaces_and_syncs_file_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    write_document(tmp_path, "state", state(1))
    assert steps == ["file", "rename", "folder"]


def test_a_failed_write_leaves_the_old_one_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_document(tmp_path, "state", state(1))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_document(tmp_path, "state", state(2))
    assert read_document(tmp_path, "state") == state(1)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_what_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="is not of the format"):
        write_document(tmp_path, "state", state(-1))
    with pytest.raises(DocumentError, match="is not of the format"):
        write_document(tmp_path, "override", override(1, drain("")))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not of the format: Input data was truncated"),
        (b'{"epoch":1,"seq":1,"schema":1', "is not of the format: Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"epoch":1,"seq":1}', "missing required field `schema`"),
        (b'{"epoch":1,"seq":1,"schema":2}', "is not of the format: Invalid enum value 2"),
        (b'{"epoch":1,"seq":1,"schema":1,"x":1}', "contains unknown field `x`"),
        (b'{"epoch":-1,"seq":1,"schema":1}', "Expected `int` >= 0"),
        (b'{"epoch":1,"seq":"1","schema":1}', "Expected `int`, got `str`"),
        (b'{"epoch":1,"seq":1,"schema":1,"drained":[""]}', "Expected `str` of length >= 1"),
        (b'{"epoch":1,"seq":1,"schema":1,"drained":["\xff"]}', "is not of the format"),
        (b"[" * 100_000, "is not of the format"),
        (b" " * (MAX_BYTES + 1), f"is larger than {MAX_BYTES} bytes"),
    ],
    ids=range(12),
)
def test_a_broken_document_is_refused_with_a_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "state.json").write_bytes(data)
    with pytest.raises(DocumentError) as caught:
        read_document(tmp_path, "state")
    assert reason in str(caught.value)


def entry(**fields: Any) -> bytes:
    base = {"id": "1", "kind": "drain", "target": "h:1", "expires_at": 2, "by": "ann", "reason": "", "created_at": 1}
    return json.dumps({"epoch": 1, "seq": 1, "schema": 1, "entries": [{**base, **fields}]}).encode()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": "refuse_long_inputs"}, "`tokens` is missing; give the tokens of the longest input"),
        ({"kind": "refuse_long_inputs", "tokens": None}, "`tokens` is missing"),
        ({"tokens": 8192}, "`tokens` does not belong to `drain`; leave it out"),
        ({"kind": "refuse_long_inputs", "tokens": 0}, "Expected `int` >= 1"),
        ({"kind": "refuse_long_inputs", "tokens": 8192.5}, "Expected `int"),
        ({"kind": "refuse_long_inputs", "tokens": 10**12}, "Expected `int` <= 1000000000"),
        ({"kind": "shorten", "tokens": 1}, "Invalid enum value 'shorten'"),
    ],
)
def test_a_wrong_entry_is_refused_with_what_is_wrong(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    (tmp_path / "override.json").write_bytes(entry(**fields))
    with pytest.raises(DocumentError) as caught:
        read_document(tmp_path, "override")
    assert reason in str(caught.value) and "$.entries[" in str(caught.value)


def test_a_document_of_the_older_version_is_read_and_a_drain_is_written_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "override.json").write_bytes(entry())
    read = read_document(tmp_path, "override")
    assert read is not None and read.entries[0].tokens is None
    write_document(tmp_path, "override", read)
    assert b"tokens" not in (tmp_path / "override.json").read_bytes()


def test_an_override_that_makes_no_sense_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="`tokens` is missing"):
        Override("1", "refuse_long_inputs", "m", NOW_S, "ann", "", NOW_S)


def test_a_folder_a_pipe_and_a_file_for_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    os.mkfifo(tmp_path / "override.json")
    for read in (lambda: read_document(tmp_path, "state"), lambda: read_document(tmp_path, "override")):
        with pytest.raises(DocumentError, match="is not a regular file"):
            read()
    (tmp_path / "file").touch()
    with pytest.raises(DocumentError, match="cannot be read: Not a directory"):
        read_document(tmp_path / "file", "state")


def test_without_documents_the_policy_is_that_of_the_file() -> None:
    base = policy()
    assert merge(base, None, None, NOW_S) is base


def test_both_documents_drain() -> None:
    merged = merge(policy(), state(1, "h:1"), override(1, drain("h:2/base")), NOW_S)
    assert drained(merged) == {"p": {"h:1", "h:2/base"}, "q": {"h:1"}}
    assert drained(merge(policy(), None, override(1, drain("h:2")), NOW_S)) == {"p": {"h:2/base"}, "q": set()}
    assert drained(merge(policy(), state(1, "gone:1", "h"), None, NOW_S)) == {"p": set(), "q": set()}


def test_an_override_ends_at_its_end() -> None:
    document = override(1, drain("h:1", NOW_S + 10), drain("h:3", NOW_S + 20))
    assert drained(merge(policy(), None, document, NOW_S + 9.9))["p"] == {"h:1", "h:3"}
    assert drained(merge(policy(), None, document, NOW_S + 10))["p"] == {"h:3"}
    assert drained(merge(policy(), None, document, NOW_S + 20))["p"] == set()


OWN = Rule("batch", (Condition("retries", "ge", 3),), Action(value="low"))


def refused(document: OverrideDocument, wall_s: float = NOW_S) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Name and conditions of the rules in front of the policy's own."""
    models = {"qwen": Model("qwen", "p"), "glm": Model("glm", "p")}
    rules = merge(Policy(pools={}, models=models, tenants={}, rules=(OWN,), hash="a"), None, document, wall_s).rules
    assert rules[-1] == OWN
    assert all(rule.then.reject for rule in rules[:-1])
    return [(rule.name, [(c.field, c.value) for c in rule.when]) for rule in rules[:-1]]


def test_long_inputs_are_refused_before_any_other_rule_until_the_end() -> None:
    document = override(1, refuse("qwen", 8192, NOW_S + 10), drain("h:1"))
    assert refused(document, NOW_S + 9.9) == [("refuse-long:qwen", [("input_tokens", 8192), ("model", "qwen")])]
    assert refused(document, NOW_S + 10) == []


def test_the_lowest_limit_comes_first_and_holds_for_its_target() -> None:
    document = override(1, refuse("*", 32_768), refuse("qwen", 8192), refuse("*", 16_384), refuse("glm", 65_536))
    names = [(name, when[0][1]) for name, when in refused(document)]
    assert names == [("refuse-long:qwen", 8192), ("refuse-long:*", 16_384), ("refuse-long:glm", 65_536)]
    assert len({name for name, _ in names}) == len(names), "the rules engine wants distinct names"


def test_a_model_that_is_not_there_is_ignored_and_a_refusal_drains_nothing() -> None:
    assert refused(override(1, refuse("gone", 8192))) == []
    assert drained(merge(policy(), None, override(1, refuse("h:1", 8192)), NOW_S)) == {"p": set(), "q": set()}
    assert merge(policy(), None, override(1, drain("*")), NOW_S).rules == ()


def test_the_hash_covers_all_three() -> None:
    def hash_of(state: Any = None, override: Any = None, wall_s: float = NOW_S, base: str = "a") -> str:
        return merge(Policy(pools={}, models={}, tenants={}, hash=base), state, override, wall_s).hash

    entry = drain("h:1", NOW_S + 10)
    hashes = [
        hash_of(),
        hash_of(state(1)),
        hash_of(state(2)),
        hash_of(state(2, "h:1")),
        hash_of(state(2, "h:1"), base="b"),
        hash_of(None, override(1)),
        hash_of(None, override(1, entry)),
        hash_of(state(1), override(1, entry)),
        hash_of(None, override(1, refuse("h:1", 8192, NOW_S + 10))),
        hash_of(None, override(1, refuse("h:1", 8193, NOW_S + 10))),
    ]
    assert len(set(hashes)) == len(hashes)
    assert hash_of(None, override(1, entry), NOW_S + 10) != hash_of(None, override(1, entry), NOW_S + 9)
    assert hash_of(None, override(1, entry), NOW_S + 10) == hash_of(None, override(1))
    assert all(len(found) == 12 for found in hashes[1:])
