"""An agent that does what its task says: each line `DO <word> <rest>` of the prompt is one step."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.mcp_client import Modern


def main() -> int:
    prompt = sys.stdin.read()
    Path(os.environ["HOME"], "prompt.txt").write_text(prompt)
    print("the agent begins", flush=True)
    code = 0
    for line in prompt.splitlines():
        if line.startswith("DO "):
            word, _, rest = line.removeprefix("DO ").partition(" ")
            code = step(word, rest) or code
    print("the agent ends", flush=True)
    return code


def step(word: str, rest: str) -> int:
    name, _, text = rest.partition(" ")
    match word:
        case "write":
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        case "append":
            with Path(name).open("a") as file:
                file.write(text + "\n")
        case "commit":
            subprocess.run(["git", "add", "--all"], check=True)
            who = ["-c", "user.name=Bot", "-c", "user.email=bot@example.org"]
            subprocess.run(["git", *who, "commit", "--quiet", "--message", rest], check=True)
        case "wait":  # until a file is there, outside of the checkout
            while not Path(rest).exists():
                time.sleep(0.02)
        case "deaf":  # does not end when it is asked to
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "touch":
            Path(rest).touch()
        case "hold":  # a lock that ends with the process, whatever its number is outside
            fcntl.flock(os.open(rest + ".part", os.O_CREAT | os.O_WRONLY), fcntl.LOCK_EX)
            Path(rest + ".part").rename(rest)
        case "once":  # a second run of the agent would find it
            Path(rest).open("x").close()
        case "call":
            with Modern(os.environ["QUARTERDECK_MCP_URL"], os.environ["QUARTERDECK_TOKEN"]) as client:
                print(client.call(name, task_id=os.environ["QUARTERDECK_TASK_ID"], **told(name, text)).body)
        case "say":
            print(rest, flush=True)
        case "exit":
            return int(rest)
    return 0


def told(tool: str, text: str) -> dict[str, str]:
    return {"summary": text} if tool == "request_review" else {"content": text}


if __name__ == "__main__":
    sys.exit(main())
