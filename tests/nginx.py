"""A real nginx in front of gateways: on a free port, with what a test asks of it."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cases.rawhttp import Address
from gateway_process import eventually, free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream forebay {{ {servers} }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://forebay;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_next_upstream error timeout non_idempotent;
            {timeout};
        }}
    }}
}}
"""


@contextmanager
def nginx_before(addresses: Sequence[Address], folder: Path, timeout: str, upstream: str = "") -> Iterator[int]:
    """Run nginx before gateways, and give the port on which it answers.

    Args:
        addresses: of the gateways; one that is named several times is tried as often.
        folder: for its files.
        timeout: a directive of the location, such as `proxy_read_timeout 1s`.
        upstream: further directives of the upstream.
    """
    port = free_port()
    servers = " ".join(f"server {host}:{its_port};" for host, its_port in addresses)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, servers=f"{servers} {upstream}", port=port, timeout=timeout))
    process = subprocess.Popen([str(NGINX), "-p", str(folder), "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: _up(port), 10), "nginx does not answer"
        yield port
    finally:
        process.terminate()
        process.wait(10)


def _up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
