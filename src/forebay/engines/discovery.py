"""Find the engines that already run on this machine, on the ports that they use by default."""

import asyncio

from msgspec import Struct

from forebay.domain import Replica
from forebay.engines.contract import Capabilities, Fetch
from forebay.engines.probe import probe

# The default ports of vLLM, SGLang, llama.cpp's server and Ollama; what answers decides what it is.
PORTS = (8000, 30000, 8080, 11434)
HOST = "127.0.0.1"
BUDGET_S = 1.5
STEP_S = 0.6


class Found(Struct, frozen=True):
    """An engine that runs here.

    Attributes:
        replica: its address.
        capabilities: what it is and can do.
    """

    replica: Replica
    capabilities: Capabilities

    @property
    def models(self) -> tuple[str, ...]:
        """Ids that it serves; empty when it wants a key or has no model, so that it cannot be used as it is."""
        return self.capabilities.models


async def discover(fetch: Fetch, budget_s: float = BUDGET_S) -> list[Found]:
    """Probe the usual loopback ports at once, and return what is surely an engine, in the order of `PORTS`.

    Args:
        fetch: does one GET.
        budget_s: bound of the whole search in seconds; who has not answered by then is not found.
    """
    found = await asyncio.gather(*(_look(Replica(f"{HOST}:{port}", HOST, port), fetch, budget_s) for port in PORTS))
    return [one for one in found if one is not None]


async def _look(replica: Replica, fetch: Fetch, budget_s: float) -> Found | None:
    try:
        async with asyncio.timeout(budget_s):
            capabilities = await probe(replica, fetch, min(STEP_S, budget_s))
    except TimeoutError:
        return None
    return Found(replica, capabilities) if capabilities.identified else None


def describe(found: Found) -> list[str]:
    """Say in lines for people what was found: engine, version, models, room, and each flag that it lacks."""
    known = found.capabilities
    product = known.product or "An OpenAI-compatible server"
    name = f"{product} {_plain(known.version)}" if known.version else product
    lines = [f"{name} at {found.replica.name}: {_models(known)}"]
    facts = _facts(known)
    if facts:
        lines.append(f"  {facts}")
    for advice in known.missing:
        if advice.certain:
            lines.append(f"  missing {advice.flag}: {advice.why}; {advice.fix}")
        else:
            lines.append(f"  cannot see {advice.flag}: {advice.why}; {advice.fix} unless it is set")
    return lines


def _models(known: Capabilities) -> str:
    if known.models:
        shown = ", ".join(_plain(model) for model in known.models[:5])
        rest = len(known.models) - 5
        more = f" and {rest} more" if rest > 0 else ""
        return f"{'model' if len(known.models) == 1 else 'models'} {shown}{more}"
    if known.guarded:
        return "wants an API key, so its models are unknown; give it as api_key of a pool in a configuration file"
    return "no model is loaded"


def _facts(known: Capabilities) -> str:
    facts = []
    if known.kv_tokens is not None:
        facts.append(f"KV room {known.kv_tokens:,} tokens")
    if known.max_model_len is not None:
        facts.append(f"context {known.max_model_len:,} tokens")
    if known.slots is not None:
        facts.append(f"{known.slots} slots")
    if not known.telemetry:
        facts.append("its load cannot be read")
    return ", ".join(facts)


def _plain(text: str) -> str:
    """Return what an engine calls itself, fit for a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:100])
