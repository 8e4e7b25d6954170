"""Whether the first text of a leg repeats its prompt.

When the ids of a prompt end inside a character, vLLM's detokenizer begins with the text of the whole prompt, the
system message included, in one event (vllm-project/vllm issue 48853, open in 0.32). Forebay never cuts there;
this is the second lock, and it holds before a byte goes to the client.
"""

from typing import Final

MAX_TOKEN_CHARS: Final = 256
"""Longest text of one token that is believed: the longest of the common vocabularies are runs of 128 blanks."""
_CHARS_A_TOKEN: Final = 12
"""Three times what a token has on average: a quotation is not longer."""
_MIN_CHARS: Final = 16


def repeats_prompt(said: str, tokens: int, prompt: tuple[str, ...], shown: str) -> bool:
    """Say whether a leg's first text is its prompt again.

    Args:
        said: the first text, of one event.
        tokens: that it can stand for, those of the events before it included.
        prompt: what the prompt says, in order.
        shown: what has been said of the answer, which the prompt ends with.
    """
    if len(said) > MAX_TOKEN_CHARS * max(1, tokens):
        return True
    enough = max(_MIN_CHARS, _CHARS_A_TOKEN * tokens)
    at = length = 0
    # Its parts in order, as a template puts them; some way into them is proof enough.
    for part in (*prompt, shown):
        place = said.find(part[: enough - length], at)
        if place < 0:
            return False
        at = place + min(len(part), enough - length)
        length += min(len(part), enough - length)
        if length >= enough:
            return True
    return bool(prompt)
