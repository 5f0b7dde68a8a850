"""The demo's sample: a small repository with tests, a template for its plan, and two agents."""

import json
import os
import subprocess
import sys
from pathlib import Path

from quarterdeck.domain.errors import Unavailable

AGENTS = ("mira", "theo")
TEMPLATE = "harbour"
TASKS = ("Tell the tide", "Greet ships by name")
PRIORITIES = {
    "Tell the tide": "high",
    "Moor ships by their length": "urgent",
    "Write every arrival down": "low",
}
_FILES = {
    "README.md": "# Harbour\n\nA very small harbour.\n",
    "harbour/__init__.py": '"""A very small harbour."""\n',
    "harbour/ships.py": (
        '"""Ships that come in."""\n\n\ndef greeting(name: str) -> str:\n    return "Welcome!"\n'
    ),
    "tests/__init__.py": "",
    "tests/test_ships.py": (
        "import unittest\n\nfrom harbour.ships import greeting\n\n\n"
        "class ShipsTest(unittest.TestCase):\n    def test_ships_are_welcome(self):\n"
        '        self.assertIn("Welcome", greeting("aurora"))\n'
    ),
    ".gitignore": "__pycache__/\n",
}
_PLAN = """name: Harbour
title: "Harbour: {{ RELEASE }}"
description: Two small features, each with a test
category: demo
variables:
  RELEASE:
    description: What it is for
phases:
  - name: Build
    tasks:
      - name: Tell the tide
        description: harbour.tide tells high from low tide by the hour, and refuses hours that no day has.
      - name: Greet ships by name
        description: harbour.ships.greeting names the ship, with its first letter raised and the others kept.
  - name: Later
    tasks:
      - Moor ships by their length
      - Count the boats at the quay
      - Write every arrival down
"""


def make_repo(folder: Path) -> Path:
    """A git repository with one commit, on the branch main."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for key, value in (("name", "Demo"), ("email", "demo@localhost")):
        git(folder, "config", f"user.{key}", value)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A very small harbour")
    return folder


def git(folder: Path, *words: str) -> str:
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    own = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(folder)}
    try:
        ran = subprocess.run(
            ["git", *words], cwd=folder, env=kept | own, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Unavailable("the demo needs git", hint="install git 2.38 or newer") from error
    if ran.returncode:
        raise Unavailable(f"git {words[0]} failed: {ran.stderr.strip()[:300]}")
    return ran.stdout


def write_template(data_dir: Path) -> None:
    """A template of one's own is a file in the data directory."""
    folder = data_dir / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{TEMPLATE}.yaml").write_text(_PLAN)


def agents() -> str:
    """Two agents in the words of the configuration: any program can be one."""
    program = [sys.executable, "-I", str(Path(__file__).with_name("demo_agent.py"))]
    row = {"adapter": "command", "command": program, "capabilities": ["code", "testing"], "max_concurrent": 1}
    return json.dumps({name: {**row, "name": name.capitalize()} for name in AGENTS})


def acceptance() -> str:
    """The command that judges the work."""
    return f"{sys.executable} -B -m unittest discover -q -s tests -t ."
