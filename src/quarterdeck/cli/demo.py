"""`quarterdeck demo`: the main job end to end on a core of its own, every answer checked."""

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from quarterdeck import __version__, paths
from quarterdeck.cli.connect import claude_line
from quarterdeck.cli.demo_stage import Stage, Unverified
from quarterdeck.cli.demo_steps import tell_all
from quarterdeck.cli.mcp_client import Refused
from quarterdeck.domain.errors import QuarterdeckError


def tell(stay: bool) -> None:
    """Tell the story, then stay until Ctrl-C if asked to. Ends the process with 1 when a step did not hold.

    Whatever happens, the processes and the folder of the demo are gone afterwards.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    console = Console(highlight=False, soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="quarterdeck-demo-"))
    stage = Stage(console, folder)
    try:
        console.print(f"[bold]Quarterdeck {__version__}[/]: real processes, real calls over MCP\n")
        began = time.perf_counter()
        tell_all(stage)
        console.print(f"[bold green]Every step verified[/] in {time.perf_counter() - began:.1f} s.\n")
        if stay:
            _rest(console, stage)
        else:
            _point_home(console)
    except KeyboardInterrupt:
        console.print("\n[bold red]stopped[/] before the end")
        sys.exit(130)
    except (Unverified, Refused, QuarterdeckError) as error:
        console.print(f"\n[bold red]failed[/] at: {escape(stage.title)}\n  {escape(str(error))}")
        if isinstance(error, QuarterdeckError) and error.hint:
            console.print(f"  {escape(error.hint)}", style="dim")
        sys.exit(1)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)


def _rest(console: Console, stage: Stage) -> None:
    """Leave the core to the user until Ctrl-C."""
    console.print(f"“{escape(stage.waiting)}” waits for you. The board, signed in by this link:")
    console.print(f"  [bold]{escape(stage.link())}[/]")
    console.print("\nOr connect Claude Code to this core:")
    _connect(console, stage.core.url, paths.token_file(stage.folder))
    console.print("\n[bold]Ctrl-C[/] ends it and removes its folder.")
    stage.title = "the core keeps running"
    try:
        stage.core.process.wait()
    except KeyboardInterrupt:
        console.print("\nended, nothing left behind")
        return
    raise Unverified("the core ended by itself")


def _point_home(console: Console) -> None:
    """How to go on with a core that stays."""
    console.print("This core ends now. Start your own with [bold]quarterdeck up[/], and connect Claude Code:")
    _connect(console, "http://127.0.0.1:7411", paths.token_file(paths.data_dir()))
    console.print("or over stdio, which starts a core when none is running:")
    console.print("  quarterdeck connect claude")


def _connect(console: Console, url: str, token: Path) -> None:
    console.print(f"  {escape(claude_line(url, token))}")
