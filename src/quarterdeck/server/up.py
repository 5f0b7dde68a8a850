"""`quarterdeck up`: lock the data directory, bind, serve, and leave in order."""

import contextlib
import fcntl
import gc
import json
import os
import signal
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from quarterdeck.domain.errors import Conflict, Invalid
from quarterdeck.paths import address_file, lock_file, read_address, write_private

if TYPE_CHECKING:
    from quarterdeck.config import Settings

_GRACE_SECONDS = 10


@contextlib.contextmanager
def owned(data_dir: Path) -> Iterator[None]:
    """Hold the data directory for the time of the block; a second core is refused."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(lock_file(data_dir), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = read_address(data_dir)
            where = f" at {other.url} (process {other.pid})" if other else ""
            raise Conflict(
                f"another core already owns {data_dir}{where}",
                hint="use that one, stop it first, or give another --data-dir",
            ) from error
        yield
    finally:
        os.close(descriptor)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise Invalid(
            f"cannot listen on {host}:{port}: {error}", field="port", hint="give another --port"
        ) from error
    listening.listen(2048)
    return listening


def base_url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def serve(
    settings: "Settings", data_dir: Path, host: str, port: int, ready: Callable[[str, str], None]
) -> None:
    """Run a core until it is told to stop.

    Once it answers everything, `ready` is called with its address and the code of a link that signs in once.
    """
    with owned(data_dir), contextlib.closing(bind(host, port)) as listening:
        url = base_url(listening)
        # Of a core that was killed: whoever listens there now must not get our token.
        address_file(data_dir).unlink(missing_ok=True)

        def announce(entry: str) -> None:
            write_private(address_file(data_dir), json.dumps({"url": url, "pid": os.getpid()}))
            ready(url, entry)

        try:
            _run(settings, data_dir, host, listening, announce)
        finally:
            with contextlib.suppress(FileNotFoundError):
                address_file(data_dir).unlink()


def _run(
    settings: "Settings", data_dir: Path, host: str, listening: socket.socket, announce: Callable[[str], None]
) -> None:
    import asyncio

    import uvicorn

    from quarterdeck.server.shell import Shell

    class Server(uvicorn.Server):
        """Leaves signals to the loop: uvicorn raises them again at its end, before we have cleaned up."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    async def main() -> None:
        shell = Shell(settings, data_dir, host, base_url(listening), announce)
        server = Server(
            uvicorn.Config(
                shell,
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        shell.failed = lambda: setattr(server, "should_exit", True)

        def leave(number: int) -> None:
            shell.leave()
            # Not by server.handle_exit: the library of event streams hooks it to cut off calls in flight.
            server.force_exit = server.should_exit and number == signal.SIGINT
            server.should_exit = True

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, leave, number)
        await server.serve(sockets=[listening])
        if shell.failure is not None:
            raise shell.failure

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    # The process ends now: looking through all modules for cycles would take a third of a second.
    gc.freeze()
