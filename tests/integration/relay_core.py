"""A core with a scripted agent for relay jobs, a repository for them, and the specs that tests send."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from tests.git_repo import GitRepo
from tests.integration.own_core import Core
from tests.mcp_client import Client, eventually

AGENT = Path(__file__).parents[1] / "relay_agent.py"
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "EXPIRED")
FILES = {
    "src/a.txt": "one\ntwo\nthree\n",
    "src/deep/b.py": "x = 1\n",
    "docs/readme.md": "Read me\n",
    "secret.env": "KEY=1\n",
}
PATCH = """diff --git a/src/a.txt b/src/a.txt
--- a/src/a.txt
+++ b/src/a.txt
@@ -1,3 +1,3 @@
 one
-two
+2
 three
"""

Row = dict[str, Any]


def answer(diff: str = PATCH, plan: str = "Run it.", notes: str = "None.") -> str:
    """What an agent says that keeps the contract."""
    return f"Done.\n\n### DIFF\n\n```diff\n{diff}```\n\n### TEST_PLAN\n\n{plan}\n\n### NOTES\n\n{notes}\n"


def config(agent: Path) -> str:
    """A configuration whose relay jobs go to the scripted agent."""
    command = json.dumps([sys.executable, str(agent)])
    return (
        '[defaults]\nrelay_agent = "scripted"\n'
        f'[agents.scripted]\nname = "Scripted"\nadapter = "command"\ncommand = {command}\n'
    )


class RelayCore(Core):
    """A core with the scripted agent, and a repository that it may read."""

    def __init__(self, folder: Path, more: str = "", **variables: str) -> None:
        data, self.signals = folder / "data", folder / "agent"
        data.mkdir(parents=True)
        # The folder of its program is all of the disk that the agent sees: there it finds our signals.
        self.signals.mkdir()
        shutil.copy(AGENT, self.signals)
        (data / "quarterdeck.toml").write_text(config(self.signals / AGENT.name) + more)
        super().__init__(data, QUARTERDECK_RELAY__LOCAL_ROOTS=str(folder / "repos"), **variables)
        self.repo = GitRepo(folder / "repos" / "app")
        self.commit = self.repo.commit(FILES)
        self._keys = 0

    def spec(self, *steps: tuple[str, Any], **more: Any) -> Row:
        """A spec whose agent takes these steps, under a key of its own."""
        self._keys += 1
        return self.spec_of(str(self.repo.path), self.commit, f"key-{self._keys}", *steps, **more)

    @staticmethod
    def spec_of(path: str, commit: str, key: str, *steps: tuple[str, Any], **more: Any) -> Row:
        """A spec for a repository; `more` sets fields by their names with `__` for the dot."""
        spec: Row = {
            "repo": {
                "type": "local",
                "path": path,
                "baseBranch": "main",
                "baselineCommit": commit,
            },
            "task": {
                "title": "Make two a number",
                "description": json.dumps(steps or [("say", answer())]),
                "acceptance": ["two is 2"],
            },
            "scope": {"readPaths": ["src"], "disallowReformatting": False},
            "outputContract": ["DIFF", "TEST_PLAN", "NOTES"],
            "execution": {
                "preferredModel": "a-model",
                "sandbox": "read-only",
                "askPolicy": "untrusted",
                "priority": "P1",
                "ttlS": 600,
            },
            "idempotencyKey": key,
        }
        for name, value in more.items():
            *parents, last = name.split("__")
            part = spec
            for parent in parents:
                part = part.setdefault(parent, {})
            part[last] = value
        return spec

    def signal(self, name: str) -> Path:
        """A file for which the agent's step `wait_for` waits; touch it to let the agent go on."""
        return self.signals / name

    def ran(self, client: Client, *steps: tuple[str, Any], **more: Any) -> Row:
        """The job of such a spec, once it has ended."""
        return ended(client, client.done("jobs_submit", spec=self.spec(*steps, **more))["jobId"])


def ended(client: Client, job_id: str) -> Row:
    def look() -> Row | None:
        job: Row = client.done("jobs_get", jobId=job_id)
        return job if job["state"] in ENDED else None

    return eventually(look, 60)


def running(client: Client, job_id: str) -> Row:
    def look() -> Row | None:
        job: Row = client.done("jobs_get", jobId=job_id)
        return job if job["state"] == "RUNNING" else None

    return eventually(look, 60)


def read(client: Client, job_id: str, name: str) -> str:
    """The text of a resource of a job: its `status`, or an artifact."""
    uri = f"mcp://jobs/{job_id}/{name if name == 'status' else f'artifacts/{name}'}"
    held = client.request("resources/read", json.dumps({"uri": uri}), uri)
    text: str = held["contents"][0]["text"]
    return text
