"""How much work a call is, before it is sent."""

# English text is near four bytes a token on every current tokenizer; learning per model comes with the queue.
BYTES_PER_TOKEN = 4
DEFAULT_OUTPUT_TOKENS = 256
# No engine has a larger context; a client's fancy number must not outweigh the load of everybody else.
MAX_OUTPUT_TOKENS = 1_048_576


def estimate_prompt_tokens(prompt_bytes: int) -> int:
    """Estimate the tokens of a prompt from the size of its JSON text, in bytes."""
    return max(1, prompt_bytes // BYTES_PER_TOKEN)


def expected_output_tokens(max_tokens: int | None) -> int:
    """Say for how many output tokens a call is reserved: its own cap, or 256."""
    return DEFAULT_OUTPUT_TOKENS if max_tokens is None else min(max_tokens, MAX_OUTPUT_TOKENS)
