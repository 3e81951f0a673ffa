"""A reverse proxy on loopback: ``python proxy.py PORT http://127.0.0.1:8501 /routesparse``.

It hands requests and websockets below a path on as they are, the Host header included, and has nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
import websockets
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer", "content-length"}


def application(target: str, base: str) -> Starlette:
    """Everything below ``base`` comes from ``target``; the rest is not found."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=target, trust_env=False, timeout=60.0) as client:
            app.state.client = client
            yield

    async def answer(request: Request) -> StreamingResponse:
        client: httpx.AsyncClient = request.app.state.client
        headers = [(name, value) for name, value in request.headers.raw if name.decode() not in HOP_BY_HOP]
        url = httpx.URL(path=request.url.path, query=request.url.query.encode())
        asked = client.build_request(request.method, url, headers=headers, content=await request.body())
        found = await client.send(asked, stream=True)
        reply = StreamingResponse(
            found.aiter_raw(), found.status_code, background=BackgroundTask(found.aclose)
        )
        reply.raw_headers = [
            (name.lower(), value)
            for name, value in found.headers.raw
            if name.decode().lower() not in HOP_BY_HOP - {"content-length"}
        ]
        return reply

    async def session(socket: WebSocket) -> None:
        protocols = socket.scope["subprotocols"]
        passed = {name: socket.headers[name] for name in ("cookie", "user-agent") if name in socket.headers}
        server = httpx.URL(target)
        async with websockets.connect(
            str(socket.url),  # the Host header; where to is the next line's
            host=server.host,
            port=server.port,
            origin=socket.headers.get("origin"),
            subprotocols=protocols or None,
            additional_headers=passed,
            max_size=None,
            proxy=None,
        ) as inner:
            await socket.accept(inner.subprotocol)
            ways = [asyncio.create_task(way) for way in (_inwards(socket, inner), _outwards(socket, inner))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()

    methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]
    return Starlette(
        routes=[
            Route(base, answer, methods=methods),
            Route(base + "/{path:path}", answer, methods=methods),
            WebSocketRoute(base + "/{path:path}", session),
        ],
        lifespan=lifespan,
    )


async def _inwards(socket: WebSocket, inner: websockets.ClientConnection) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await inner.send(await socket.receive_bytes())


async def _outwards(socket: WebSocket, inner: websockets.ClientConnection) -> None:
    async for message in inner:
        await (socket.send_text if isinstance(message, str) else socket.send_bytes)(message)


if __name__ == "__main__":
    uvicorn.run(application(*sys.argv[2:4]), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
