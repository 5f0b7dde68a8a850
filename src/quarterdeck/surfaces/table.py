"""The tool table: a tool is a declaration, and every call of every surface takes this one way."""

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

import structlog

from quarterdeck.core import audit
from quarterdeck.core.context import Core
from quarterdeck.core.limits import RateLimit
from quarterdeck.domain.callers import Caller, Profile
from quarterdeck.domain.errors import Denied, QuarterdeckError, UnknownTool
from quarterdeck.surfaces.resources import Content, Resources
from quarterdeck.surfaces.schema import Args, json_schema, merged, parse

Kind = Literal["read", "write", "destructive"]
A = TypeVar("A", bound=Args)
Answer = Any
# Tells the client how far a call is: done, of how much, and in words.
Progress = Callable[[float, float | None, str | None], Awaitable[None]]

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool's function gets beside its arguments; `progress` when it streams and the client listens.
    `later` tells the same after the answer, where the client has a stream for it."""

    core: Core
    caller: Caller
    progress: Progress | None = None
    later: Progress | None = None


@dataclass(frozen=True)
class Tool:
    """One tool. `binds` names the arguments that lead to a task or project; a `catalog` belongs to nobody."""

    name: str
    kind: Kind
    least: Profile
    args: type[Args]
    run: Callable[[Call, Any], Awaitable[Answer]]
    description: str
    binds: tuple[str, ...] = ()
    catalog: bool = False
    addition: bool = False
    streams: bool = False
    shapes: tuple["Tool", ...] = ()

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        if self.shapes:
            return merged([shape.input_schema for shape in self.shapes])
        return json_schema(self.args)

    def shape_of(self, arguments: dict[str, Any]) -> "Tool":
        """The tool that is meant, where two documents share a name: told by its first required argument."""
        for shape in self.shapes:
            if shape.input_schema["required"][0] in arguments:
                return shape
        return self.shapes[0] if self.shapes else self

    def target(self, arguments: dict[str, Any]) -> str | None:
        """The row that a call names, for the audit."""
        named = (arguments.get(name) for name in self.binds)
        return next((each for each in named if isinstance(each, str)), None)

    @cached_property
    def listing(self) -> dict[str, Any]:
        """The tool as `tools/list` shows it."""
        hints: dict[str, bool] = {"readOnlyHint": self.kind == "read"}
        if self.kind != "read":
            hints["destructiveHint"] = self.kind == "destructive"
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": hints,
        }

    def denial(self, caller: Caller) -> str | None:
        """Why the tool is hidden from a caller; None when it is not."""
        if self.shapes:
            reasons = [shape.denial(caller) for shape in self.shapes]
            return reasons[0] if None not in reasons else None
        if not caller.may(self.least):
            return f"{self.name} needs the profile {self.least}; the caller is {caller.profile}"
        if caller.bound and not self.catalog and not self.binds:
            return f"{self.name} is not available to a token bound to a project or task"
        return None

    def check(self, caller: Caller, args: Args) -> None:
        """Refuse a bound caller that does not name what it works on.

        That each given id lies within the binding is the store's to see: it shows no other row.
        """
        if (
            caller.bound
            and not self.catalog
            and not any(getattr(args, name) is not None for name in self.binds)
        ):
            raise Denied(
                f"a token bound to a project or task cannot call {self.name} without naming its own",
                field=self.binds[0],
                hint=f"give {' or '.join(self.binds)}",
            )


@dataclass(frozen=True)
class Surface:
    """One document's dialect: its tools, its words for an error, and what it tells a client about itself."""

    name: str
    server_name: str
    instructions: str
    tools: dict[str, Tool]
    word: "Word"
    words: dict[str, "Word"] = field(default_factory=dict)
    resources: tuple[Resources, ...] = ()

    def visible(self, caller: Caller) -> Iterable[Tool]:
        """The tools the caller may use, in the order of the document."""
        for tool in self.tools.values():
            if tool.denial(caller) is None:
                yield tool

    def find(self, name: str, arguments: dict[str, Any]) -> tuple[Tool | None, "Word"]:
        """The tool that a call means, and the words of the document it comes from."""
        tool = self.tools.get(name)
        if tool is None:
            return None, self.word
        tool = tool.shape_of(arguments)
        return tool, self.words.get(tool.run.__module__, self.word)


def union(name: str, server_name: str, surfaces: Sequence[Surface]) -> Surface:
    """All tools of several surfaces. A name that two share takes either shape and answers in the caller's."""
    tools: dict[str, Tool] = {}
    for surface in surfaces:
        for tool in surface.tools.values():
            known = tools.get(tool.name)
            tools[tool.name] = tool if known is None else _shared(known, tool)
    return Surface(
        name=name,
        server_name=server_name,
        instructions="\n".join(f"{surface.name}: {surface.instructions}" for surface in surfaces),
        tools=tools,
        word=surfaces[0].word,
        words={tool.run.__module__: s.word for s in surfaces for tool in s.tools.values()},
        resources=tuple(each for surface in surfaces for each in surface.resources),
    )


def _shared(first: Tool, second: Tool) -> Tool:
    """One entry of the list for two tools of a name."""
    shapes = tuple(shape for tool in (first, second) for shape in (tool.shapes or (tool,)))
    described = " Or: ".join(shape.description for shape in shapes)
    return replace(first, description=described, shapes=shapes)


def tool(
    kind: Kind,
    least: Profile,
    *,
    binds: tuple[str, ...] = (),
    catalog: bool = False,
    addition: bool = False,
    streams: bool = False,
) -> Callable[[Callable[[Call, A], Awaitable[Answer]]], Tool]:
    """Declare a tool from its function: its name, docstring and argument model are the tool's own."""

    def declare(run: Callable[[Call, A], Awaitable[Answer]]) -> Tool:
        args = run.__annotations__["a"]
        name = getattr(run, "__name__", "").rstrip("_")
        return Tool(
            name=name,
            kind=kind,
            least=least,
            args=args,
            run=run,
            description=" ".join((run.__doc__ or "").split()),
            binds=binds,
            catalog=catalog,
            addition=addition,
            streams=streams,
        )

    return declare


class Desk:
    """Serves the calls of one surface."""

    def __init__(self, core: Core, surface: Surface, limit: RateLimit, observe: "Observer") -> None:
        self.core = core
        self.surface = surface
        self._limit = limit
        self._observe = observe

    async def call(
        self,
        caller: Caller,
        name: str,
        arguments: dict[str, Any],
        progress: Progress | None = None,
        later: Progress | None = None,
    ) -> dict[str, Any]:
        """The MCP result of one call; a refusal is a result too, with `isError` and the surface's body."""
        began = time.perf_counter()
        found, word = self.surface.find(name, arguments)
        caller = _using(caller, f"{self.surface.name}.{name}"[:200])
        try:
            shown = result(await self._run(Call(self.core, caller, progress, later), found, name, arguments))
        except QuarterdeckError as error:
            if found is not None:
                self._observe(self.surface.name, name, error.code, time.perf_counter() - began)
                if found.kind != "read" or isinstance(error, Denied):
                    audit.refused(self.core, caller, error, found.target(arguments))
            return result(word(error), error=True)
        except Exception:
            self._observe(self.surface.name, name, "internal_error", time.perf_counter() - began)
            logger.exception("tool.broke", tool=caller.tool)
            broken = QuarterdeckError("something broke on our side", hint="the log of the core says more")
            return result(word(broken), error=True)
        self._observe(self.surface.name, name, "ok", time.perf_counter() - began)
        return shown

    async def _run(self, call: Call, found: Tool | None, name: str, arguments: dict[str, Any]) -> Answer:
        caller = call.caller
        # First, so that a flood of refused calls is held back as well.
        self._limit.take(caller)
        if found is None:
            raise UnknownTool(f"there is no tool {name[:100]!r} here", hint="tools/list names them")
        if (reason := found.denial(caller)) is not None:
            raise Denied(reason)
        args = parse(found.args, arguments)
        found.check(caller, args)
        return await found.run(call, args)

    def meter(self, caller: Caller) -> None:
        """Count a request that is no tool call; raises RateLimited."""
        self._limit.take(caller)

    async def read(self, caller: Caller, resources: Resources, uri: str) -> Content:
        """What a resource holds; every refusal is a QuarterdeckError."""
        began, ended = time.perf_counter(), "ok"
        try:
            self._limit.take(caller)
            return await resources.read(self.core, caller, uri)
        except QuarterdeckError as error:
            ended = error.code
            raise
        except Exception:
            ended = "internal_error"
            logger.exception("resource.broke", uri=uri)
            raise QuarterdeckError(
                "something broke on our side", hint="the log of the core says more"
            ) from None
        finally:
            self._observe(self.surface.name, "resources/read", ended, time.perf_counter() - began)


@lru_cache(maxsize=1024)
def _using(caller: Caller, tool: str) -> Caller:
    return replace(caller, tool=tool)


Observer = Callable[[str, str, str, float], None]
Word = Callable[[QuarterdeckError], dict[str, Any]]


def result(answer: Answer, *, error: bool = False) -> dict[str, Any]:
    """An answer as an MCP tool result: text for every client, structure for those that read it."""
    shown = {"content": [{"type": "text", "text": encode(answer)}], "isError": error}
    shown["structuredContent"] = answer if isinstance(answer, dict) else {"result": answer}
    return shown


def encoded(shown: dict[str, Any]) -> str:
    """A result as JSON; the answer in it is its own text, so it is not encoded a second time."""
    text: str = shown["content"][0]["text"]
    structure = text if text.startswith("{") else f'{{"result":{text}}}'
    # JSON text has no control characters, so these two are all that a string of it has to escape.
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    content = f'[{{"type":"text","text":"{quoted}"}}]'
    flag = "true" if shown["isError"] else "false"
    return f'{{"content":{content},"isError":{flag},"structuredContent":{structure}}}'


encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
