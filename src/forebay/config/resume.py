"""The settings of clients that come back for the rest of an answer (docs/resume.md)."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from forebay import policy
from forebay.config.credentials import MIN_SECRET, check_api_key, resolve
from forebay.config.faults import Faults
from forebay.config.section import Section, setting

_RESUME = policy.Resume()
SecretText = Annotated[str, AfterValidator(check_api_key)]


class ResumeSettings(Section):
    """How clients may come back for the rest of an answer (docs/resume.md)."""

    keys: list[SecretText] = setting(
        [],
        "key or `env:NAME`",
        "Seal the tokens, the same on all nodes: the first one new tokens, all of them open. 32 characters at least; "
        "empty is a random key in the data folder, for one node.",
        max_length=8,
        repr=False,
    )
    ttl_s: Annotated[float, Field(ge=1, le=120)] = setting(
        _RESUME.ttl_s, "seconds", "A token may be used for so long after its event."
    )


def compile_resume(settings: ResumeSettings, environ: Mapping[str, str], faults: Faults) -> policy.Resume:
    """Make the terms of resuming; a secret is what is written, as bytes.

    Args:
        settings: as written.
        environ: names to values, for `env:NAME`.
        faults: gets keys that are not there, twice there, or too short.
    """
    keys: list[bytes] = []
    for place, text in enumerate(settings.keys):
        try:
            key = resolve(text, environ)
        except ValueError as error:
            faults.add(("resume", "keys", place), str(error))
            continue
        if len(key) < MIN_SECRET:
            advice = "make one with `openssl rand -hex 32`"
            faults.add(("resume", "keys", place), f"has fewer than {MIN_SECRET} characters; {advice}")
        elif key.encode() in keys:
            faults.add(("resume", "keys", place), "is written twice; keep one")
        keys.append(key.encode())
    return policy.Resume(tuple(keys), settings.ttl_s, configured=bool(settings.model_fields_set))
