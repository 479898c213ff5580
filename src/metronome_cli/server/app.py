"""The gateway's routes: who is let in, and how the server is.

Knows:   paths, HTTP statuses, and that a call is decided on before its WebSocket is upgraded.
Ignores: what is said in a call, sockets, processes.
"""

from __future__ import annotations

import math

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from .. import wire
from ..clock import Clock
from ..frame import Refused
from ..profile import Profile
from .access import Door, Rules
from .calls import Calls
from .link import EngineLink
from .realtime import Call
from .status import status_routes

_REASONS = {
    "starting": "the model is still loading",
    "engine_dead": "the engine process has ended and is not started again: this server ends",
    "restarting": "the engine process has ended and is being started again",
    "engine_busy": "the engine process does not answer",
    "draining": "the server is going down",
    "max_sessions": "as many calls as this server takes are live",
    "ramp": "calls are let in a few per beat until it is known what this machine can hold",
    "latency": "with another call frames would be answered too late",
    "memory": "with another call the KV pool would fill up before the calls end",
    "pool_full": "the KV pool has no room for another call",
}


def create_app(
    profile: Profile, link: EngineLink, calls: Calls, clock: Clock, keys: tuple[str, ...] = ()
) -> Starlette:
    """The ASGI application over an engine link; with `keys`, only who sends one of them may call."""

    async def health(_: Request) -> Response:
        ok = link.state == "ok"
        return JSONResponse({"status": link.state, "model": profile.name}, 200 if ok else 503)

    async def realtime(socket: WebSocket) -> None:
        token, after = (socket.query_params.get(name) for name in ("resume", "after"))
        if token is not None:
            if not await calls.take_up(token, after, socket):
                link.metrics.refused["session_expired"] += 1
                await socket.send_denial_response(_expired())
            return
        call = Call(link, profile, clock)
        session = await link.open(call)
        if isinstance(session, Refused):
            await socket.send_denial_response(_refusal(session))
        else:
            await calls.serve(call, socket)

    async def elsewhere(socket: WebSocket) -> None:
        await socket.send_denial_response(_elsewhere(socket.url.path))

    routes = [
        Route(wire.HEALTH_PATH, health),
        WebSocketRoute(wire.REALTIME_PATH, realtime),
        WebSocketRoute("/{path:path}", elsewhere),
    ]
    limits = profile.server
    # Nobody counts for all gateways: each lets in its share.
    rules = Rules(keys, tuple(limits.origins), limits.max_opens_per_s / limits.gateways)
    door = Middleware(Door, rules=rules, clock=clock, refused=link.metrics.refused)
    return Starlette(routes=[*routes, *status_routes(link, link.began)], middleware=[door])


def _expired() -> Response:
    why = "the session to be resumed is over, or its events since then are not kept: call anew"
    error = wire.RefusalDetail(type="invalid_request_error", code="session_expired", message=why)
    return Response(wire.encode(wire.Refusal(error=error)), 410, media_type="application/json")


def _elsewhere(path: str) -> Response:
    why = f"no calls are taken at {path[:100]}: call {wire.REALTIME_PATH}"
    error = wire.RefusalDetail(type="invalid_request_error", code="not_found", message=why)
    return Response(wire.encode(wire.Refusal(error=error)), 404, media_type="application/json")


def _refusal(refused: Refused) -> Response:
    why = _REASONS.get(refused.reason, "this call cannot be taken now")
    body = wire.Refusal(error=wire.RefusalDetail(code=refused.reason, message=why))
    again_s = refused.retry_after_s
    retry_after = {} if again_s is None else {"Retry-After": str(math.ceil(again_s))}
    return Response(wire.encode(body), 503, retry_after, "application/json")
