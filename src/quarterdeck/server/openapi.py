"""The REST routes as OpenAPI 3.1, written from the models that check them."""

from functools import cache
from typing import Any, Final

from pydantic import BaseModel

from quarterdeck import __version__
from quarterdeck.domain.callers import PROFILES
from quarterdeck.server import audit, doctor, rest
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
    link = {"type": "object", "required": ["path"], "properties": {"path": _TEXT}}
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
            "/profile/link": {
                "post": _operation(
                    "sign_in_link",
                    "A link that signs in to the web board once, within a quarter of an hour",
                    _answers(*_GATED, made=link),
                )
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
            "/healthz": {"get": _open("healthz", "The process is alive", _answers(ok=status))},
            "/readyz": {"get": _open("readyz", "It can serve", _answers(421, ok=status, unready=status))},
        },
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "mcp_…"}},
        },
    }
