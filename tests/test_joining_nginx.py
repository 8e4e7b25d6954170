"""nginx tries again what may not be done twice: with an `Idempotency-Key` the engine sees it once."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import rawhttp
from cases.pair import CHAT, Pair
from cases.rawhttp import chat
from gateway_process import document, eventually, free_port
from notation import Answer, Wait, completion, reply

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = [pytest.mark.integration, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]

CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream forebay {{ server {gateway}; server {gateway}; server {gateway}; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://forebay;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 1s;
            proxy_next_upstream error timeout non_idempotent;
        }}
    }}
}}
"""


@pytest.fixture
def behind(tmp_path: Path, engine: Any, gateway: Any) -> Iterator[tuple[Pair, int]]:
    scripted = engine()
    timeouts = {"connect_s": 1, "first_byte_s": 40, "stall_s": 40, "total_s": 60}
    pair = Pair(scripted, gateway(document(scripted, timeouts=timeouts)))
    port = free_port()
    host, its_port = pair.gateway.address
    config = tmp_path / "nginx.conf"
    config.write_text(CONFIG.format(folder=tmp_path, gateway=f"{host}:{its_port}", port=port))
    process = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        yield pair, port
    finally:
        process.terminate()
        process.wait(10)


def up(port: int) -> bool:
    try:
        return rawhttp.ask(("127.0.0.1", port), "GET", "/health/live").status == 200
    except OSError:
        return False


@pytest.mark.parametrize("keyed", [True, False])
def test_a_retry_by_nginx_is_charged_once(behind: tuple[Pair, int], keyed: bool) -> None:
    """Its read time-out ends before the answer is there, so it sends the call again, to the same gateway here."""
    pair, port = behind
    assert eventually(lambda: up(port), 10)
    slow = Answer((Wait(1.4), *reply(200, completion(prompt=3, tokens=4)).steps))
    pair.engine.play(slow, reply(200, completion(prompt=3, tokens=4)))
    headers = ("Idempotency-Key: once",) if keyed else ()
    answer = rawhttp.ask(("127.0.0.1", port), "POST", CHAT, chat(stream=False), headers=headers)
    assert answer.status == 200
    assert len(pair.engine.posts) == (1 if keyed else 2)
    assert eventually(pair.gateway.idle)
    if keyed:
        kinds = ("prompt", "completion")
        assert sum(pair.gateway.metric("forebay_tokens_total", kind=kind) for kind in kinds) == 7
        assert pair.row(answer)["joined_how"] in ("key", "replay")
