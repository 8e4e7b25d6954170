"""The settings for web pages that call."""

from typing import Annotated

from pydantic import AfterValidator

from forebay.config.addresses import check_origin
from forebay.config.section import Section, setting

Origin = Annotated[str, AfterValidator(check_origin)]


class CorsSettings(Section):
    """Which web pages may call."""

    origins: list[Origin] = setting([], "origins", "`https://HOST[:PORT]`, or `*` for all.")
