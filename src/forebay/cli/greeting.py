"""What `forebay serve` says to people when it serves."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from forebay.config.load import Address, Settings
from forebay.console.token import admin_token
from forebay.policy import Policy


def greeting(settings: Settings, port: int, data_dir: Path) -> str:
    """Say where Forebay answers, how to try it, and where its control plane is."""
    address, policy = Address(settings.listen.host, port), settings.policy
    lines = [f"Forebay answers on http://{address}/v1 for: {', '.join(policy.models) or 'no model yet'}"]
    if policy.models and not policy.tenants:
        lines.append(_example(address, policy))
    try:
        lines.append(f"Control plane: http://{settings.admin}/#token={admin_token(data_dir)}")
    except OSError as error:
        reason = f"{data_dir} cannot be written ({error.strerror}); choose another with --data-dir"
        lines.append(f"No control plane: {reason}")
    return "".join(f"{line}\n" for line in lines)


def say(text: str) -> None:
    """Print, unless nobody takes it: a full disk, or a reader that has left, is no reason not to serve."""
    if sys.stdout is not None:
        with suppress(OSError):
            # Not with print: it would try again at the end, and fail the exit.
            os.write(sys.stdout.fileno(), text.encode())


def cannot_listen(settings: Settings, error: OSError) -> str:
    """Say why the data port cannot be listened on, and what to do."""
    return f"cannot listen on {settings.listen}: {error.strerror}; choose another with --listen"


def _example(address: Address, policy: Policy) -> str:
    model = next(iter(policy.models))
    body = f'{{"model":"{model}","max_tokens":60,"messages":[{{"role":"user","content":"Hello!"}}]}}'
    return f"Try:  curl http://{address}/v1/chat/completions -d '{body}'"
