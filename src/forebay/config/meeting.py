"""The settings of where several nodes meet."""

from typing import Annotated

from pydantic import AfterValidator, Field

from forebay.config.addresses import check_store
from forebay.config.credentials import check_api_key
from forebay.config.section import Name, Section, setting


def _check_store(text: str) -> str:
    return check_api_key(text) if text.startswith("env:") else check_store(text)


StoreUrl = Annotated[str, AfterValidator(_check_store)]


NodeName = Name | None
NODE = setting(
    None,
    "name",
    "Of this node, no two alike; empty is the host's name and the port of `listen`. A change needs a restart.",
)


class StoreSettings(Section):
    """Where several nodes meet, so that limits hold for all of them together and overrides reach all."""

    url: StoreUrl | None = setting(
        None,
        "URL or `env:NAME`",
        "Redis or Valkey: `redis(s)://[USER:PASSWORD@]HOST[:PORT][/DB]` or `unix:///PATH`; needs `forebay[redis]`. "
        "Empty: each node is alone. A change needs a restart.",
        repr=False,
    )
    nodes: Annotated[int, Field(ge=1, le=256)] = setting(
        1, "nodes", "That there are at least: limits are divided by it while the store has not told how many there are."
    )
