"""Arguments: what may come in, how it is checked, and the short JSON Schema that agents pay for."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from quarterdeck.domain.errors import Invalid

Path = tuple[int | str, ...]

_DEPTH = 64
_JSON = 100_000
_INT64 = 2**63
_SHOWN = 200
_CONTAINER = (dict, list)


class Args(BaseModel):
    """The arguments of one tool. Unknown names are refused: a typo must not be lost silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


A = TypeVar("A", bound=Args)
Row = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=100)]
Label = Annotated[str, Field(min_length=1, max_length=200)]
Title = Annotated[str, Field(min_length=1, max_length=500)]
Text = Annotated[str, Field(max_length=100_000)]
Some = Annotated[str, Field(min_length=1, max_length=100_000)]


def bounded(value: Any) -> Any:
    """The value, unless its JSON is too large to be listed with others."""
    if len(json.dumps(value)) > _JSON:
        raise ValueError(f"is larger than {_JSON:,} characters of JSON")
    return value


Object = Annotated[Row, AfterValidator(bounded)]


def parse(model: type[A], arguments: dict[str, Any], hint: str = "see the tool's input schema") -> A:
    """The checked arguments, or Invalid with the path of what is wrong."""
    normal(arguments)
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise _worded(error, hint) from None


def normal(arguments: dict[str, Any]) -> None:
    """Refuse what no store takes: NUL, lone surrogates, NaN, integers beyond 64 bits, depth over 64."""
    waiting: list[tuple[Path, dict[str, Any] | list[Any]]] = [((), arguments)]
    while waiting:
        path, container = waiting.pop()
        if len(path) >= _DEPTH:
            field = _path(path[:1])
            raise Invalid(f"{field} is nested deeper than {_DEPTH} levels", field=field)
        for part, item in _members(container, path):
            if isinstance(item, _CONTAINER):
                waiting.append(((*path, part), item))
            elif (problem := _problem(item)) is not None:
                field = _path((*path, part))
                raise Invalid(f"{field} {problem}", field=field)


def _members(container: dict[str, Any] | list[Any], path: Path) -> Iterable[tuple[int | str, Any]]:
    if isinstance(container, list):
        return enumerate(container)
    for name in container:
        if (problem := _problem(name)) is not None:
            where = _path(path)
            raise Invalid(f"a name in {where or 'the arguments'} {problem}", field=where)
    return container.items()


def _problem(item: Any) -> str | None:
    if isinstance(item, str):
        if "\x00" in item:
            return "contains a NUL character"
        try:
            item.encode()
        except UnicodeEncodeError:
            return "contains half a surrogate pair"
    elif isinstance(item, float):
        if not math.isfinite(item):
            return "must be a finite number"
    elif isinstance(item, int) and not -_INT64 <= item < _INT64:
        return "does not fit in 64 bits"
    return None


_SENTENCES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "list_type": "must be an array",
    "extra_forbidden": "is not an argument of this tool",
}


def _worded(error: ValidationError, hint: str) -> Invalid:
    problems = [
        (_path(problem["loc"]), _sentence(problem))
        for problem in error.errors(include_url=False, include_input=False)
    ]
    field, sentence = problems[0]
    rest = [{"field": where, "error": what} for where, what in problems[1:10]]
    more = {"errors": rest} if rest else {}
    return Invalid(f"{field} {sentence}", field=field, hint=hint, **more)


def _path(parts: Path) -> str:
    text = ""
    for part in parts:
        name = part if isinstance(part, int) else part[:_SHOWN] or '""'
        text += f"[{name}]" if isinstance(name, int) else f".{name}" if text else name
    return text[:_SHOWN]


def _sentence(problem: Any) -> str:
    context = problem.get("ctx", {})
    match problem["type"]:
        case "literal_error" | "enum":
            return f"must be one of {str(context['expected']).replace(' or ', ', ')}"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "string_too_short":
            return "must not be empty"
        case "greater_than_equal" | "less_than_equal":
            sign, bound = ("at least", context["ge"]) if "ge" in context else ("at most", context["le"])
            return f"must be {sign} {int(bound) if bound == int(bound) else bound}"
        case "too_long":
            return f"has more than {context['max_length']} entries"
        case "value_error":
            return str(context["error"])
        case kind:
            return _SENTENCES.get(kind) or f"is not valid: {problem['msg']}"


_UNREAD = ("title", "additionalProperties", "minLength", "maxLength", "maxItems", "$defs")


def json_schema(model: type[Args]) -> dict[str, Any]:
    """The model's schema with everything an agent need not read taken out."""
    full = model.model_json_schema(by_alias=True)
    short: dict[str, Any] = _short(full, full.get("$defs", {}))
    short.pop("$defs", None)
    short.setdefault("properties", {})
    return short


def brief_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a part with a model of its own, in the fewest words: names, types and fixed values."""
    full = model.model_json_schema(by_alias=True)
    short: dict[str, Any] = _bare(_short(full, full.get("$defs", {})))
    return short


_TOLD_WHEN_WRONG = ("description", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def _bare(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    kept: Row = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _bare(inner) for name, inner in value.items()}
        elif key == "const":
            # Not every model API knows it.
            kept["enum"] = [value]
        elif key not in _TOLD_WHEN_WRONG:
            kept[key] = _bare(value)
    return kept


def _short(node: Any, defs: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_short(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    node = _resolved(node, defs)
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _short(inner, defs) for name, inner in value.items()}
        elif key not in _UNREAD and not (key == "default" and value in (None, [], {})):
            kept[key] = _short(value, defs)
    return kept


def _resolved(node: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """The node with a reference replaced by what it names, and without null as an alternative."""
    if "$ref" in node:
        named = defs[node["$ref"].rpartition("/")[2]]
        return _resolved({**named, **{key: value for key, value in node.items() if key != "$ref"}}, defs)
    if "anyOf" not in node:
        return node
    options = [option for option in node["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return _resolved({**options[0], **rest}, defs) if len(options) == 1 else {"anyOf": options, **rest}


def merged(schemas: Sequence[Row]) -> Row:
    """One flat object for several shapes of a tool; model APIs take no alternatives at the top."""
    properties: Row = {}
    for schema in schemas:
        for name, field in schema["properties"].items():
            known = properties.setdefault(name, field)
            if "enum" in known and "enum" in field:
                properties[name] = {**known, "enum": list(dict.fromkeys([*known["enum"], *field["enum"]]))}
    return {"type": "object", "properties": properties}
