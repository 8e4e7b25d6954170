"""Input that is likely a mistake: found before an engine sees it, and marked, repaired or refused as the model says."""

from forebay.admission.hygiene import CLEAN, LARGE_BYTES, inspect, inspect_sliced, refusal
from forebay.edge import body
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.ports import Record
from forebay.traffic import Call, Request
from forebay.wire.endpoints import Endpoint

_SURROGATE = "lone_surrogate"


async def read(request: Request, endpoint: Endpoint, policy: Policy) -> Asked:
    """Read a body; one that is JSON but for lone surrogates is read as repaired, for the models that repair.

    Raises:
        Refused: as `edge.body.read`.
    """
    try:
        return await body.read(request.body, endpoint, policy.limits.json_depth)
    except Refused as broken:
        if broken.code != "invalid_json" or all(model.hygiene != "repair" for model in policy.models.values()):
            raise
        seen = await inspect_sliced(request.body, "repair")
        if seen.repaired is None or _SURROGATE not in seen.found:
            raise
        asked = await body.read(seen.repaired, endpoint, policy.limits.json_depth)
        model = policy.models.get(asked.model)
        if model is None or model.hygiene != "repair":
            raise
        return asked


async def cleaned(request: Request, asked: Asked, call: Call, policy: Policy, record: Record) -> Asked:
    """Do what the hygiene of the call's model says; return what is asked for then.

    Raises:
        Refused: `hygiene_rejected`.
    """
    text, mode = request.body, policy.models[call.model].hygiene
    seen = await inspect_sliced(text, mode) if len(text) > LARGE_BYTES else inspect(text, mode)
    if seen is CLEAN:
        return asked
    record.hygiene = seen.found
    refused = refusal(seen, asked.members) if mode == "reject" else None
    if refused is not None:
        raise refused
    if seen.repaired is None:
        return asked
    return await body.read(seen.repaired, call.endpoint, policy.limits.json_depth)
