"""Following the files on a clock that is moved by hand."""

from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.config.documents import Override, OverrideDocument, StateDocument, write_document
from forebay.config.load import Address, Settings, default_settings, load
from forebay.config.reload import PERIOD_S, DocumentWatch, HeldDocument
from forebay.domain import Replica
from forebay.policy import Model, Policy, Pool

K1 = """\
listen: 127.0.0.1:7080
admin: 127.0.0.1:7081
pools:
  main: {engine: vllm, replicas: [{url: http://127.0.0.1:9001}, {url: http://127.0.0.1:9002}]}
models:
  m: {pool: main}
tenants:
  - {name: a, keys: [key-A]}
"""
K2 = K1.replace("  m: {pool: main}\n", "  m: {pool: main}\n  m2: {pool: main}\n")


class Bench:
    """A watch on files in a folder, and a clock."""

    def __init__(self, folder: Path, text: str = K1, listen: Address | None = None) -> None:
        self.clock = ManualClock()
        self.file = folder / "forebay.yaml"
        self.file.write_text(text)
        self.folder = folder / "policy"
        self.started = load(self.file, {}, self.clock.wall_s(), listen=listen)
        self.watch = DocumentWatch(self.started, self.file, self.folder, {"KEY": "sk-1"})

    def poll(self, polls: int = 1, every_s: float = PERIOD_S) -> list[Policy]:
        """Poll so many times; return the policies that came."""
        found = []
        for _ in range(polls):
            self.clock.advance(every_s)
            policy = self.watch.poll(self.clock.now_s(), self.clock.wall_s())
            found += [] if policy is None else [policy]
        return found

    def drained(self) -> set[str]:
        (policy,) = self.poll()
        return {name for pool in policy.pools.values() for name in pool.drained}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def override(bench: Bench, seq: int, ttl_s: float, target: str = "127.0.0.1:9001") -> OverrideDocument:
    now_s = bench.clock.wall_s()
    entry = Override("1", "drain", target, now_s + ttl_s, "ann", "why", now_s)
    return OverrideDocument(epoch=1, seq=seq, schema=1, entries=(entry,))


def test_nothing_happens_while_nothing_changes(bench: Bench) -> None:
    assert bench.poll(5) == []
    status = bench.watch.status
    assert status.config_ok and status.last_error == () and status.warnings == ()
    assert status.applied_hash == bench.started.policy.hash
    assert status.applied_at_s == ManualClock().wall_s()
    assert status.state == status.override == HeldDocument()


def test_a_change_is_taken_once_within_five_seconds(bench: Bench) -> None:
    bench.file.write_text(K2)
    (policy,) = bench.poll(10)
    assert set(policy.models) == {"m", "m2"}
    assert bench.watch.status.applied_hash == policy.hash != bench.started.policy.hash
    assert bench.watch.settings.policy == policy
    assert bench.watch.status.applied_at_s == policy.created == bench.started.policy.created + 1


def test_case_070_a_and_b(bench: Bench) -> None:
    bench.file.write_text(K1.replace("9001}, {", "9001} {"))
    assert bench.poll(10) == []
    assert not bench.watch.status.config_ok
    assert bench.watch.status.last_error[0].startswith(f"{bench.file}:4: file: is not YAML")
    assert bench.watch.status.applied_hash == bench.started.policy.hash
    bench.file.write_text(K1)
    assert bench.poll() == []
    assert bench.watch.status.config_ok and bench.watch.status.last_error == ()
    bench.file.write_text(K2)
    assert len(bench.poll(10)) == 1


def test_case_070_a_bad_save_after_a_good_one_goes_back_to_the_good_one(bench: Bench) -> None:
    bench.file.write_text(K2)
    bench.poll(3)
    bench.file.write_text(K2 + "colour: red\n")
    assert bench.poll(3) == [] and not bench.watch.status.config_ok
    bench.file.write_text(K2)
    assert bench.poll(3) == [] and bench.watch.status.config_ok
    bench.file.write_text(K1)
    (policy,) = bench.poll(3)
    assert policy.hash == bench.started.policy.hash


def test_case_070_c_two_halves(bench: Bench) -> None:
    half = K2[: K2.index("  m2:")]
    for every_s, polls in ((PERIOD_S, 1), (0.05, 4)):
        bench.file.write_text(half)
        assert bench.poll(polls, every_s) == []
        bench.file.write_text(K2)
        assert [set(policy.models) for policy in bench.poll(20, every_s)] == [{"m", "m2"}]
        assert bench.watch.status.config_ok
        bench.file.write_text(K1)
        assert len(bench.poll(20, every_s)) == 1


def test_case_070_d_nothing_of_a_file_with_a_fault_is_applied(bench: Bench) -> None:
    bench.file.write_text(K2.replace("vllm", "no-such-engine"))
    assert bench.poll(5) == []
    (fault,) = bench.watch.status.last_error
    assert fault.startswith(f"{bench.file}:4: pools.main.engine: is not one of the choices")


def test_a_file_that_is_away_for_a_moment_is_no_error_and_one_that_is_gone_is(bench: Bench) -> None:
    bench.file.unlink()
    assert bench.poll() == [] and bench.watch.status.config_ok
    assert bench.poll(3) == [] and not bench.watch.status.config_ok
    assert "cannot be read: No such file" in bench.watch.status.last_error[0]
    bench.file.write_text(K1)
    assert bench.poll() == [] and bench.watch.status.config_ok


def test_new_addresses_are_reported_and_not_applied(bench: Bench) -> None:
    bench.file.write_text(K2.replace(":7080", ":8080").replace(":7081", ":8081"))
    assert len(bench.poll(3)) == 1
    listen, admin = bench.watch.status.warnings
    assert listen.endswith("listen: is 127.0.0.1:8080 in the file, 127.0.0.1:7080 stays in use until a restart")
    assert "admin: is 127.0.0.1:8081 in the file" in admin
    assert bench.watch.settings.listen == bench.started.listen
    assert bench.watch.status.config_ok
    bench.file.write_text(K1)
    assert len(bench.poll(3)) == 1 and bench.watch.status.warnings == ()


def test_addresses_of_the_command_line_stay_without_a_warning(tmp_path: Path) -> None:
    bench = Bench(tmp_path, listen=Address("localhost", 9999))
    bench.file.write_text(K2.replace(":7080", ":8080"))
    assert len(bench.poll(3)) == 1
    assert bench.watch.status.warnings == ()
    assert bench.watch.settings.listen == Address("localhost", 9999)


def test_a_file_that_is_unsafe_at_the_address_in_use_is_refused(tmp_path: Path) -> None:
    reachable = K1.replace("127.0.0.1:7080", "0.0.0.0:7080").replace("key-A", "0123456789abcdef")
    bench = Bench(tmp_path, reachable)
    # Safe on loopback, but the data plane listens on all addresses until it is restarted.
    bench.file.write_text(K1[: K1.index("tenants")])
    assert bench.poll(3) == []
    assert "other machines reach 0.0.0.0:7080, and there are no tenants" in bench.watch.status.last_error[0]
    bench.file.write_text(K1)
    assert bench.poll(3) == []
    assert "fewer than 16 characters" in bench.watch.status.last_error[0]


def test_keys_come_from_the_environment_that_was_given(bench: Bench) -> None:
    bench.file.write_text(K1.replace("key-A", "env:KEY"))
    assert len(bench.poll(3)) == 1
    bench.file.write_text(K1.replace("key-A", "env:FOREBAY_TEST_NOT_SET"))
    assert bench.poll(3) == [] and "FOREBAY_TEST_NOT_SET" in bench.watch.status.last_error[0]


def test_documents_are_in_force_within_one_poll(bench: Bench) -> None:
    write_document(bench.folder, "state", StateDocument(epoch=2, seq=5, schema=1, drained=("127.0.0.1:9002",)))
    assert bench.drained() == {"127.0.0.1:9002"}
    write_document(bench.folder, "override", override(bench, 1, 60))
    assert bench.drained() == {"127.0.0.1:9001", "127.0.0.1:9002"}
    assert bench.watch.status.state == HeldDocument(2, 5)
    assert bench.watch.status.override == HeldDocument(1, 1)
    assert PERIOD_S < 1


def test_an_override_ends_by_itself(bench: Bench) -> None:
    write_document(bench.folder, "override", override(bench, 1, 2.0))
    assert bench.drained() == {"127.0.0.1:9001"}
    assert bench.poll(2) == []
    assert bench.drained() == set()
    assert bench.poll(3) == []


def test_a_refusal_of_long_inputs_is_in_force_within_one_poll_and_ends_by_itself(bench: Bench) -> None:
    now_s = bench.clock.wall_s()
    entry = Override("1", "refuse_long_inputs", "m", now_s + 2.0, "ann", "why", now_s, 8192)
    write_document(bench.folder, "override", OverrideDocument(epoch=1, seq=1, schema=1, entries=(entry,)))
    (policy,) = bench.poll()
    assert [rule.name for rule in policy.rules] == ["refuse-long:m"]
    assert policy.pools["main"].drained == frozenset()
    assert bench.poll(2) == []
    (policy,) = bench.poll()
    assert policy.rules == ()


def test_older_changed_broken_and_deleted_documents_change_nothing(bench: Bench) -> None:
    write_document(bench.folder, "override", override(bench, 7, 600))
    assert bench.drained() == {"127.0.0.1:9001"}
    path = bench.folder / "override.json"
    write_document(bench.folder, "override", override(bench, 6, 600, "127.0.0.1:9002"))
    assert bench.poll() == []
    assert bench.watch.status.override == HeldDocument(1, 7, "epoch 1 seq 6 is older than epoch 1 seq 7, which stays")
    write_document(bench.folder, "override", override(bench, 7, 600, "127.0.0.1:9002"))
    assert bench.poll() == [] and "changed without a new seq" in bench.watch.status.override.reason
    path.write_text("{")
    assert bench.poll() == [] and "is not of the format" in bench.watch.status.override.reason
    path.unlink()
    assert bench.poll() == [] and "has gone" in bench.watch.status.override.reason
    write_document(bench.folder, "override", override(bench, 8, 600, "127.0.0.1:9002"))
    assert bench.drained() == {"127.0.0.1:9002"}
    assert bench.watch.status.override == HeldDocument(1, 8)


def test_a_document_that_is_broken_from_the_start_is_reported(bench: Bench) -> None:
    bench.folder.mkdir()
    (bench.folder / "state.json").write_text("{}")
    assert bench.poll() == []
    assert bench.watch.status.state.reason.startswith("is not of the format")
    assert bench.watch.status.config_ok


def test_drained_stays_drained_over_a_change_of_the_file(bench: Bench) -> None:
    write_document(bench.folder, "override", override(bench, 1, 600))
    bench.poll()
    bench.file.write_text(K2)
    (policy,) = bench.poll(3)
    assert set(policy.models) == {"m", "m2"} and policy.pools["main"].drained == {"127.0.0.1:9001"}


def test_documents_work_without_a_file(tmp_path: Path) -> None:
    clock = ManualClock()
    pool = Pool("p", "vllm", (Replica("127.0.0.1:9001", "127.0.0.1", 9001),))
    address = Address("127.0.0.1", 0)
    settings: Settings = default_settings(address, address, {"p": pool}, {"m": Model("m", "p")}, clock.wall_s())
    watch = DocumentWatch(settings, None, tmp_path)
    assert watch.poll(clock.now_s(), clock.wall_s()) is None
    write_document(tmp_path, "state", StateDocument(epoch=1, seq=1, schema=1, drained=("127.0.0.1:9001",)))
    policy = watch.poll(clock.now_s(), clock.wall_s())
    assert policy is not None and policy.pools["p"].drained == {"127.0.0.1:9001"}
    assert watch.status.config_ok
