"""The yardstick: one Starlette route with a small JSON answer, in uvicorn with uvloop and httptools."""

import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def ping(request: Request) -> JSONResponse:
    return JSONResponse({"pong": True})


if __name__ == "__main__":
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        application = Starlette(routes=[Route("/ping", ping)])
        config = uvicorn.Config(application, loop="uvloop", http="httptools", log_level="error")
        uvicorn.Server(config).run(sockets=[listening])
