"""The admin API and the status page as one ASGI application.

Routes only read and answer here; what they decide stands in `overrides.py`, who may call in `guard.py`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from forebay import __version__
from forebay.clock import timestamp
from forebay.config.documents import ALL_MODELS
from forebay.console import answers as shape
from forebay.console.dataplane import DataPlaneView
from forebay.console.guard import Guard
from forebay.console.overrides import MAX_OVERRIDES, Change, TooManyOverridesError
from forebay.console.pages import docs_page, language, status_page
from forebay.console.state import ConsoleState
from forebay.console.timeline import KEPT
from forebay.errors import ForebayError, Refused

DESCRIPTION = "Status and switches of one Forebay node. Every path under /api needs the admin token."
SHOWN_NAMES = 20  # replicas or models named in an error
ERRORS: dict[int | str, dict[str, Any]] = {"default": {"model": shape.ErrorAnswer, "description": "an error"}}


def build(state: ConsoleState) -> FastAPI:
    """Return the application.

    Args:
        state: everything it works with; its background work runs from start to end of the application.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with state.running():
            yield

    app = FastAPI(
        title="Forebay admin API",
        description=DESCRIPTION,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.console = state
    app.include_router(_pages())
    app.include_router(_api())
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(ForebayError, _refused)
    app.add_middleware(Guard, listen=state.listen, token=state.token)
    return app


def _pages() -> APIRouter:
    router = APIRouter()
    router.add_api_route("/", _status_page, response_class=HTMLResponse, include_in_schema=False)
    router.add_api_route("/docs", _docs_page, response_class=HTMLResponse, include_in_schema=False)
    router.add_api_route("/health", _health, summary="This process answers; no token")
    return router


def _api() -> APIRouter:
    # The guard checks the token; the dependency is there for the schema.
    router = APIRouter(prefix="/api", dependencies=[Depends(HTTPBearer(auto_error=False))], responses=ERRORS)
    router.add_api_route("/status", _status, summary="Both planes at a glance")
    router.add_api_route("/timeline", _timeline, summary="What was done, newest first")
    overrides = "/policy/overrides"
    router.add_api_route(overrides, _overrides, summary="Overrides that count now")
    router.add_api_route(
        overrides,
        _create,
        methods=["POST"],
        status_code=201,
        summary="Drain a replica, refuse long inputs or set a level of the ladder, for a bounded time",
    )
    router.add_api_route(
        f"{overrides}/{{id}}", _delete, methods=["DELETE"], status_code=204, summary="End an override now"
    )
    return router


async def _console(request: Request) -> ConsoleState:
    state = request.app.state.console
    assert isinstance(state, ConsoleState)
    return state


Console = Annotated[ConsoleState, Depends(_console)]


async def _status_page(request: Request, accept_language: Annotated[str, Header()] = "") -> HTMLResponse:
    return HTMLResponse(status_page(request.state.nonce, language(accept_language)))


async def _docs_page(request: Request) -> HTMLResponse:
    return HTMLResponse(docs_page(request.app.openapi(), request.state.nonce, request.headers["host"]))


async def _health() -> shape.HealthAnswer:
    return shape.HealthAnswer()


async def _status(console: Console) -> shape.StatusAnswer:
    view = await console.data_plane.view()
    status = view.status or {}
    return shape.StatusAnswer(
        control_plane=shape.ControlPlaneAnswer(
            version=__version__,
            pid=os.getpid(),
            started=timestamp(console.started_wall_s),
            uptime_s=round(console.clock.now_s() - console.started_s, 1),
            config_file=console.config_file,
            faults=console.faults(),
        ),
        data_plane=shape.DataPlaneAnswer(
            reachable=view.reachable, age_s=view.age_s, fault=view.fault, status=view.status
        ),
        reload=shape.reload_answer(status.get("documents")),
        documents=status.get("documents"),
        children=status.get("children"),
        journal=status.get("journal"),
    )


async def _timeline(console: Console, limit: Annotated[int, Query(ge=1, le=KEPT)] = KEPT) -> shape.TimelineAnswer:
    view = await console.data_plane.view()
    actions = [shape.action_answer(a) for a in console.timeline.latest(limit)]
    # The stamps are all of one form, so their order is that of their texts.
    actions += shape.automatic_answers((view.status or {}).get("actions"))
    return shape.TimelineAnswer(actions=sorted(actions, key=lambda action: action.at, reverse=True)[:limit])


async def _overrides(console: Console) -> shape.OverridesAnswer:
    wall_s = console.clock.wall_s()
    document = console.overrides.document
    shown = [shape.override_answer(o, wall_s) for o in console.overrides.active()]
    return shape.OverridesAnswer(epoch=document.epoch, seq=document.seq, overrides=shown)


async def _create(new: shape.NewOverride, console: Console) -> shape.OverrideAnswer:
    view = await console.data_plane.view()
    _check_target(new.change(), view)
    try:
        made = await console.override(new.change(), new.ttl_s, reason=new.reason, by=new.by)
    except TooManyOverridesError as error:
        advice = f"There are {MAX_OVERRIDES} overrides, the most there may be. Delete one first."
        raise Refused("invalid_value", advice) from error
    except OSError as error:
        raise _unwritten(error) from error
    return shape.override_answer(made, console.clock.wall_s())


async def _delete(
    id: str, console: Console, by: Annotated[shape.Line, Query(min_length=1, max_length=64)] = "api"
) -> Response:
    try:
        found = await console.end(id, by=by)
    except OSError as error:
        raise _unwritten(error) from error
    if not found:
        advice = "There is no such override; it may have ended. GET /api/policy/overrides lists them."
        raise Refused("route_not_found", advice, param="id")
    return Response(status_code=204)


def _check_target(change: Change, view: DataPlaneView) -> None:
    """Refuse a replica, model or pool that the data plane does not have; without its status any may be named.

    A pardon may name a request that is not known yet: it holds for a time.
    """
    every = change.kind == "refuse_long_inputs" and change.target == ALL_MODELS
    if not view.reachable or every or change.kind == "pardon":
        return
    if change.kind == "ladder":
        _check_pool(change.target, view.pools())
        return
    names = view.replicas() if change.kind == "drain" else view.models()
    if names is not None and change.target not in names:
        known = ", ".join(sorted(names)[:SHOWN_NAMES]) or "none"
        fault = "No pool has this replica." if change.kind == "drain" else "There is no such model; `*` means all."
        raise Refused("invalid_value", f"{fault} Known: {known}.", param="target")


def _check_pool(target: str, pools: frozenset[str] | None) -> None:
    scope, _, name = target.partition(" ")
    if scope == "pool" and pools is not None and name not in pools:
        known = ", ".join(sorted(pools)[:SHOWN_NAMES]) or "none"
        raise Refused("invalid_value", f"There is no such pool. Known: {known}.", param="target")


def _unwritten(error: OSError) -> Refused:
    advice = "Nothing has changed. Check space and rights of the data folder, then try again."
    return Refused("internal_error", f"The override document cannot be written ({error.strerror}). {advice}")


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    code = {"missing": "missing_value", "json_invalid": "invalid_json"}.get(first["type"], "invalid_value")
    return shape.error_response(Refused(code, f"{where}: {first['msg']}", param=where))


async def _no_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return shape.error_response(Refused("method_not_allowed", "This path has other methods; see /docs."))
    if error.status_code == 404:
        return shape.error_response(Refused("route_not_found", "There is no such path; see /docs."))
    return shape.error_response(Refused("bad_request", "The request cannot be read; see /docs."))


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ForebayError)
    return shape.error_response(error)
