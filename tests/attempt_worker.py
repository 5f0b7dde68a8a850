"""A worker reduced to one attempt, for tests that stop or kill it: `attempt_worker.py FOLDER SPEC_FILE`.

It writes a line when the agent runs, renews the lease as a heartbeat would, and writes how the attempt ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from dataclasses import asdict
from pathlib import Path

from quarterdeck.run.attempts import Attempt, Spec

HEARTBEAT_SECONDS = 0.1
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21


async def work(folder: Path, given: dict[str, object]) -> None:
    paths = {name: Path(str(given[name])) for name in ("cwd", "stdin") if given.get(name)}
    attempt = await Attempt.start(folder, Spec(**{**given, **paths}))  # type: ignore[arg-type]
    print("started", flush=True)
    ended = asyncio.create_task(attempt.wait())
    while not ended.done():
        attempt.renew()
        await asyncio.wait([ended], timeout=HEARTBEAT_SECONDS)
    print(json.dumps(asdict(ended.result())), flush=True)


if __name__ == "__main__":
    description = json.loads(Path(sys.argv[2]).read_text())
    if description.pop("without_admin", False):
        # Root, yet as little able to make a namespace directly as anybody else.
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
    asyncio.run(work(Path(sys.argv[1]), description))
