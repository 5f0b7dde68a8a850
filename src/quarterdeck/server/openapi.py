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
_PART: Final = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[A-Za-z0-9_.-]+$"}
SIGNIN = "/api/signin"

SCHEMAS: Final[dict[str, Any]] = {
    "Refusal": {
        "type": "object",
        "required": ["detail"],
        "properties": {"detail": _TEXT, "code": _TEXT, "field": _TEXT, "hint": _TEXT},
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


def _work() -> dict[str, Any]:
    """Jobs, diffs and the link to the board."""

    def path(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "in": "path", "required": True, "schema": _PART} for name in names]

    def query(**types: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": name, "in": "query", "schema": schema} for name, schema in types.items()]

    job, count = _ref("Job"), {"type": "integer", "minimum": 0, "maximum": 1_000_000}
    filters = query(state=_TEXT, kind=_TEXT, agent=_TEXT, task_id=_TEXT, limit=count)
    log = {
        "type": "object",
        "required": ["text", "offset", "ended", "state"],
        "properties": {
            "text": _TEXT,
            "offset": {"type": "integer"},
            "ended": {"type": "boolean"},
            "state": _TEXT,
            "adapter": _MAYBE,
        },
    }
    whole, link = {"type": "object"}, {"type": "object", "required": ["url"], "properties": {"url": _TEXT}}
    lost, stuck = (404, 422, *_GATED), (404, 409, 422, *_GATED)
    one = f"{work.PATH}/{{id}}"
    return {
        work.PATH: {
            "get": _operation(
                "list_jobs", "Your jobs", _answers(*lost, ok=_list("jobs", job)), parameters=filters
            )
        },
        one: {
            "parameters": path("id"),
            "get": _operation("get_job", "One job and its files", _answers(*lost, ok=job)),
        },
        f"{one}/log": {
            "parameters": path("id"),
            "get": _operation(
                "job_log",
                "Its log from an offset on",
                _answers(*lost, ok=log),
                parameters=query(offset=count, wait={"type": "integer", "minimum": 0, "maximum": 1}),
            ),
        },
        f"{one}/files/{{name}}": {
            "parameters": path("id", "name"),
            "get": _operation("job_file", "A file that it left", _answers(*lost, ok=whole)),
        },
        f"{one}/cancel": {
            "parameters": path("id"),
            "post": _operation("cancel_job", "End it", _answers(*stuck, ok=job)),
        },
        f"{one}/retry": {
            "parameters": path("id"),
            "post": _operation("retry_job", "The same work once more", _answers(*stuck, ok=job)),
        },
        f"{work.DIFFS}/{{id}}/diff": {
            "parameters": path("id"),
            "get": _operation("task_diff", "What a task changed", _answers(*stuck, ok=whole)),
        },
        SIGNIN: {"post": _operation("signin_link", "A link to the board", _answers(*_GATED, ok=link))},
    }


@cache
def document() -> dict[str, Any]:
    """The whole description."""
    token_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    status = {"type": "object", "required": ["status"], "properties": {"status": _TEXT}}
    report = {
        "type": "object",
        "required": ["ok", "drift", "warnings"],
        "properties": {
            "ok": {"type": "boolean"},
            "drift": {"type": "array", "items": _ref("Drift")},
            "mended": {"type": "array", "items": _ref("Drift")},
            "warnings": {"type": "array", "items": _TEXT},
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
            **_work(),
            "/healthz": {"get": _open("healthz", "The process is alive", _answers(ok=status))},
            "/readyz": {"get": _open("readyz", "It can serve", _answers(421, ok=status, unready=status))},
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "mcp_…"}},
        },
    }
