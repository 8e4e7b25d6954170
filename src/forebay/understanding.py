"""From a request to a call: what is asked, of which model, by whom, and how much work it is."""

from forebay.admission import work
from forebay.domain import Tenant
from forebay.edge.body import Asked
from forebay.edge.prompt import text_bytes
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.policy import Model, Policy
from forebay.traffic import Call, Request
from forebay.wire.endpoints import Endpoint

# What engines may see of a client's headers: a closed list, so that no credential, no cookie and no header
# that steers an engine (priority, data-parallel rank, session) can pass.
FORWARDED = (b"accept", b"user-agent", b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta")
_MODEL_OPTIONAL = ("tokenize", "detokenize")


def understand(
    request: Request, endpoint: Endpoint, asked: Asked, tenant: Tenant, policy: Policy, call_id: str
) -> Call:
    """Turn a request into a call: the model must exist, be allowed, and have the endpoint.

    Raises:
        Refused: `missing_value`, `model_not_found`, `model_not_allowed`, `endpoint_not_supported`.
    """
    model = _model_of(endpoint, asked, tenant, policy)
    engine = ENGINES[policy.pools[model.pool].engine]
    if endpoint.name not in engine.endpoints:
        raise Refused("endpoint_not_supported", f"the engine of this model ({engine.kind}) has no {endpoint.path}")
    headers = request.headers
    return Call(
        call_id,
        endpoint,
        model.name,
        asked.stream,
        asked.wants_usage,
        tenant,
        work.estimate_prompt_tokens(_prompt_bytes(request, asked, tenant)),
        work.expected_output_tokens(asked.max_tokens) if endpoint.streams else 0,
        tuple([(key, headers[key]) for key in FORWARDED if key in headers]),
        request.received_s,
        request.received_s + model.timeouts.total_s,
    )


def request_id(request: Request) -> str:
    """Return the client's request id if it is 1-128 visible ASCII characters, else an empty text."""
    raw = request.headers.get(b"x-request-id", b"")
    text = raw.decode("latin-1")
    return text if 0 < len(raw) <= 128 and text.isascii() and text.isprintable() and " " not in text else ""


def _model_of(endpoint: Endpoint, asked: Asked, tenant: Tenant, policy: Policy) -> Model:
    name = asked.model
    if not name and endpoint.name in _MODEL_OPTIONAL and len(policy.models) == 1:
        name = next(iter(policy.models))
    if not name:
        raise Refused("missing_value", "model is required", param="model")
    model = policy.models.get(name)
    if model is None:
        raise Refused("model_not_found", f"there is no model {name[:128]!r}", param="model")
    if tenant.models is not None and name not in tenant.models:
        raise Refused("model_not_allowed", f"this key may not use the model {name[:128]!r}", param="model")
    return model


def _prompt_bytes(request: Request, asked: Asked, tenant: Tenant) -> int:
    # Who pays by the token is measured by what the model reads; for the rest the whole body is near enough.
    return len(request.body) if tenant.tokens_per_minute is None else text_bytes(asked)
