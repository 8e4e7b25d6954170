import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clock import ManualClock
from forebay.config.documents import Override, merge, read_document
from forebay.console.overrides import (
    MAX_OVERRIDES,
    NO_VERSION,
    Change,
    Overrides,
    TooManyOverridesError,
    Version,
    next_version,
)
from forebay.domain import Replica
from forebay.policy import Model, Policy, Pool

versions = st.tuples(st.integers(0, 2**40), st.integers(0, 2**40))


@given(versions, versions, st.floats(0, 2**33))
def test_a_version_is_newer_than_all_that_were_seen(current: Version, held: Version, wall_s: float) -> None:
    assert next_version(current, held, wall_s) > max(current, held)


def test_a_lost_file_starts_an_epoch_from_the_clock_or_beyond_what_is_held() -> None:
    assert next_version(NO_VERSION, NO_VERSION, 1_800_000_000.5) == (1_800_000_000, 1)
    assert next_version(NO_VERSION, (1_900_000_000, 7), 1_800_000_000.5) == (1_900_000_001, 1)
    assert next_version((5, 7), NO_VERSION, 1_800_000_000.5) == (5, 8)
    assert next_version((5, 7), (5, 9), 0) == (5, 10)


def add(overrides: Overrides, target: str = "h:1", ttl_s: int = 60, held: Version = NO_VERSION) -> Override:
    return overrides.add(Change("drain", target), ttl_s, reason="r", by="ann", held=held)


def version(overrides: Overrides) -> Version:
    return overrides.document.epoch, overrides.document.seq


def on_disk(folder: Path) -> dict[str, object]:
    document: dict[str, object] = json.loads((folder / "override.json").read_bytes())
    return document


def test_overrides_are_kept_across_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    overrides = Overrides(tmp_path, clock)
    assert not (tmp_path / "override.json").exists()
    first = add(overrides, "h:1")
    second = add(overrides, "h:2")
    again = Overrides(tmp_path, clock)
    assert again.active() == (first, second)
    assert version(again) == (1_800_000_000, 2)
    assert again.remove(first.id, NO_VERSION) == first
    assert again.remove(first.id, NO_VERSION) is None
    assert version(again) == (1_800_000_000, 3)
    assert Overrides(tmp_path, clock).active() == (second,)


def test_an_override_ends_by_itself(tmp_path: Path, clock: ManualClock) -> None:
    overrides = Overrides(tmp_path, clock)
    made = add(overrides, ttl_s=60)
    assert (made.created_at, made.expires_at) == (1_800_000_000.0, 1_800_000_060.0)
    clock.advance(59.9)
    assert not overrides.has_ended()
    assert overrides.expire(NO_VERSION) == ()
    assert overrides.document.seq == 1
    clock.advance(0.1)
    assert overrides.has_ended()
    assert overrides.active() == ()
    assert overrides.remove(made.id, NO_VERSION) is None
    assert overrides.expire(NO_VERSION) == (made,)
    assert overrides.document.seq == 2
    assert not overrides.has_ended()
    assert Overrides(tmp_path, clock).document.entries == ()


def test_number_is_bounded_and_ended_ones_make_room(tmp_path: Path, clock: ManualClock) -> None:
    overrides = Overrides(tmp_path, clock)
    add(overrides, ttl_s=1)
    for number in range(1, MAX_OVERRIDES):
        add(overrides, f"h:{number}")
    before = on_disk(tmp_path)
    with pytest.raises(TooManyOverridesError):
        add(overrides)
    assert on_disk(tmp_path) == before
    clock.advance(1)
    add(overrides)
    assert len(overrides.active()) == MAX_OVERRIDES


def test_a_broken_document_is_told_and_replaced_by_a_newer_one(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "override.json"
    path.write_text('{"epoch": 3, "seq"')
    overrides = Overrides(tmp_path, clock)
    assert overrides.fault is not None
    assert overrides.fault.startswith("override.json: is not of the format: ")
    assert overrides.fault.endswith("; the next change replaces it")
    assert path.read_text() == '{"epoch": 3, "seq"'
    add(overrides, held=(2_000_000_000, 9))
    assert version(overrides) == (2_000_000_001, 1)
    assert overrides.fault is None
    assert Overrides(tmp_path, clock).active() == overrides.active()


def test_a_failed_write_changes_nothing(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = Overrides(tmp_path, clock)
    first = add(overrides)
    before = on_disk(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        add(overrides)
    with pytest.raises(OSError, match="No space left"):
        overrides.remove(first.id, NO_VERSION)
    assert overrides.active() == (first,)
    assert on_disk(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["override.json"]


def test_a_document_that_is_in_place_although_its_write_failed_is_taken_over(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = Overrides(tmp_path, clock)
    first = add(overrides)

    def fails(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("forebay.config.documents._sync_folder", fails)
        with pytest.raises(OSError, match="Input/output"):
            overrides.remove(first.id, NO_VERSION)
    assert overrides.active() == ()
    assert version(overrides) == (1_800_000_000, 2)


def test_the_data_plane_takes_what_is_written(tmp_path: Path, clock: ManualClock) -> None:
    replicas = (Replica("h:1", "h", 1), Replica("h:2", "h", 2))
    policy = Policy(pools={"main": Pool("main", "vllm", replicas)}, models={}, tenants={})
    add(Overrides(tmp_path, clock), "h:2", ttl_s=60)
    document = read_document(tmp_path, "override")
    assert merge(policy, None, document, clock.wall_s()).pools["main"].drained == {"h:2"}
    assert merge(policy, None, document, clock.wall_s() + 60).pools["main"].drained == frozenset()


def test_the_data_plane_refuses_what_is_refused_here(tmp_path: Path, clock: ManualClock) -> None:
    policy = Policy(pools={}, models={"m": Model("m", "main")}, tenants={})
    change = Change("refuse_long_inputs", "m", 8192)
    made = Overrides(tmp_path, clock).add(change, 60, reason="r", by="ann", held=NO_VERSION)
    assert (made.kind, made.target, made.tokens) == ("refuse_long_inputs", "m", 8192)
    assert Overrides(tmp_path, clock).active() == (made,)
    document = read_document(tmp_path, "override")
    assert [rule.name for rule in merge(policy, None, document, clock.wall_s()).rules] == ["refuse-long:m"]
    assert merge(policy, None, document, clock.wall_s() + 60).rules == ()
