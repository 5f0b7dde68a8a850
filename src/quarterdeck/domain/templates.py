"""Plan templates: read from YAML, checked as a whole, filled in with values that are never read again."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quarterdeck.domain import plain_yaml, regex
from quarterdeck.domain.errors import Invalid

MAX_BYTES: Final = 256 * 1024
MAX_VALUE: Final = 2_000
MAX_VARIABLES: Final = 50
MAX_PHASES: Final = 50
MAX_TASKS: Final = 100
MAX_RENDERED: Final = 1_000_000
CHARSETS: Final = {
    "alpha": "[A-Za-z]*",
    "alphanumeric": "[A-Za-z0-9]*",
    "ascii": "[ -~]*",
    "identifier": "([A-Za-z_][A-Za-z0-9_]*)?",
    "numeric": "[0-9]*",
    "slug": "[a-z0-9-]*",
}

_MAX_UNKNOWN: Final = 20
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACEHOLDER: Final = re.compile(rf"\{{\{{\s*({_NAME.pattern})\s*\}}\}}")
_BAD_CHARACTER: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Variable:
    """A blank in a template. An optional one without a default stands for the empty text."""

    name: str
    description: str = ""
    required: bool = True
    default: str | None = None
    allowed_values: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class TemplateTask:
    """One task; what done means is in its description."""

    title: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class TemplatePhase:
    """One step. `dependencies` are the positions, from 1, of phases before it."""

    name: str
    description: str = ""
    tasks: tuple[TemplateTask, ...] = ()
    dependencies: tuple[int, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template; `source` is the text it was read from, for a snapshot."""

    slug: str
    name: str
    title: str
    description: str
    category: str
    variables: tuple[Variable, ...]
    guidelines: tuple[str, ...]
    context: dict[str, Any]
    phases: tuple[TemplatePhase, ...]
    metadata: dict[str, Any]
    source: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A template with its blanks filled: all that a plan is made of.

    `context` is the template's own (a text is its `background`) with the `guidelines` in it;
    `variables` holds every value that was used, given or default.
    """

    title: str
    description: str
    context: dict[str, Any]
    phases: tuple[TemplatePhase, ...]
    variables: dict[str, str]
    metadata: dict[str, Any]


class _Wrong(Exception):
    """What is wrong, and where in the template; `parse` adds which template."""

    def __init__(self, path: str, sentence: str) -> None:
        super().__init__(sentence)
        self.path = path
        self.sentence = sentence


def parse(slug: str, text: str) -> Template:
    """The template that `text` describes, or `Invalid` that names the template and the place in it."""
    try:
        return _template(slug, text, _load(text))
    except _Wrong as wrong:
        raise Invalid(
            f"template {slug}: {wrong.path or 'the file'} {wrong.sentence}", field=wrong.path, template=slug
        ) from None


def _load(text: str) -> Any:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise _Wrong("", f"is larger than {MAX_BYTES // 1024} KB")
    try:
        return plain_yaml.load(text)
    except plain_yaml.Misread as error:
        raise _Wrong(error.where, f"is not valid YAML: {error.problem}") from None


def _template(slug: str, source: str, data: Any) -> Template:
    top = _fields(data, "", "name title description category variables guidelines context phases metadata")
    variables = _variables(top.get("variables"))
    reader = _Reader({variable.name for variable in variables})
    name = reader.needed(top, "", "name")
    guidelines = _list(top.get("guidelines"), "guidelines")
    context = top.get("context")
    if isinstance(context, dict):
        context = reader.data(context, "context")
    else:
        background = reader.text(context, "context")
        context = {"background": background} if background else {}
    if guidelines and "guidelines" in context:
        raise _Wrong("context.guidelines", "contradicts guidelines; keep one of the two")
    return Template(
        slug=slug,
        name=name,
        title=reader.text(top.get("title"), "title") or name,
        description=reader.text(top.get("description"), "description"),
        category=_text(top.get("category"), "category") or "general",
        variables=variables,
        guidelines=tuple(reader.text(item, f"guidelines[{n}]") for n, item in enumerate(guidelines)),
        context=context,
        phases=reader.phases(top.get("phases")),
        metadata=reader.free(top, ""),
        source=source,
    )


def _at(path: str, name: str) -> str:
    return f"{path}.{name[:64]}" if path else name[:64]


def _fields(value: Any, path: str, known: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(path, f"must be a mapping with {', '.join(known.split())}")
    for key in value:
        if key not in known.split():
            raise _Wrong(_at(path, key), f"is not a field; there are {', '.join(known.split())}")
    return value


def _list(value: Any, path: str, most: int = MAX_TASKS) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _Wrong(path, "must be a list")
    if len(value) > most:
        raise _Wrong(path, f"has more than {most} entries")
    return value


def _text(value: Any, path: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        quoted = "; put it in quotes" if isinstance(value, bool) else ""
        raise _Wrong(path, f"must be text{quoted}")
    if _BAD_CHARACTER.search(value):
        raise _Wrong(path, "contains a NUL character or half a surrogate pair")
    return value.strip()


def _word(value: Any, path: str) -> str:
    """A default or an allowed value: every character of it counts."""
    if not isinstance(value, str | bool):
        raise _Wrong(path, "must be text, a number, true or false")
    text = _worded(value)
    _text(text, path)
    if len(text) > MAX_VALUE:
        raise _Wrong(path, f"is longer than {MAX_VALUE} characters")
    return text


def _either(fields: dict[str, Any], path: str, name: str, other: str) -> tuple[str, Any]:
    """The one of two fields that is given, and its value."""
    if fields.get(other) is None:
        return name, fields.get(name)
    if fields.get(name) is not None:
        raise _Wrong(_at(path, other), f"says the same as {name}; keep one of the two")
    return other, fields[other]


def _variables(value: Any) -> tuple[Variable, ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise _Wrong("variables", "must be a mapping from a variable's name to its fields")
    if len(value) > MAX_VARIABLES:
        raise _Wrong("variables", f"has more than {MAX_VARIABLES} entries")
    return tuple(_variable(name, fields, _at("variables", name)) for name, fields in value.items())


def _variable(name: str, fields: Any, path: str) -> Variable:
    if not _NAME.fullmatch(name):
        raise _Wrong(path, "is not a name: up to 64 letters, digits and _, not starting with a digit")
    known = "description required default allowed_values enum pattern charset"
    given = _fields({} if fields is None else fields, path, known)
    default = given.get("default")
    if default is not None:
        default = _word(default, f"{path}.default")
    required = given.get("required")
    if required is None:
        required = default is None
    elif not isinstance(required, bool):
        raise _Wrong(f"{path}.required", "must be true or false")
    elif required and default is not None:
        raise _Wrong(f"{path}.required", "contradicts the default; drop one of the two")
    variable = Variable(
        name=name,
        description=_text(given.get("description"), f"{path}.description"),
        required=required,
        default=default,
        allowed_values=_allowed(given, path),
        pattern=_pattern(given, path),
    )
    problem = _misfit(variable, default) if default is not None else None
    if problem:
        raise _Wrong(f"{path}.default", problem)
    return variable


def _allowed(fields: dict[str, Any], path: str) -> tuple[str, ...]:
    name, given = _either(fields, path, "allowed_values", "enum")
    values = _list(given, f"{path}.{name}")
    if given is not None and not values:
        raise _Wrong(f"{path}.{name}", "must have at least one entry")
    return tuple(_word(item, f"{path}.{name}[{n}]") for n, item in enumerate(values))


def _pattern(fields: dict[str, Any], path: str) -> str | None:
    name, given = _either(fields, path, "pattern", "charset")
    if given is None:
        return None
    if name == "charset":
        pattern = CHARSETS.get(_text(given, f"{path}.charset"))
        if pattern is None:
            raise _Wrong(f"{path}.charset", f"must be one of {', '.join(CHARSETS)}")
        return pattern
    _text(given, f"{path}.pattern")
    try:
        regex.compiled(given)
    except ValueError as error:
        raise _Wrong(f"{path}.pattern", str(error)) from None
    return str(given)


class _Reader:
    """Reads the parts that are filled in later; every placeholder must be a declared variable's."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def text(self, value: Any, path: str) -> str:
        text = _text(value, path)
        for n, piece in enumerate(_PLACEHOLDER.split(text)):
            if n % 2 and piece not in self.names:
                raise _Wrong(path, f"uses {{{{ {piece} }}}}, which is not among the variables")
            if n % 2 == 0 and "{{" in piece:
                raise _Wrong(path, "has a {{ that starts no placeholder")
        return text

    def needed(self, fields: dict[str, Any], path: str, name: str) -> str:
        text = self.text(fields.get(name), _at(path, name))
        if not text:
            raise _Wrong(_at(path, name), "is required")
        return text

    def data(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            for key in value:
                if _text(key, _at(path, key)) and "{{" in key:
                    raise _Wrong(_at(path, key), "may not have {{ in its name")
            return {key: self.data(item, _at(path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.data(item, f"{path}[{n}]") for n, item in enumerate(value)]
        return value if value is None or isinstance(value, bool) else self.text(value, path)

    def free(self, fields: dict[str, Any], path: str) -> dict[str, Any]:
        value = fields.get("metadata")
        if value is not None and not isinstance(value, dict):
            raise _Wrong(_at(path, "metadata"), "must be a mapping")
        return dict(self.data(value or {}, _at(path, "metadata")))

    def phases(self, value: Any) -> tuple[TemplatePhase, ...]:
        items = _list(value, "phases", MAX_PHASES)
        if not items:
            raise _Wrong("phases", "must have at least one entry")
        phases: list[TemplatePhase] = []
        for n, item in enumerate(items):
            path = f"phases[{n}]"
            fields = _fields(item, path, "name description tasks dependencies metadata")
            tasks = _list(fields.get("tasks"), f"{path}.tasks")
            phases.append(
                TemplatePhase(
                    name=self.needed(fields, path, "name"),
                    description=self.text(fields.get("description"), f"{path}.description"),
                    tasks=tuple(self.task(task, f"{path}.tasks[{m}]") for m, task in enumerate(tasks)),
                    dependencies=_dependencies(fields, path, [phase.name for phase in phases]),
                    metadata=self.free(fields, path),
                )
            )
        return tuple(phases)

    def task(self, value: Any, path: str) -> TemplateTask:
        if not isinstance(value, dict):
            return TemplateTask(title=self.needed({path: value}, "", path))
        fields = _fields(value, path, "name title description")
        name, _ = _either(fields, path, "name", "title")
        return TemplateTask(
            title=self.needed(fields, path, name),
            description=self.text(fields.get("description"), f"{path}.description"),
        )


def _dependencies(fields: dict[str, Any], path: str, before: list[str]) -> tuple[int, ...]:
    positions = set()
    for n, item in enumerate(_list(fields.get("dependencies"), f"{path}.dependencies")):
        where = f"{path}.dependencies[{n}]"
        wanted = _text(item, where)
        if before.count(wanted) == 1:
            positions.add(before.index(wanted) + 1)
        elif re.fullmatch("[1-9][0-9]?", wanted) and int(wanted) <= len(before):
            positions.add(int(wanted))
        else:
            raise _Wrong(where, "must be the name or the number, from 1, of one phase before this one")
    return tuple(sorted(positions))


def render(template: Template, variables: Mapping[str, Any]) -> Rendered:
    """The template with `variables` in its blanks, each value inserted literally.

    Every problem with the variables is in the one `Invalid`: `errors` lists field and error of each.
    """
    values = _values(template, variables)
    fill = _Filling(values)
    context = fill.data(template.context)
    if template.guidelines:
        context["guidelines"] = [fill.text(text) for text in template.guidelines]
    return Rendered(
        title=fill.heading(template.title, "title"),
        description=fill.text(template.description),
        context=context,
        phases=tuple(fill.phase(phase, f"phases[{n}]") for n, phase in enumerate(template.phases)),
        variables=values,
        metadata=fill.data(template.metadata),
    )


class _Filling:
    """Puts the values into their places, up to what a plan may hold."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        self.left = MAX_RENDERED

    def text(self, text: str) -> str:
        # One pass with a function: neither braces nor backslashes of a value mean anything.
        filled = _PLACEHOLDER.sub(lambda found: self.values[found[1]], text)
        self.left -= len(filled)
        if self.left < 0:
            problem = f"the plan would be longer than {MAX_RENDERED} characters"
            raise Invalid(problem, field="variables", hint="give shorter values")
        return filled

    def heading(self, text: str, path: str) -> str:
        filled = self.text(text)
        if not filled.strip():
            raise Invalid(f"{path} would be blank", field="variables", hint=f"give values for {text}")
        return filled

    def data(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.data(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def phase(self, phase: TemplatePhase, path: str) -> TemplatePhase:
        return TemplatePhase(
            name=self.heading(phase.name, f"{path}.name"),
            description=self.text(phase.description),
            tasks=tuple(
                TemplateTask(self.heading(task.title, f"{path}.tasks[{n}]"), self.text(task.description))
                for n, task in enumerate(phase.tasks)
            ),
            dependencies=phase.dependencies,
            metadata=self.data(phase.metadata),
        )


def _values(template: Template, given: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise Invalid("variables must be an object", field="variables")
    values: dict[str, str] = {}
    problems: dict[str, str] = {}
    for variable in template.variables:
        name = variable.name
        if name not in given:
            problem = "is required" if variable.required else None
            values[name] = variable.default or ""
        elif (problem := _problem(variable, given[name])) is None:
            values[name] = _worded(given[name])
        if problem:
            problems[f"variables.{name}"] = problem
    unknown = [str(name) for name in given if name not in {variable.name for variable in template.variables}]
    for name in unknown[:_MAX_UNKNOWN]:
        problems[f"variables.{name[:64]}"] = "is not a variable of this template"
    if problems:
        more = len(unknown) - _MAX_UNKNOWN
        raise Invalid(
            "; ".join(f"{where} {what}" for where, what in problems.items())
            + (f"; and {more} more unknown variables" if more > 0 else ""),
            field=next(iter(problems)),
            hint=_offer(template),
            errors=[{"field": where, "error": what} for where, what in problems.items()],
        )
    return values


def _offer(template: Template) -> str:
    names = [f"{v.name} (required)" if v.required else v.name for v in template.variables]
    return f"variables of {template.slug}: {', '.join(names) or 'none'}"


def _problem(variable: Variable, value: Any) -> str | None:
    if not isinstance(value, str | int | float):
        return "must be text, a number, true or false"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    # Checked before it is written out: Python refuses to write very long integers.
    if isinstance(value, int) and value.bit_length() > 1_000:
        return "is a number with too many digits"
    text = _worded(value)
    if len(text) > MAX_VALUE:
        return f"is longer than {MAX_VALUE} characters"
    if variable.required and not text.strip():
        return "is required and may not be blank"
    return _misfit(variable, text)


def _misfit(variable: Variable, text: str) -> str | None:
    if variable.allowed_values and text not in variable.allowed_values:
        return f"must be one of {', '.join(variable.allowed_values)[:500]}"
    if variable.pattern is not None and not regex.compiled(variable.pattern).fullmatch(text):
        return f"must match {variable.pattern}"
    return None


def _worded(value: str | float) -> str:
    """A value as text; true and false as JSON writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
