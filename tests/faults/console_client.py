"""What the admin port says and does, asked as an operator does."""

import json
import urllib.error
import urllib.request

from gateway_process import Document, Gateway


def status(gateway: Gateway) -> Document:
    """The admin status; empty while nobody answers."""
    code, body = gateway.admin_get("/api/status")
    return dict(json.loads(body)) if code == 200 else {}


def control_plane(gateway: Gateway) -> Document:
    """The control plane as the data plane reports it; empty while nobody answers."""
    return next((child for child in status(gateway).get("children") or () if child["name"] == "control plane"), {})


def drain(gateway: Gateway, target: str) -> tuple[int, Document]:
    """Ask for a replica to be drained; return HTTP status and body."""
    return override(gateway, "drain", target)


def override(gateway: Gateway, kind: str, target: str) -> tuple[int, Document]:
    """Ask for an override; return HTTP status and body."""
    token = (gateway.data_dir / "admin-token").read_text().strip()
    body = {"kind": kind, "target": target, "ttl_s": 60, "reason": "test", "by": "test"}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{gateway.admin_url}/api/policy/overrides", json.dumps(body).encode(), headers, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
