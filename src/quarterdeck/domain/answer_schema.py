"""The JSON Schema that an agent's answer is to have, checked before anything runs."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema

from quarterdeck.domain.errors import Invalid


def checked(text: str | None) -> dict[str, Any] | None:
    """The schema that was given as text; Invalid when it is none, or needs another."""
    if text is None:
        return None
    try:
        schema = json.loads(text)
        jsonschema.Draft202012Validator.check_schema(schema)
    except (ValueError, RecursionError) as error:
        raise Invalid("json_schema is not JSON", field="json_schema") from error
    except jsonschema.SchemaError as error:
        raise Invalid(f"json_schema is no JSON Schema: {error.message}", field="json_schema") from error
    if not isinstance(schema, dict):
        raise Invalid("json_schema must be an object", field="json_schema")
    if (outside := next(_outside(schema), None)) is not None:
        raise Invalid(f"json_schema refers to {outside[:100]!r}, outside of itself", field="json_schema")
    return schema


def _outside(schema: Any) -> Iterator[str]:
    """What a schema refers to that is no place in it: nothing is fetched for anybody."""
    if isinstance(schema, dict):
        given = (schema.get(name) for name in ("$ref", "$dynamicRef"))
        yield from (each for each in given if isinstance(each, str) and not each.startswith("#"))
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _outside(each)
