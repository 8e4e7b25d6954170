"""An upgrade: another process takes over from the running one, and no client notices."""

import subprocess
import time

import pytest
from faults.conftest import Field
from faults.console_client import control_plane, status
from gateway_process import Gateway, eventually, free_port

pytestmark = pytest.mark.integration

LIMITED = [{"name": "a", "keys": ["key-A"], "limits": {"tokens": 10_000_000}}, {"name": "b", "keys": ["key-B"]}]


def ended(process: "subprocess.Popen[bytes]", within_s: float = 20.0) -> int:
    """The exit code of a process that is to end by itself."""
    try:
        return process.wait(within_s)
    finally:
        process.kill()


def month(gateway: Gateway) -> int:
    """What tenant `a` has spent, as the control plane shows it."""
    shown = (status(gateway).get("data_plane") or {}).get("status") or {}
    return sum(row["tokens"] for row in shown.get("month", ()) if row["tenant"] == "a")


def test_a_take_over_drops_no_call(field: Field) -> None:
    gateway = field.start({**field.settings, "tenants": LIMITED})
    assert eventually(lambda: gateway.admin_get("/api/status")[0] == 200, 30)
    with field.load(gateway.address, streams=40) as load:
        assert eventually(lambda: gateway.metric("forebay_requests_in_flight") >= 40, 30)
        old = gateway.replaced()
        assert ended(old) == 0
        time.sleep(0.5)
        load.stop()
    assert not load.failures, load.failures[:5]
    assert len(load.samples) == len(load.asked)
    rows = gateway.rows(load.asked, 20)
    assert {row["outcome"] for row in rows} == {"ok"}
    runs = {row["call_id"].partition("-")[0] for row in rows}
    assert len(runs) == 2, "one of the two served nothing"
    assert eventually(lambda: gateway.admin_get("/api/status")[0] == 200, 30), "the admin port is not served"
    spent = sum(row["total_tokens"] for row in rows)
    assert eventually(lambda: month(gateway) == spent, 30), (month(gateway), spent)
    assert "Traceback" not in gateway.log
    assert eventually(gateway.idle, 30)
    assert control_plane(gateway)["state"] == "running"


def test_a_new_process_that_cannot_start_leaves_the_old_one_alone(field: Field) -> None:
    gateway = field.start(field.settings)
    with field.load(gateway.address) as load:
        good = gateway.file.read_bytes()
        gateway.file.write_text("pools: 5\n")
        old = gateway.replaced()
        assert ended(gateway.process) == 2
        gateway.file.write_bytes(good)
        gateway.process = old
        killed = gateway.replaced()
        gateway.process.kill()
        gateway.process.wait()
        gateway.process = killed
        time.sleep(0.5)
        load.stop()
    assert old.poll() is None
    assert not load.failures, load.failures[:5]
    assert gateway.stop() == 0


def test_without_a_running_process_it_is_a_plain_start(field: Field) -> None:
    gateway = field.start(field.settings)
    assert gateway.stop() == 0
    gateway.replaced()
    assert eventually(lambda: gateway.get("/health/ready")[0] == 200, 30)
    assert "this is a plain start" in gateway.log
    # And it can be taken over in its turn, also twice.
    for _ in range(2):
        assert ended(gateway.replaced()) == 0
    gateway.common_ending("small")


def test_a_second_process_on_the_same_folder_is_refused(field: Field) -> None:
    """Also by who took it over, and not any more when its owner was killed."""
    gateway = field.start(field.settings)
    file = gateway.file.read_text()
    # At other addresses: it is the folder that they cannot share.
    for port in (gateway.address[1], gateway.admin[1]):
        gateway.file.write_text(gateway.file.read_text().replace(f":{port}", f":{free_port()}"))
    assert ended(gateway.again()) == 3
    assert f"is in use by process {gateway.process.pid}: give this one another --data-dir" in gateway.log
    gateway.file.write_text(file)
    assert ended(gateway.replaced()) == 0
    assert ended(gateway.again()) == 3
    assert f"is in use by process {gateway.process.pid}:" in gateway.log
    gateway.process.kill()
    gateway.process.wait()
    gateway.process = gateway.again()
    assert eventually(lambda: gateway.get("/health/ready")[0] == 200, 30)
