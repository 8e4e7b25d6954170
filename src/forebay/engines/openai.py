"""Any other server with OpenAI routes: TensorRT-LLM, TGI, Ollama, a gateway. Nothing is known beyond the routes."""

from forebay.engines.contract import EndpointName, Telemetry
from forebay.engines.llamacpp import Llamacpp
from forebay.engines.sglang import Sglang
from forebay.engines.vllm import Vllm
from forebay.policy import EngineKind


class Openai:
    """The adapter of a generic server."""

    kind: EngineKind = "openai"
    # Tokenise routes have a different shape on every engine, so a generic server has none.
    endpoints: frozenset[EndpointName] = frozenset(
        ("chat", "completions", "embeddings", "responses", "messages", "rerank", "score")
    )
    # It may be any engine behind its address, so a client may steer none of them.
    denied_fields = Vllm.denied_fields | Sglang.denied_fields | Llamacpp.denied_fields
    health_path = "/v1/models"
    telemetry_path: str | None = None

    def read_telemetry(self, body: bytes) -> Telemetry:
        """Return a reading in which everything is absent: there is no page that all such servers have."""
        return Telemetry()
