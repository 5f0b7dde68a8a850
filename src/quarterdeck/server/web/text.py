"""Text of agents and users made safe to look at: shown as it is, never run, nothing hidden in it."""

import re
from typing import Final

from markupsafe import Markup, escape

# Characters that reorder what is read, or that cannot be seen at all.
_TRICKS: Final = re.compile("[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_SGR: Final = re.compile(r"\x1b\[([0-9;]{0,40})m")
# Every other escape sequence: titles, links, cursor moves, and whatever is left open.
_ESCAPE: Final = re.compile(
    r"\x1b(?:\][^\x07\x1b]{0,4000}(?:\x07|\x1b\\)"
    r"|\[[0-?]{0,40}[ -/]{0,4}[@-ln-~]"
    r"|[PX^_][^\x1b]{0,4000}\x1b\\"
    r"|[@-Z\\-_=>78()][0B]?)"
)
_LINK: Final = re.compile(r"https?://[^\s<>\"'`\x00-\x1f]{1,2000}", re.IGNORECASE)
_TRAILING: Final = ".,;:!?)]}"
_COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def seen(text: object) -> str:
    """The text with invisible and reordering characters spelled out; lines and tabs stay."""
    plain = str(text).encode(errors="replace").decode().replace("\r\n", "\n")
    plain = _TRICKS.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", plain)
    return _CONTROL.sub(_picture, plain)


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def linked(text: object) -> Markup:
    """Escaped text in which web addresses are links that tell nobody where they were followed."""
    plain, parts, end = seen(text), [], 0
    for found in _LINK.finditer(plain):
        address = found[0].rstrip(_TRAILING)
        parts.append(escape(plain[end : found.start()]))
        parts.append(
            Markup('<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{0}</a>').format(address)
        )
        end = found.start() + len(address)
    return Markup().join([*parts, escape(plain[end:])])


def terminal(text: object) -> Markup:
    """What a program printed: its colours as classes, its other escape sequences left out."""
    raw = str(text).replace("\r\n", "\n")
    parts: list[Markup] = []
    style: tuple[str, ...] = ()
    end = 0
    for found in _SGR.finditer(raw):
        parts.append(_styled(raw[end : found.start()], style))
        style = _style(found[1], style)
        end = found.end()
    return Markup().join([*parts, _styled(raw[end:], style)])


def _styled(text: str, style: tuple[str, ...]) -> Markup:
    shown = linked(_ESCAPE.sub("", text))
    if not style or not shown:
        return shown
    return Markup('<span class="{}">{}</span>').format(" ".join(style), shown)


def _style(codes: str, style: tuple[str, ...]) -> tuple[str, ...]:
    for code in codes.split(";") if codes else ["0"]:
        number = int(code or 0)
        if number in (38, 48):
            break  # a colour of a larger palette: not worth its own class
        if number == 0:
            style = ()
        elif number == 1:
            style = (*(one for one in style if one != "ansi-bold"), "ansi-bold")
        elif 30 <= number <= 37 or 90 <= number <= 97 or number == 39:
            kept = tuple(one for one in style if one == "ansi-bold")
            style = kept if number == 39 else (*kept, f"ansi-{_COLOURS[number % 10]}")
    return style
