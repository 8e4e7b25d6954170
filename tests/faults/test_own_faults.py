"""What Forebay itself may lose without a call that fails: its control plane, its disk, its documents."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cases.rawhttp import ask, chat
from faults.conftest import Field, Mount
from faults.console_client import control_plane, drain, status
from faults.load import CHAT, SMALL_TOKENS, Load, fault_of
from gateway_process import Gateway, eventually

from forebay.clock import SystemClock
from forebay.config.documents import Override, OverrideDocument, StateDocument, write_document

pytestmark = pytest.mark.integration

CALM_S = 1.5
FAULT_S = 3.0


def policy_hash(gateway: Gateway) -> str:
    return str(json.loads(gateway.get("/health/live")[1])["policy_hash"])


def journal_state(gateway: Gateway) -> str:
    """The one state that the metric shows."""
    samples = gateway.metrics().items()
    shown = [dict(labels)["state"] for (name, labels), on in samples if name == "forebay_journal_state" and on]
    assert len(shown) == 1, shown
    return shown[0]


def assert_all_recorded(gateway: Gateway, load: Load) -> None:
    """Every call has its line, and nothing was given up."""
    rows = gateway.rows(load.asked, within_s=30)
    assert {row["outcome"] for row in rows} == {"ok"}
    assert gateway.metric("forebay_journal_dropped_total") == 0


# --- the control plane ---


def test_the_control_plane_is_killed(field: Field) -> None:
    gateway = field.with_control_plane()
    first = control_plane(gateway)["pid"]
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        with load.fault("control plane killed"):
            os.kill(first, signal.SIGKILL)
            time.sleep(FAULT_S)
    load.assert_unharmed()
    assert eventually(lambda: control_plane(gateway).get("pid") not in (None, first), 30), "it did not come back"
    child = control_plane(gateway)
    assert (child["restarts"], child["last_exit"], child["state"]) == (1, "signal SIGKILL", "running")
    assert_all_recorded(gateway, load)


def test_the_control_plane_is_frozen(field: Field) -> None:
    gateway = field.with_control_plane()
    child = control_plane(gateway)["pid"]
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        with load.fault("control plane frozen"):
            os.kill(child, signal.SIGSTOP)
            time.sleep(FAULT_S)
        os.kill(child, signal.SIGCONT)
    load.assert_unharmed()
    assert eventually(lambda: control_plane(gateway).get("pid") == child, 30), "it did not go on"
    assert_all_recorded(gateway, load)


def test_a_frozen_control_plane_does_not_hold_up_the_stop(field: Field) -> None:
    gateway = field.with_control_plane()
    child = control_plane(gateway)["pid"]
    os.kill(child, signal.SIGSTOP)
    gateway.process.terminate()
    assert gateway.process.wait(30) == 0
    assert not Path(f"/proc/{child}").exists(), "the control plane outlived its parent"


# --- the disk ---


def fill(folder: Path) -> Path:
    """Leave no byte free on the disk of a folder; return the file that takes it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for block in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(block)):
                    pass
            except OSError:
                continue
    return filler


def test_a_full_disk(field: Field, mount: Mount, tmp_path: Path) -> None:
    mount(tmp_path / "data", "size=64m")
    gateway = field.with_control_plane()
    replica = status(gateway)["data_plane"]["status"]["replicas"][0]["replica"]
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        policy = policy_hash(gateway)
        with load.fault("disk full"):
            filler = fill(gateway.data_dir)
            time.sleep(FAULT_S)
        assert eventually(lambda: journal_state(gateway) == "full")
        assert eventually(lambda: status(gateway)["journal"] == "full")
        code, answer = drain(gateway, replica)
        assert (code, "No space left" in answer["error"]["message"]) == (500, True), answer
        assert policy_hash(gateway) == policy
        filler.unlink()
        assert eventually(lambda: journal_state(gateway) == "ok", 30), journal_state(gateway)
        assert drain(gateway, replica)[0] == 201, "the control plane has not recovered"
    load.assert_unharmed()
    assert_all_recorded(gateway, load)


class BrokenFolder:
    """The journal's folder, made useless and mended."""

    def __init__(self, folder: Path, mount: Mount) -> None:
        self.folder = folder
        self._moved = folder.with_name("moved")
        self._mount = mount

    def replaced_by_a_file(self) -> str:
        self.folder.rename(self._moved)
        self.folder.touch()
        return "File exists"

    def mend_replaced_by_a_file(self) -> None:
        self.folder.unlink()
        self._moved.rename(self.folder)

    def read_only_file_system(self) -> str:
        self._mount(self.folder, "ro,size=1m")
        return "Read-only file system"

    def mend_read_only_file_system(self) -> None:
        subprocess.run(["umount", str(self.folder)], check=True)

    def no_right_to_write(self) -> str:
        self.folder.chmod(0o500)
        if os.access(self.folder, os.W_OK):
            pytest.skip("no folder is read-only for this user")
        self.folder.chmod(0o700)
        for path in self.folder.iterdir():
            path.rename(path.with_suffix(".moved"))
        self.folder.chmod(0o500)
        return "Permission denied"

    def mend_no_right_to_write(self) -> None:
        self.folder.chmod(0o700)
        for path in self.folder.glob("*.moved"):
            path.rename(path.with_suffix(".jsonl" if "-" in path.stem else ".lock"))


@pytest.mark.parametrize("how", ["replaced_by_a_file", "read_only_file_system", "no_right_to_write"])
def test_the_journal_cannot_be_written(field: Field, mount: Mount, how: str) -> None:
    gateway = field.with_control_plane()
    broken = BrokenFolder(gateway.data_dir / "journal", mount)
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        with load.fault(how.replace("_", " ")):
            reason = getattr(broken, how)()
            time.sleep(FAULT_S)
        assert eventually(lambda: journal_state(gateway) == "failing")
        assert eventually(lambda: reason in status(gateway)["journal"])
        getattr(broken, f"mend_{how}")()
        assert eventually(lambda: journal_state(gateway) == "ok", 30), journal_state(gateway)
    load.assert_unharmed()
    assert_all_recorded(gateway, load)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files, whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("how", ["a_file", "read_only"])
def test_a_data_folder_that_cannot_be_written_from_the_start(
    field: Field, mount: Mount, tmp_path: Path, temporary: Path, how: str
) -> None:
    data_dir = tmp_path / "data"
    if how == "a_file":
        data_dir.touch()
    else:
        mount(data_dir, "ro,size=1m")
    gateway = field.start(field.settings, env={"TMPDIR": str(temporary)})
    with field.load(gateway.address) as load:
        assert eventually(lambda: journal_state(gateway) == "failing")
        if how == "a_file":
            data_dir.unlink()
        else:
            subprocess.run(["mount", "-o", "remount,rw,size=64m", str(data_dir)], check=True)
        assert eventually(lambda: journal_state(gateway) == "ok", 30), journal_state(gateway)
    load.assert_unharmed()
    assert eventually(lambda: (data_dir / "admin-token").exists(), 30), "the control plane is not tried again"
    assert eventually(lambda: control_plane(gateway).get("state") == "running", 30)
    assert_all_recorded(gateway, load)
    assert gateway.stop() == 0
    assert not list(temporary.iterdir()), "the socket's folder was left behind"


def assert_serves_and_stops(gateway: Gateway) -> None:
    answer = ask(gateway.address, "POST", CHAT, chat("small", stream=False, max_tokens=SMALL_TOKENS))
    assert fault_of(answer, SMALL_TOKENS, stream=False) == ""
    assert gateway.stop() == 0


def test_no_place_at_all_for_the_socket_to_the_control_plane(field: Field, tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "data").touch()
    too_long = temporary / ("x" * 120)
    too_long.mkdir()
    gateway = field.start(field.settings, env={"TMPDIR": str(too_long)})
    assert "no socket for the control plane" in gateway.log
    assert_serves_and_stops(gateway)
    assert not list(too_long.iterdir())


def test_a_start_whose_output_goes_to_a_full_disk(field: Field, tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    output.symlink_to("/dev/full")
    gateway = field.start(field.settings)
    replace_file(output, b"")  # an endless file must not be read when the test fails
    assert_serves_and_stops(gateway)


# --- the documents ---


def override(seq: int, target: str, epoch: int = 7) -> OverrideDocument:
    now_s = SystemClock().wall_s()
    entry = Override("o1", "drain", target, expires_at=now_s + 600, by="t", reason="t", created_at=now_s)
    return OverrideDocument(epoch=epoch, seq=seq, schema=1, entries=(entry,))


def replace_file(path: Path, data: bytes | None) -> None:
    """Put other bytes in a file's place; None makes it a named pipe, which would block whoever opens it."""
    path.unlink()
    if data is None:
        os.mkfifo(path)
    else:
        path.write_bytes(data)


class Breakage(NamedTuple):
    """What replaces each of the three documents, and a word of the reason that must be shown."""

    name: str
    config: tuple[bytes | None, str]
    override: tuple[bytes | None, str]
    state: tuple[bytes | None, str]

    def shown(self, why: tuple[str, str, str]) -> bool:
        """Whether these reasons are its own."""
        return all(word in reason for (_, word), reason in zip(self[1:], why, strict=True))


def breakages(good: bytes) -> list[Breakage]:
    older = msgspec.json.encode(override(4, "127.0.0.1:1"))
    return [
        Breakage(
            "half written, corrupt, older",
            (good[: good.index(b"models:") + 9], "forebay.yaml"),
            (b"\xff\x00{", "not of the format"),
            (msgspec.json.encode(StateDocument(epoch=2, seq=99, schema=1)), "older"),
        ),
        Breakage(
            "not YAML, older, half written",
            (b"pools: [", "forebay.yaml"),
            (older, "older"),
            (b'{"epoch":9,"seq":9,"sch', "not of the format"),
        ),
        Breakage(
            "named pipe, changed without a seq, of another schema",
            (None, "not a regular file"),
            (msgspec.json.encode(override(5, "127.0.0.1:1")), "without a new seq"),
            (b'{"epoch":9,"seq":9,"schema":2}', "not of the format"),
        ),
        Breakage("empty", (b"", "forebay.yaml"), (b"", "not of the format"), (None, "not a regular file")),
    ]


def refusals(gateway: Gateway) -> float:
    return gateway.metric("forebay_config_reload_failures_total")


def reasons(gateway: Gateway) -> tuple[str, str, str]:
    """Why each document on disk is not in force, as the admin status says."""
    documents = status(gateway)["documents"]
    return " ".join(documents["last_error"]), documents["override"]["reason"], documents["state"]["reason"]


def test_broken_and_older_documents(field: Field) -> None:
    gateway = field.with_control_plane()
    kept, drained = [server.base_url.removeprefix("http://") for server in field.engines.of("small")]
    folder = gateway.data_dir / "policy"
    write_document(folder, "override", override(5, drained))
    write_document(folder, "state", StateDocument(epoch=3, seq=2, schema=1))
    assert eventually(lambda: gateway.metric("forebay_replica_up", replica=drained) == 0, 30)
    files = gateway.file, folder / "override.json", folder / "state.json"
    good = [path.read_bytes() for path in files]
    policy, refused = policy_hash(gateway), 0.0
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        for breakage in breakages(good[0]):
            with load.fault(breakage.name):
                for path, (data, _) in zip(files, breakage[1:], strict=True):
                    replace_file(path, data)
                assert eventually(lambda last=refused: refusals(gateway) > last), "the file is not seen"
                assert eventually(lambda b=breakage: b.shown(reasons(gateway))), (breakage.name, reasons(gateway))
            assert gateway.metric("forebay_config_last_reload_ok") == 0
            refused = refusals(gateway)
            assert policy_hash(gateway) == policy
            assert gateway.metric("forebay_replica_up", replica=drained) == 0
            assert gateway.metric("forebay_replica_up", replica=kept) == 1
        for path, data in zip(files, good, strict=True):
            replace_file(path, data)
        assert eventually(lambda: reasons(gateway) == ("", "", ""), 30), reasons(gateway)
        assert gateway.metric("forebay_config_last_reload_ok") == 1
        write_document(folder, "override", override(6, kept))
        assert eventually(lambda: gateway.metric("forebay_replica_up", replica=drained) == 1, 30), (
            "stuck after an error"
        )
    load.assert_unharmed()
    assert policy_hash(gateway) != policy
    assert_all_recorded(gateway, load)
