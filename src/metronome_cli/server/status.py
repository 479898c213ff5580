"""How the server is, for machines: /metrics, /capacity and /v1/models.

Knows:   paths and bodies of these three.
Ignores: calls, how anything is counted, who may ask.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .exposition import Exposition
from .link import EngineLink

METRICS_PATH = "/metrics"
CAPACITY_PATH = "/capacity"
MODELS_PATH = "/v1/models"


def status_routes(link: EngineLink, created: int) -> list[Route]:
    """The three routes over an engine link. `created`: when the server began, in seconds since 1970."""
    metrics = link.metrics
    exposition = Exposition(metrics, lambda: link.state == "ok")

    async def page(request: Request) -> Response:
        body, content_type = exposition.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    async def capacity(_: Request) -> Response:
        tick = metrics.latest.tick if metrics.latest else None
        profile = metrics.profile
        cap, reason = metrics.cap
        return JSONResponse(
            {
                "state": link.state,
                "free": link.free,
                "live": metrics.live,
                "max_sessions": profile.admission.max_sessions,
                "cap": cap,
                "cap_reason": reason,
                "kv": {
                    "leased": tick.kv_leased if tick else 0,
                    "reserved": tick.kv_reserved if tick else 0,
                    "total": metrics.pool,
                    "block_size": profile.pool.block_size,
                },
            }
        )

    async def models(_: Request) -> Response:
        model = {
            "id": metrics.profile.name,
            "object": "model",
            "created": created,
            "owned_by": "metronome",
        }
        return JSONResponse({"object": "list", "data": [model]})

    return [Route(METRICS_PATH, page), Route(CAPACITY_PATH, capacity), Route(MODELS_PATH, models)]
