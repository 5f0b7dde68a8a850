"""Any program as an agent: the prompt on stdin, what it prints is its answer, exit code 0 is success."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from quarterdeck.domain.features import FEATURES
from quarterdeck.run.adapters.base import (
    TOKEN_VARIABLE,
    Assignment,
    Flags,
    Launch,
    Outcome,
    Step,
    check,
)
from quarterdeck.run.adapters.streams import kept, own_home, short

# A patch may be long; what is cut is in the run's output still.
_KEPT: Final = 16 * 1024 * 1024


class Command:
    name = "command"
    features = FEATURES["command"]
    program: str | None = None
    helps: Sequence[Sequence[str]] = ()

    def launch(
        self, program: Sequence[str], env: Mapping[str, str], assignment: Assignment, flags: Flags = None
    ) -> Launch:
        check(self.name, self.features, assignment)
        own_home(assignment.home)
        given = {
            "QUARTERDECK_MCP_URL": assignment.mcp_url,
            TOKEN_VARIABLE: assignment.token,
            "QUARTERDECK_TASK_ID": assignment.task_id,
            "QUARTERDECK_JOB_ID": assignment.job_id,
            "QUARTERDECK_MODEL": assignment.model,
        }
        own = {name: value for name, value in given.items() if value is not None}
        return Launch(tuple(program), {**env, **own}, assignment.prompt.encode("utf-8", "replace"))

    def reader(self, assignment: Assignment) -> "CommandReader":
        return CommandReader(assignment)


class CommandReader:
    """Keeps what is printed: its end, where it is too long. The whole is in the run's log."""

    finished = False

    def __init__(self, assignment: Assignment) -> None:
        self._secret = (assignment.token or "").encode()
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._live = assignment.live
        self._first = True

    def feed(self, line: bytes) -> list[Step]:
        if self._secret:
            line = line.replace(self._secret, b"[token]")
        # Only the newline: a patch of a file with CRLF has its own.
        line = line.removesuffix(b"\n")
        self._lines.append(line)
        self._size += len(line) + 1
        while self._size > _KEPT and len(self._lines) > 1:
            self._size -= len(self._lines.popleft()) + 1
        text = line.decode("utf-8", "replace")
        steps = [Step("text", kept(text))] if text.strip() else []
        if self._live:
            steps.append(Step("delta", text if self._first else f"\n{text}"))
            self._first = False
        return steps

    def outgoing(self) -> bytes:
        return b""

    def finish(self, code: int | None, stderr: str) -> Outcome:
        text = b"\n".join(self._lines).decode("utf-8", "replace")
        if code == 0:
            return Outcome(True, "completed", final_text=text)
        said = stderr.replace(self._secret.decode(), "[token]") if self._secret else stderr
        said = short("\n".join(said.strip().splitlines()[-10:]) or text[-500:], 2_000)
        if code is None:
            return Outcome(False, "stopped", final_text=text, error=f"It was stopped. {said}".strip())
        return Outcome(
            False, "exit_code", final_text=text, error=f"It ended with exit code {code}. {said}".strip()
        )
