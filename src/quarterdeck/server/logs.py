"""Logging: to stderr only, and never a secret."""

import logging
import re
import sys
from typing import Any

import structlog

_SECRET = re.compile(
    r"mcp_[A-Za-z0-9_-]{48}|(?<=Bearer )\S+|(?<=://)[^/@\s:]+:[^/@\s]+(?=@)|sk-[A-Za-z0-9_-]{8,}"
)


def redact(text: str) -> str:
    """The text with tokens, keys and passwords in URLs masked."""
    return _SECRET.sub("[secret]", text)


def _redact(_logger: Any, _name: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: redact(value) if isinstance(value, str) else value for key, value in fields.items()}


def configure(level: str, form: str) -> None:
    """Send every log line of this process, libraries included, to stderr in one form."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=renderer, foreign_pre_chain=shared))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
