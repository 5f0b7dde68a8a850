"""A small agent for tests: it does what the one line of JSON in its prompt says, step by step.

Standard library only, and nothing of ours: it runs in the sandbox.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

prompt = sys.stdin.read()
steps = json.loads(next(line for line in prompt.splitlines() if line.startswith('[["')))
for name, value in steps:
    match name:
        case "say":
            sys.stdout.write(value)
        case "complain":
            sys.stderr.write(value)
        case "write":
            Path(value).write_text("changed")
        case "try_to_write":
            try:
                Path(value).write_text("changed")
                sys.stdout.write(f"wrote {value}\n")
            except OSError as error:
                sys.stdout.write(f"{value}: {error.strerror}\n")
        case "look":
            sys.stdout.write(f"{value} {'is there' if Path(value).exists() else 'is hidden'}\n")
        case "tree":
            found = [str(path) for path in sorted(Path().rglob("*")) if path.parts[0] != ".git"]
            sys.stdout.write(f"tree {' '.join(found)}\n")
        case "environment":
            sys.stdout.write(f"environment {' '.join(sorted(os.environ))}\n")
        case "variable":
            sys.stdout.write(f"{value} is {os.environ.get(value)}\n")
        case "prompt":
            sys.stdout.write(prompt)
        case "python":
            exec(value, {})
        case "wait_for":
            sys.stdout.flush()
            while not Path(value).exists():
                time.sleep(0.02)
        case "hang":
            sys.stdout.flush()
            time.sleep(3600)
        case "exit":
            sys.stdout.flush()
            raise SystemExit(value)
