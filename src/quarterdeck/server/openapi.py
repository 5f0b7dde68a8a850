"""The REST routes as OpenAPI 3.1, written from the models that check them."""

from functools import cache
from typing import Any, Final, get_args

from pydantic import BaseModel

from quarterdeck import __version__
from quarterdeck.domain.callers import PROFILES
from quarterdeck.domain.jobs import KINDS, State
from quarterdeck.server import audit, doctor, rest, work
from quarterdeck.surfaces.board_audit import AuditTail

PATH = "/openapi.json"
_JSON: Final = "application/json"

_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_TIME: Final = {"type": ["string", "null"], "format": "date-time"}

SCHEMAS: Final[dict[str, Any]] = {
    "Refusal": {
        "type": "object",
        "required": ["detail"],
        "properties": {"detail": _TEXT, "code": _TEXT, "field": _MAYBE, "hint": _MAYBE},
    },
    "Token": {
        "type": "object",
        "required": ["id", "user_id", "name", "profile", "created_at"],
        "properties": {
            "id": _TEXT,
            "user_id": _TEXT,
            "name": _TEXT,
            "profile": {"enum": list(PROFILES)},
            "project_id": _MAYBE,
            "task_id": _MAYBE,
            "created_at": {"type": "string", "format": "date-time"},
            "expires_at": _TIME,
            "last_used_at": _TIME,
            "revoked_at": _TIME,
        },
    },
    "Minted": {
        "allOf": [
            {"$ref": "#/components/schemas/Token"},
            {"type": "object", "required": ["token"], "properties": {"token": _TEXT}},
        ]
    },
    "Job": {
        "type": "object",
        "required": ["id", "kind", "state", "state_version", "priority", "attempt", "created_at"],
        "properties": {
            "id": _TEXT,
            "kind": {"enum": list(KINDS)},
            "state": {"enum": list(get_args(State))},
            "state_version": {"type": "integer"},
            "priority": {"enum": ["P0", "P1", "P2"]},
            "attempt": {"type": "integer"},
            "agent": _MAYBE,
            "task_id": _MAYBE,
            "project_id": _MAYBE,
            "summary": _MAYBE,
            "reason": _MAYBE,
            "cost_usd": {"type": ["number", "null"]},
            "input_tokens": {"type": ["integer", "null"]},
            "output_tokens": {"type": ["integer", "null"]},
            "created_at": {"type": "string", "format": "date-time"},
            "started_at": _TIME,
            "finished_at": _TIME,
        },
    },
    "Drift": {
        "type": "object",
        "required": ["kind", "what", "fix", "automatic"],
        "properties": {"kind": _TEXT, "what": _TEXT, "fix": _MAYBE, "automatic": {"type": "boolean"}},
    },
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str, inner: Any) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: {"type": "array", "items": inner}}}


def _object(**properties: Any) -> dict[str, Any]:
    """An object that has all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _answers(*refusals: int, **good: Any) -> dict[str, Any]:
    """The responses of an operation: `ok` or `made` with its schema, and refusals by their status."""
    found: dict[str, Any] = {}
    for name, schema in good.items():
        code = {"ok": "200", "made": "201", "unready": "503"}[name]
        found[code] = {"description": name, "content": {_JSON: {"schema": schema}}}
    for status in refusals:
        found[str(status)] = {"description": "refused", "content": {_JSON: {"schema": _ref("Refusal")}}}
    return found


_GATED: Final = (400, 401, 403, 421, 503)


def _operation(name: str, summary: str, answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"operationId": name, "summary": summary, "responses": answers, **more}


def _open(name: str, summary: str, answers: dict[str, Any]) -> dict[str, Any]:
    return _operation(name, summary, answers, security=[])


def _body(model: type[BaseModel]) -> dict[str, Any]:
    return {"required": True, "content": {_JSON: {"schema": model.model_json_schema()}}}


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of a model as parameters of a query."""
    found = model.model_json_schema()
    return [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in found["properties"].items()
    ]


def _parameter(where: str, name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema or _TEXT}


def _jobs() -> dict[str, Any]:
    """Jobs of every kind, and what a task changed."""
    job, text = _ref("Job"), {"type": "string", "minLength": 1, "maxLength": 100}
    whole = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
    filters = [_parameter("query", name, **text) for name in ("state", "kind", "agent", "task_id")]
    one = [_parameter("path", "id", **text)]
    log = _object(text=_TEXT, offset=whole, ended={"type": "boolean"}, state=_TEXT)
    file = _object(name=_TEXT, media_type=_TEXT, sha256=_TEXT, text=_TEXT)
    diff = _object(
        task_id=_TEXT, files=whole, insertions=whole, deletions=whole, repos={"type": "array", "items": {}}
    )
    deeds = {
        f"{work.PATH}/{{id}}/{deed}": {
            "parameters": one,
            "post": _operation(f"{deed}_job", summary, _answers(404, 409, 422, *_GATED, ok=job)),
        }
        for deed, summary in (("cancel", "End a job"), ("retry", "Run the same work once more"))
    }
    return {
        work.PATH: {
            "get": _operation(
                "list_jobs",
                "Jobs, running and waiting ones first",
                _answers(404, 422, *_GATED, ok=_object(jobs={"type": "array", "items": job})),
                parameters=[*filters, _parameter("query", "limit", **whole)],
            )
        },
        f"{work.PATH}/{{id}}": {
            "parameters": one,
            "get": _operation("get_job", "One job and its files", _answers(404, *_GATED, ok=job)),
        },
        f"{work.PATH}/{{id}}/log": {
            "parameters": one,
            "get": _operation(
                "job_log",
                "Its log from a place on, also while it runs",
                _answers(404, 422, *_GATED, ok=log),
                parameters=[_parameter("query", name, **whole) for name in ("offset", "wait")],
            ),
        },
        f"{work.PATH}/{{id}}/files/{{name}}": {
            "parameters": [*one, _parameter("path", "name", **text)],
            "get": _operation("job_file", "A file that it left", _answers(404, *_GATED, ok=file)),
        },
        **deeds,
        f"{work.DIFFS}/{{id}}/diff": {
            "parameters": one,
            "get": _operation("task_diff", "What a task changed", _answers(404, 409, *_GATED, ok=diff)),
        },
    }


@cache
def document() -> dict[str, Any]:
    """The whole description."""
    token_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    status = {"type": "object", "required": ["status"], "properties": {"status": _TEXT}}
    report = {
        "type": "object",
        "required": ["ok", "drift"],
        "properties": {
            "ok": {"type": "boolean"},
            "drift": {"type": "array", "items": _ref("Drift")},
            "mended": {"type": "array", "items": _ref("Drift")},
        },
    }
    verdict = {
        "type": "object",
        "required": ["ok", "checked", "broken", "tip"],
        "properties": {
            "ok": {"type": "boolean"},
            "checked": {"type": "integer"},
            "broken": {"type": ["integer", "null"]},
            "tip": _TEXT,
        },
    }
    revoked = {
        "type": "object",
        "required": ["id", "revoked"],
        "properties": {"id": _TEXT, "revoked": {"const": True}},
    }
    events = _list("events", {"type": "object"})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quarterdeck",
            "version": __version__,
            "description": "The REST routes of a core. The work itself is over MCP, at /mcp.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": {
            rest.PATH: {
                "get": _operation(
                    "list_tokens", "Your tokens", _answers(*_GATED, ok=_list("tokens", _ref("Token")))
                ),
                "post": _operation(
                    "mint_token",
                    "A new token; its secret is in this answer alone",
                    _answers(404, 413, 422, *_GATED, made=_ref("Minted")),
                    requestBody=_body(rest.Mint),
                ),
            },
            f"{rest.PATH}/{{id}}": {
                "parameters": [token_id],
                "delete": _operation(
                    "revoke_token", "End a token at once", _answers(404, 405, 422, *_GATED, ok=revoked)
                ),
            },
            "/api/signin": {
                "post": _operation(
                    "sign_in_link",
                    "A link that signs in to the web board once, within a quarter of an hour",
                    _answers(405, *_GATED, ok=_object(url=_TEXT)),
                )
            },
            **_jobs(),
            audit.PATH: {
                "get": _operation(
                    "audit_tail",
                    "The event log, newest first",
                    _answers(422, *_GATED, ok=events),
                    parameters=_query(AuditTail),
                )
            },
            f"{audit.PATH}/verify": {
                "get": _operation("audit_verify", "Check the chain", _answers(*_GATED, ok=verdict))
            },
            doctor.PATH: {
                "get": _operation("doctor_check", "What has drifted", _answers(*_GATED, ok=report)),
                "post": _operation("doctor_mend", "Mend it", _answers(*_GATED, ok=report)),
            },
            "/healthz": {"get": _open("healthz", "The process is alive", _answers(ok=status))},
            "/readyz": {"get": _open("readyz", "It can serve", _answers(421, ok=status, unready=status))},
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "mcp_…"}},
        },
    }
