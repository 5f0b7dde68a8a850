"""Whether an answer fits a JSON Schema, as a process of its own says.

A pattern of somebody's schema can take for ever: here it takes nobody's time but its own, and not for long.
Nothing is fetched: a schema refers to itself alone.
"""

import asyncio
import json
import sys
from typing import Any, Final

import jsonschema
import referencing

_SECONDS: Final = 20.0
_SHOWN: Final = 300


async def misfit(schema: dict[str, Any], value: Any, seconds: float = _SECONDS) -> str | None:
    """What is wrong with a value, in a sentence; None when it fits."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", __file__),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(json.dumps([schema, value]).encode()), seconds)
    except TimeoutError:
        return f"the structured output could not be compared with json_schema in {seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return "the structured output could not be compared with json_schema"
    return said.decode() or None


def main() -> None:
    """Read a schema and a value, and write what is wrong."""
    schema, value = json.load(sys.stdin)
    try:
        validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
        errors = sorted(validator.iter_errors(value), key=str)
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        sys.stdout.write(f"json_schema leads nowhere: {str(error)[:_SHOWN]}")
        return
    if errors:
        sys.stdout.write(f"the structured output does not fit json_schema: {errors[0].message[:_SHOWN]}")


if __name__ == "__main__":
    main()
