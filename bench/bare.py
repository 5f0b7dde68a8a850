"""The yardstick: one Starlette route that answers a small JSON object, in uvicorn with uvloop and httptools."""

import asyncio
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def ping(request: Request) -> JSONResponse:
    return JSONResponse({"pong": True})


def main() -> None:
    """Listen on a free port, print it, serve until killed."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(2048)
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(
            Starlette(routes=[Route("/ping", ping)]),
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=75,
        )
        config.load()
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main()
