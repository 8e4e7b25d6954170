"""What one simulated engine is: its speed, its room, its scheduler and the face it shows."""

from typing import Literal

from msgspec import Struct

Scheduling = Literal["fcfs", "priority"]
VocabularyName = Literal["ascii", "unicode"]


class SimSpec(Struct, frozen=True, kw_only=True):
    """The parameters of a simulated engine; the defaults are those of our own scheduling study.

    Attributes:
        iteration_base_ms: cost of an iteration however small.
        ms_per_prefill_token: added for each prompt token that the iteration computes.
        ms_per_decode_seq: added for each sequence that the iteration decodes a token of.
        prefill_tokens_per_s: when above 0, sets ms_per_prefill_token to 1000 / this.
        max_num_batched_tokens: tokens that one iteration may compute (the chunk).
        max_num_seqs: sequences that run at once (slots).
        kv_tokens: KV room in tokens; a rest smaller than one block is not used.
        block_size_tokens: tokens in one KV block.
        chunked_prefill: whether a prompt may be spread over iterations; without it the chunk is at least
            max_model_len, as in vLLM.
        scheduling: order of waiting sequences; `priority` runs the lowest number first.
        max_num_queued_reqs: waiting sequences beyond which a new one is refused; 0 means no bound.
        max_model_len: prompt and output tokens of one sequence.
        models: names it serves; the first is the label of its metrics.
        vocabulary: of the output, unless a request names another.
        finish_with_last_token: send finish_reason in the chunk of the last token, as vLLM does at max_tokens,
            and not in a chunk of its own, as it does at an end-of-text token.
        embedding_dimensions: length of an embedding unless the request names another.
        keep_alive_s: an idle connection is closed after this long; uvicorn's default is 5.
        version: what `/version` says.
    """

    iteration_base_ms: float = 10.0
    ms_per_prefill_token: float = 0.05
    ms_per_decode_seq: float = 0.1
    prefill_tokens_per_s: float = 0.0
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 128
    kv_tokens: int = 400_000
    block_size_tokens: int = 16
    chunked_prefill: bool = True
    scheduling: Scheduling = "fcfs"
    max_num_queued_reqs: int = 0
    max_model_len: int = 131_072
    models: tuple[str, ...] = ("sim",)
    vocabulary: VocabularyName = "ascii"
    finish_with_last_token: bool = False
    embedding_dimensions: int = 16
    keep_alive_s: float = 5.0
    version: str = "0.32.0"

    def __post_init__(self) -> None:
        """Refuse what no engine could run.

        Raises:
            ValueError: one parameter is out of its range or contradicts another.
        """
        for name in ("iteration_base_ms", "ms_per_prefill_token", "ms_per_decode_seq", "prefill_tokens_per_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("max_num_seqs", "block_size_tokens", "max_model_len", "embedding_dimensions", "keep_alive_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if self.max_num_queued_reqs < 0:
            raise ValueError("max_num_queued_reqs must not be negative; 0 means no bound")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs, or some could never decode")
        if self.kv_blocks * self.block_size_tokens < self.max_model_len:
            raise ValueError("kv_tokens must hold one sequence of max_model_len: raise it or lower max_model_len")
        if not self.models:
            raise ValueError("models must name at least one model")

    @property
    def kv_blocks(self) -> int:
        """Whole KV blocks."""
        return self.kv_tokens // self.block_size_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens that one iteration may compute."""
        if self.chunked_prefill:
            return self.max_num_batched_tokens
        return max(self.max_num_batched_tokens, self.max_model_len)

    @property
    def prefill_ms(self) -> float:
        """Milliseconds that one prompt token adds to an iteration."""
        return 1000.0 / self.prefill_tokens_per_s if self.prefill_tokens_per_s else self.ms_per_prefill_token
