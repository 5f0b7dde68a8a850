"""Where things are: the data directory and the files in it that other processes look for."""

import json
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path


def data_dir(given: str | os.PathLike[str] | None = None) -> Path:
    """The data directory: as given, else QUARTERDECK_DATA_DIR, else the platform's user data folder."""
    chosen = given or os.environ.get("QUARTERDECK_DATA_DIR")
    return Path(chosen).expanduser().absolute() if chosen else _platform_dir()


def _platform_dir() -> Path:
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "quarterdeck"
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "quarterdeck"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "quarterdeck"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a core of this data directory listens."""

    url: str
    pid: int


def address_file(directory: Path) -> Path:
    return directory / "core.json"


def token_file(directory: Path) -> Path:
    return directory / "token"


def lock_file(directory: Path) -> Path:
    return directory / "core.lock"


def log_file(directory: Path) -> Path:
    return directory / "core.log"


def place(directory: Path) -> str:
    """The name of a data directory on this host: made at random when it is first asked for, and kept."""
    kept = directory / "place"
    try:
        return kept.read_text().strip()
    except FileNotFoundError:
        write_private(kept, secrets.token_hex(8) + "\n")
    return kept.read_text().strip()


def read_address(directory: Path) -> Address | None:
    """The last address a core wrote here; whether it still answers is for the caller to try."""
    try:
        found = json.loads(address_file(directory).read_text())
        return Address(url=str(found["url"]), pid=int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_token(directory: Path) -> str | None:
    try:
        return token_file(directory).read_text().strip() or None
    except OSError:
        return None


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; only its owner may read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
