"""The shapes of the admin API: what it takes, what it answers, how it refuses."""

import re
from typing import Annotated, Any, Literal

from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from forebay.clock import timestamp
from forebay.config.documents import (
    FINGERPRINT,
    MAX_LEVEL,
    MAX_TOKENS,
    Override,
    OverrideKind,
    level_fault,
    level_of,
    tokens_fault,
)
from forebay.console.overrides import MAX_TTL_S, MIN_TTL_S, Change
from forebay.console.timeline import Action
from forebay.errors import ForebayError

_REPLICA = re.compile(
    r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}(/[A-Za-z0-9._~%!$&'()*+,;=:/-]{0,192})?"
)


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("must be one line of printable text")
    return text.strip()


Line = Annotated[str, AfterValidator(_one_line)]


class NewOverride(BaseModel):
    """A change with an end."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"kind": "drain", "target": "127.0.0.1:9001", "ttl_s": 3600, "reason": "new driver", "by": "ann"},
                {
                    "kind": "refuse_long_inputs",
                    "target": "*",
                    "tokens": 8192,
                    "ttl_s": 3600,
                    "reason": "too much load",
                    "by": "ann",
                },
                {"kind": "ladder", "target": "pool main", "level": 2, "ttl_s": 600, "reason": "surge", "by": "ann"},
            ]
        },
    )

    kind: OverrideKind = Field(
        "drain",
        description="drain: the replica gets no new call; refuse_long_inputs: longer inputs get 422; ladder: calls are "
        "served as that level of the ladder says; pardon: a request that engines died under is sent again. "
        "Calls in flight go on",
    )
    target: Line = Field(
        min_length=1,
        max_length=512,
        description="drain: name of the replica, `host:port` as the status shows it; refuse_long_inputs: name of the "
        "model, or `*` for all; ladder: `node`, `pool NAME` or `tenant NAME`; pardon: the request's `fingerprint` as "
        "the status shows it",
    )
    tokens: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=MAX_TOKENS,
        validate_default=True,
        description="of the longest input that is still served; for refuse_long_inputs alone, which needs it",
    )
    level: int | None = Field(
        None,
        strict=True,
        ge=0,
        le=MAX_LEVEL,
        validate_default=True,
        description="of the ladder; for ladder alone, which needs it. 0 forbids what it would do by itself",
    )
    ttl_s: int = Field(strict=True, ge=MIN_TTL_S, le=MAX_TTL_S, description="seconds until it ends by itself")
    reason: Line = Field(min_length=1, max_length=200, description="for those who read the timeline")
    by: Line = Field(min_length=1, max_length=64, description="who asks")

    @field_validator("target")
    @classmethod
    def _names_what_it_is_for(cls, target: str, info: ValidationInfo) -> str:
        if info.data.get("kind") == "drain" and not _REPLICA.fullmatch(target):
            raise PydanticCustomError("target", "is not the name of a replica; write host:port as the status shows it")
        if info.data.get("kind") == "ladder" and level_of(target, 0) is None:
            raise PydanticCustomError("target", "is not `node`, `pool NAME` or `tenant NAME`")
        if info.data.get("kind") == "pardon" and not FINGERPRINT.fullmatch(target):
            raise PydanticCustomError("target", "is no fingerprint; write the 16 digits that the status shows")
        return target

    @field_validator("tokens")
    @classmethod
    def _fits_the_kind(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        fault = tokens_fault(info.data["kind"], tokens) if "kind" in info.data else ""
        if fault:
            raise PydanticCustomError("missing" if tokens is None else "tokens", "{fault}", {"fault": fault})
        return tokens

    @field_validator("level")
    @classmethod
    def _level_fits_the_kind(cls, level: int | None, info: ValidationInfo) -> int | None:
        fault = level_fault(info.data["kind"], level) if "kind" in info.data else ""
        if fault:
            raise PydanticCustomError("missing" if level is None else "level", "{fault}", {"fault": fault})
        return level

    def change(self) -> Change:
        """Return what is asked for."""
        return Change(self.kind, self.target, self.tokens, self.level)


class OverrideAnswer(BaseModel):
    """An override that counts now."""

    id: str
    kind: OverrideKind
    target: str
    tokens: int | None = Field(description="of the longest input that is still served, or null")
    level: int | None = Field(description="of the ladder, or null")
    reason: str
    by: str
    created: str = Field(description="RFC 3339")
    expires: str = Field(description="RFC 3339")
    expires_in_s: float


class OverridesAnswer(BaseModel):
    """All overrides that count now, and the version of their document."""

    epoch: int
    seq: int
    overrides: list[OverrideAnswer]


class ActionAnswer(BaseModel):
    """One line of the timeline."""

    at: str = Field(description="RFC 3339")
    kind: str
    by: str
    target: str
    reason: str
    id: str
    change: str = Field(description="kind of the override, or empty")
    tokens: int | None = Field(description="of the override, or null")
    level: int | None = Field(description="of the override, or null")
    ttl_s: float | None = Field(description="of what Forebay did by itself: seconds until it is looked at again")
    undo: str = Field(description="of what Forebay did by itself: how it ends")


class TimelineAnswer(BaseModel):
    """Actions, newest first."""

    actions: list[ActionAnswer]


class ControlPlaneAnswer(BaseModel):
    """The control plane about itself."""

    version: str
    pid: int
    started: str = Field(description="RFC 3339")
    uptime_s: float
    config_file: str | None
    faults: list[str] = Field(description="what it could not read or write")


class DataPlaneAnswer(BaseModel):
    """The data plane as it described itself last."""

    reachable: bool
    age_s: float | None = Field(description="seconds since the status was read; null when it never was")
    fault: str | None
    status: dict[str, Any] | None


class ReloadAnswer(BaseModel):
    """What became of the configuration file as it stands on disk."""

    ok: bool = Field(description="it is in force, or will be in a moment")
    faults: list[str] = Field(description="path, line and what is wrong; the last good file stays in force")
    warnings: list[str] = Field(description="what needs a restart")


class StatusAnswer(BaseModel):
    """Everything at a glance; the last four are parts of the data plane's status and as old as it."""

    control_plane: ControlPlaneAnswer
    data_plane: DataPlaneAnswer
    reload: ReloadAnswer | None = Field(description="how the last read of the configuration file ended")
    documents: Any = Field(description="what is in force, with the versions of the state and override documents")
    children: Any = Field(description="child processes of the data plane")
    journal: Any = Field(description="whether the journal is written")


class HealthAnswer(BaseModel):
    """This process answers; it says nothing about the data plane."""

    status: Literal["ok"] = "ok"


class ErrorBody(BaseModel):
    """What went wrong, in the shape of the OpenAI API."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """An error."""

    error: ErrorBody


def override_answer(override: Override, wall_s: float) -> OverrideAnswer:
    """Show an override.

    Args:
        override: an active one.
        wall_s: Unix seconds, now.
    """
    return OverrideAnswer(
        id=override.id,
        kind=override.kind,
        target=override.target,
        tokens=override.tokens,
        level=override.level,
        reason=override.reason,
        by=override.by,
        created=timestamp(override.created_at),
        expires=timestamp(override.expires_at),
        expires_in_s=round(max(0.0, override.expires_at - wall_s), 1),
    )


def reload_answer(documents: Any) -> ReloadAnswer | None:
    """Show how the last reload ended; None when the data plane does not say.

    Args:
        documents: that part of the data plane's status.
    """
    if not isinstance(documents, dict) or "config_ok" not in documents:
        return None
    return ReloadAnswer(
        ok=bool(documents["config_ok"]),
        faults=[str(line) for line in documents.get("last_error") or ()],
        warnings=[str(line) for line in documents.get("warnings") or ()],
    )


def action_answer(action: Action) -> ActionAnswer:
    """Show a line of the timeline."""
    return ActionAnswer(
        at=action.at,
        kind=action.kind,
        by=action.by,
        target=action.target,
        reason=action.reason,
        id=action.id,
        change=action.change,
        tokens=action.tokens,
        level=action.level,
        ttl_s=None,
        undo="",
    )


def automatic_answers(actions: Any) -> list[ActionAnswer]:
    """Show what Forebay did by itself as lines of the timeline; what is not in that form is left out.

    Args:
        actions: that part of the data plane's status, newest first.
    """
    lines = [line for line in actions if isinstance(line, dict)] if isinstance(actions, list) else []
    return [
        ActionAnswer(
            at=str(line.get("at", "")),
            kind=f"{line.get('kind')}.{line.get('what')}",
            by="forebay",
            target=str(line.get("target", "")),
            reason=str(line.get("reason", "")),
            id="",
            change="",
            tokens=None,
            level=None,
            ttl_s=ttl_s if isinstance(ttl_s := line.get("ttl_s"), int | float) else None,
            undo=str(line.get("undo", "")),
        )
        for line in lines
    ]


def error_response(error: ForebayError) -> JSONResponse:
    """Show an error in the OpenAI shape."""
    body = ErrorBody(message=error.message, type=error.spec.type, param=error.param, code=error.code)
    headers = {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in {408, 413}:
        headers["connection"] = "close"
    return JSONResponse(ErrorAnswer(error=body).model_dump(), status_code=error.status, headers=headers)
