"""Arguments: what may come in, how it is checked, and the short JSON Schema that agents pay for."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quarterdeck.domain.errors import Invalid

_DEPTH = 64
_INT64 = 2**63


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


def parse(model: type[A], arguments: dict[str, Any]) -> A:
    """The checked arguments, or Invalid with the path of what is wrong."""
    normal(arguments)
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise _worded(error) from None


def normal(value: Any) -> None:
    """Refuse what no store takes: NUL, lone surrogates, NaN, integers beyond 64 bits, depth over 64."""
    stack: list[tuple[Any, str, int]] = [(value, "", 0)]
    while stack:
        item, path, depth = stack.pop()
        if isinstance(item, str):
            _plain(item, path)
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise Invalid(f"{path or 'the value'} must be a finite number", field=path)
        elif isinstance(item, int):
            if not -_INT64 <= item < _INT64:
                raise Invalid(f"{path or 'the value'} does not fit in 64 bits", field=path)
        elif isinstance(item, dict | list):
            if depth >= _DEPTH:
                raise Invalid(f"nested deeper than {_DEPTH} levels", field=path[:200])
            stack += ((inner, where, depth + 1) for inner, where in _members(item, path))


def _members(item: dict[str, Any] | list[Any], path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(item, list):
        for index, inner in enumerate(item):
            yield inner, f"{path}[{index}]"
        return
    for key, inner in item.items():
        _plain(key, path)
        yield inner, f"{path}.{key}" if path else key


def _plain(text: str, path: str) -> None:
    if "\x00" in text:
        raise Invalid(f"{path or 'a name'} contains a NUL character", field=path, hint="remove it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{path or 'a name'} contains half a surrogate pair", field=path) from None


_SENTENCES = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "extra_forbidden": "is not an argument of this tool",
}


def _worded(error: ValidationError) -> Invalid:
    problems = [
        (_path(problem["loc"]), _sentence(problem))
        for problem in error.errors(include_url=False, include_input=False)
    ]
    field, sentence = problems[0]
    rest = [{"field": where, "error": what} for where, what in problems[1:10]]
    more = {"errors": rest} if rest else {}
    return Invalid(f"{field} {sentence}", field=field, hint="see the tool's input schema", **more)


def _path(parts: tuple[int | str, ...]) -> str:
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text[:200]


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
            sign = "at least" if "ge" in context else "at most"
            return f"must be {sign} {context.get('ge', context.get('le'))}"
        case "too_long":
            return f"has more than {context['max_length']} entries"
        case "value_error":
            return str(context["error"])
        case kind:
            return _SENTENCES.get(kind) or str(problem["msg"]).lower()


_UNREAD = ("title", "additionalProperties", "minLength", "maxLength", "maxItems", "$defs")


def json_schema(model: type[Args]) -> dict[str, Any]:
    """The model's schema with everything an agent need not read taken out."""
    full = model.model_json_schema(by_alias=True)
    short: dict[str, Any] = _short(full, full.get("$defs", {}))
    short.pop("$defs", None)
    short.setdefault("properties", {})
    return short


def _short(node: Any, defs: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_short(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**defs[node["$ref"].rpartition("/")[2]], **{k: v for k, v in node.items() if k != "$ref"}}
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option != {"type": "null"}]
        if len(options) == 1:
            node = {**options[0], **{k: v for k, v in node.items() if k != "anyOf"}}
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _short(inner, defs) for name, inner in value.items()}
        elif key not in _UNREAD and not (key == "default" and value in (None, [], {})):
            kept[key] = _short(value, defs)
    return kept
