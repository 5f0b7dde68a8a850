"""The demo's agent: a program that takes a task on stdin and really works on it in the current folder.

It writes a test and a first version, runs the tests, sees them fail, repairs its work and runs them again.
Its exit code is that of the last run. Any program can be an agent this way; this one needs no model.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

_PAUSE = float(os.environ.get("DEMO_PAUSE", "0.4"))

TIDE_TEST = """import unittest

from harbour.tide import tide


class TideTest(unittest.TestCase):
    def test_morning_is_high(self):
        self.assertEqual(tide(6), "high")

    def test_noon_is_low(self):
        self.assertEqual(tide(12), "low")

    def test_a_day_has_24_hours(self):
        with self.assertRaises(ValueError):
            tide(24)
"""
TIDE = '''"""When ships may enter."""


def tide(hour: int) -> str:
    """High tide is from 4 to 9 and from 16 to 21."""
    {check}return "high" if 4 <= hour % 12 <= 9 else "low"
'''
CHECK = """if not 0 <= hour < 24:
        raise ValueError(f"a day has no hour {hour}")
    """
GREETING_TEST = """import unittest

from harbour.ships import greeting


class GreetingTest(unittest.TestCase):
    def test_a_ship_is_greeted_by_name(self):
        self.assertEqual(greeting("aurora"), "Welcome, Aurora!")

    def test_a_name_keeps_its_capitals(self):
        self.assertEqual(greeting("HMS Victory"), "Welcome, HMS Victory!")
"""
GREETING = '''"""Ships that come in."""


def greeting(name: str) -> str:
    return f"Welcome, {{{name}}}!"
'''

# By a word of the title: the files of the first try, and what repairs them.
WORK = {
    "tide": (
        {"tests/test_tide.py": TIDE_TEST, "harbour/tide.py": TIDE.format(check="")},
        {"harbour/tide.py": TIDE.format(check=CHECK)},
        "The hour was not checked: 24 is now refused.",
    ),
    "greet": (
        {
            "tests/test_greeting.py": GREETING_TEST,
            "harbour/ships.py": GREETING.format(name="name.capitalize()"),
        },
        {"harbour/ships.py": GREETING.format(name="name[:1].upper() + name[1:]")},
        "capitalize() lowered the other letters: only the first is raised now.",
    ),
}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    time.sleep(_PAUSE)


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        say(f"wrote {name}")


def tests() -> int:
    """The exit code of the tests; their last words go to the log."""
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."],
        capture_output=True,
        text=True,
        check=False,
    )
    say(f"tests: {(ran.stderr.strip().splitlines() or ['no output'])[-1]}")
    return ran.returncode


def note(text: str) -> None:
    """Leave a word on the task through Quarterdeck's own MCP server, with this job's token."""
    params = {
        "name": "update_scratchpad",
        "arguments": {"task_id": os.environ["QUARTERDECK_TASK_ID"], "content": text},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "demo-agent", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    request = urllib.request.Request(  # noqa: S310
        os.environ["QUARTERDECK_MCP_URL"],
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['QUARTERDECK_TOKEN']}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "update_scratchpad",
        },
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        told = json.load(answer)
    if told["result"]["isError"]:
        sys.exit(f"the note was refused: {told}")
    say("left a note on the task")


def main() -> int:
    title = next((line for line in sys.stdin.read().lower().splitlines() if any(w in line for w in WORK)), "")
    found = next((work for word, work in WORK.items() if word in title), None)
    if found is None:
        sys.exit("this agent knows two tasks, and this is neither")
    first, repair, why = found
    write(first)
    if tests() == 0:
        sys.exit("the first try was to fail")
    say(why)
    write(repair)
    code = tests()
    note(why)
    return code


if __name__ == "__main__":
    sys.exit(main())
