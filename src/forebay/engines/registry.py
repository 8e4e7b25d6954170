"""The closed list of adapters."""

from collections.abc import Mapping
from types import MappingProxyType

from forebay.engines.contract import Engine
from forebay.engines.llamacpp import Llamacpp
from forebay.engines.openai import Openai
from forebay.engines.sglang import Sglang
from forebay.engines.vllm import Vllm
from forebay.policy import EngineKind

ENGINES: Mapping[EngineKind, Engine] = MappingProxyType(
    {"vllm": Vllm(), "sglang": Sglang(), "llamacpp": Llamacpp(), "openai": Openai()}
)
