"""The gateway's routes: who is let in, and how the server is.

Knows:   paths, HTTP statuses, and that a call is decided on before its WebSocket is upgraded.
Ignores: what is said in a call, sockets, processes.
"""

from __future__ import annotations

import math

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from .. import wire
from ..frame import Refused
from ..profile import Profile
from .link import EngineLink
from .realtime import Call

_REASONS = {
    "starting": "the model is still loading",
    "engine_dead": "the engine process has ended; the server must be started again",
    "max_sessions": "as many calls as this server takes are live",
    "pool_full": "the KV pool has no room for another call",
}


def create_app(profile: Profile, link: EngineLink) -> Starlette:
    """The ASGI application over an engine link."""

    async def health(_: Request) -> Response:
        ok = link.state == "ok"
        return JSONResponse({"status": link.state, "model": profile.name}, 200 if ok else 503)

    async def realtime(socket: WebSocket) -> None:
        call = Call(socket, link, profile)
        session = await link.open(call)
        if isinstance(session, Refused):
            await socket.send_denial_response(_refusal(session))
            return
        try:
            await socket.accept()
            await call.hold()
        finally:
            link.close(session)

    return Starlette(routes=[Route(wire.HEALTH_PATH, health), WebSocketRoute(wire.REALTIME_PATH, realtime)])


def _refusal(refused: Refused) -> Response:
    why = _REASONS.get(refused.reason, "this call cannot be taken now")
    body = wire.Refusal(error=wire.RefusalDetail(code=refused.reason, message=why))
    retry_after = {"Retry-After": str(math.ceil(refused.retry_after_s))}
    return Response(wire.encode(body), 503, retry_after, "application/json")
