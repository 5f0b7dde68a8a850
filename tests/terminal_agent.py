"""An agent for a terminal: it says what it was given, then does what is typed, a line a step."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.scripted_agent import step


def main() -> int:
    given = {
        "cwd": str(Path.cwd()),
        "tty": sys.stdin.isatty(),
        "argv": sys.argv,
        "env": dict(os.environ),
        "pid": os.getpid(),
        "prompt": Path(os.environ["QUARTERDECK_PROMPT_PATH"]).read_text(),
    }
    told = Path(os.environ["HOME"], "given.json")
    told.with_suffix(".part").write_text(json.dumps(given))
    told.with_suffix(".part").rename(told)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "exit":
            print("goodbye", flush=True)
            return int(rest)
        step(word, rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
