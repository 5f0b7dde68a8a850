"""An agent's own stream as a person reads it: what it says, its tools, and what went wrong."""

from quarterdeck.run.adapters.base import Step
from quarterdeck.run.adapters.registry import reader_of
from quarterdeck.run.adapters.streams import short

_RESULT = 300


class Transcript:
    """Turns the log of a job into lines for people, piece by piece. What is no JSON stays as it is."""

    def __init__(self, adapter: str | None) -> None:
        self._reader = reader_of(adapter)
        self._part = ""

    def add(self, text: str) -> str:
        """The whole lines that a piece of the log completes."""
        if self._reader is None:
            return text
        *lines, self._part = (self._part + text).split("\n")
        return "".join(self._line(line) for line in lines)

    def rest(self) -> str:
        """What came after the last line's end."""
        part, self._part = self._part, ""
        return self._line(part) if part else ""

    def _line(self, line: str) -> str:
        if self._reader is None or not line.startswith("{"):
            return f"{line}\n"
        return "".join(filter(None, map(_worded, self._reader.feed(f"{line}\n".encode()))))


def _worded(step: Step) -> str:
    text = step.text.strip()
    match step.kind:
        case "text":
            return f"{text}\n" if text else ""
        case "tool":
            return f"▸ {step.tool} {short(' '.join(text.split()), _RESULT)}".rstrip() + "\n"
        case "tool_result":
            shown = short(text, _RESULT)
            return "".join(f"  {line}\n" for line in shown.splitlines())
        case "error":
            return f"! {text}\n"
    return ""
