"""Why an answer cannot be continued: the closed list behind the error message and the metric label."""

from enum import StrEnum


class Reason(StrEnum):
    """Why not; the values are safe as labels."""

    # the request: known before it is sent
    NOT_STREAMED = "not_streamed"  # nothing is shown before the end, so an ordinary retry is enough
    ENDPOINT = "endpoint"  # neither chat nor plain completions
    ENGINE = "engine"  # a kind of engine whose continuation nobody has checked
    BODY_TOO_LARGE = "body_too_large"
    SEVERAL_CHOICES = "several_choices"  # n, best_of, beams, several prompts
    PROMPT_FORM = "prompt_form"  # embeddings, token ids without ids in the answer
    LOGPROBS = "logprobs"  # their offsets and numbers begin anew
    ECHO = "echo"
    SUFFIX = "suffix"
    STRUCTURED_OUTPUT = "structured_output"  # the grammar begins anew
    PENALTIES = "penalties"  # presence and frequency are counted from the seam on
    THINKING_BUDGET = "thinking_budget"  # counted from the seam on
    TRUNCATION = "truncation"  # the engine would cut the longer prompt elsewhere
    AUDIO = "audio"
    # the answer so far: known when the engine dies
    TOOL_CALLS = "tool_calls"  # one has begun: the state of the engine's parser is gone
    TOOLS_AFTER_REASONING = "tools_after_reasoning"  # ids may hide text that a tool parser holds, text lacks thoughts
    REASONING = "reasoning"  # thoughts cannot be given back as text
    NO_IDS = "no_ids"  # the engine sent no token ids although it was asked to
    SPLIT_CHARACTER = "split_character"  # no id is known to end a character
    ANSWER_TOO_LONG = "answer_too_long"
    UNREADABLE = "unreadable"  # an event of the answer has a form that we do not know
    PREFIX_FORM = "prefix_form"  # the client's own beginning of the answer cannot be prolonged
    # the seam: known when the next leg answers
    PROMPT_LEAK = "prompt_leak"
    REPLACEMENT_CHARACTER = "replacement_character"
    DIVERGED = "diverged"  # the next leg says something else than what the client has
    CHANNEL = "channel"  # the next leg begins to think anew behind an answer that has begun
    # the decision
    PREFIX_REFUSED = "prefix_refused"  # the engine refuses a begun answer, and a whole new one has failed too
    NO_ENGINE = "no_engine"  # no replica of the pool is left, or none has had room for as long as a first byte may take
    QUARANTINED = "quarantined"  # two engines died under the request
    DEADLINE = "deadline"
    MOVES_SPENT = "moves_spent"


class Impossible(Exception):
    """An answer cannot be continued.

    Args:
        reason: why not.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
