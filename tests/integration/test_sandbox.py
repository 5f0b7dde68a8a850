"""The sandbox by its effect: real processes below a real supervisor, and what they can see and do."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from quarterdeck.domain.errors import Unavailable
from quarterdeck.run import sandbox
from quarterdeck.run.adapters.base import Launch
from quarterdeck.run.attempts import Attempt, Exit, Spec, transcript

ENV = {"PATH": os.defpath}


@dataclass
class Place:
    """The folders of one agent, below a folder that it must not see."""

    root: Path

    @property
    def tree(self) -> Path:
        return self.root / "job" / "tree"

    @property
    def home(self) -> Path:
        return self.root / "job" / "home"

    def started(self, launch: Launch) -> Launch:
        box = asyncio.run(sandbox.probe())
        assert box.enforced == "bubblewrap", box.reason
        return box.wrap(self.tree, self.home)(launch)

    def run(
        self, *argv: str, folders: tuple[Path, ...] = (), agent: str = "agent", **env: str
    ) -> tuple[Exit, str]:
        """How a program ended in the sandbox, and what it said."""
        launch = self.started(Launch(argv, {**ENV, **env}, folders=folders))

        async def run() -> Exit:
            attempt = await Attempt.start(self.root / agent, Spec(launch.argv, self.tree, launch.env, 60))
            return await attempt.wait()

        return asyncio.run(run()), transcript(self.root / agent).decode()

    def said(self, *argv: str, **options: Any) -> str:
        ended, said = self.run(*argv, **options)
        assert (ended.reason, ended.code) == ("exited", 0), said
        return said

    def sh(self, script: str, **options: Any) -> str:
        return self.said("/bin/sh", "-c", script, **options)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.tree.mkdir(parents=True)
    found.home.mkdir()
    (found.tree / "file").write_text("content")
    (tmp_path / "secret").write_text("hidden")
    return found


def test_the_tree_can_be_read_and_not_changed(place: Place) -> None:
    script = (
        "pwd; cat file; for x in 'echo x >file' 'rm file' 'mkdir new' 'chmod 777 file'; do sh -c \"$x\"; done"
    )
    said = place.sh(f"{{ {script}; }} 2>&1; true")
    assert said.startswith(f"{place.tree}\ncontent")
    assert said.count("Read-only file system") == 4
    assert [each.name for each in place.tree.iterdir()] == ["file"]
    assert (place.tree / "file").read_text() == "content"


def test_the_home_is_writable_and_outlives_the_run(place: Place) -> None:
    place.sh('echo kept >"$HOME/note"', HOME=str(place.home))
    assert (place.home / "note").read_text() == "kept\n"


def test_the_rest_of_the_disk_is_hidden(place: Place) -> None:
    (Path("/tmp") / f"quarterdeck-{os.getpid()}").touch()
    try:
        hidden = [
            place.root / "secret",
            Path.home() / ".profile",
            Path.home() / ".bashrc",
            *map(Path, ("/etc/shadow", "/etc/hostname", "/var", "/srv", "/opt", "/sys", "/boot")),
            Path(__file__),
            Path("/tmp") / f"quarterdeck-{os.getpid()}",
        ]
        said = place.sh(f"for x in {' '.join(map(str, hidden))}; do test -e $x && echo $x; done; true")
    finally:
        (Path("/tmp") / f"quarterdeck-{os.getpid()}").unlink()
    assert said == ""


def test_nothing_can_be_written_but_home_and_temporary_files(place: Place) -> None:
    name = f"new-{os.getpid()}"
    assert place.sh(f"for x in / /usr /etc /run; do touch $x/{name} 2>/dev/null && echo $x; done; true") == ""
    assert place.sh(f"touch /tmp/{name} && echo done", agent="again") == "done\n"
    assert not Path("/tmp", name).exists()


def test_other_processes_are_hidden(place: Place) -> None:
    said = place.sh("ls -d /proc/[0-9]* | wc -l; readlink /proc/1/exe")
    assert int(said.split()[0]) < 8
    assert said.split()[1].endswith("bwrap")


def test_its_environment_is_what_it_was_given(place: Place) -> None:
    names = {line.partition("=")[0] for line in place.sh("env", HOME="/x").splitlines()}
    assert names - {"_", "SHLVL", "OLDPWD"} == {
        "HOME",
        "PATH",
        "PWD",
        "PYTHONDONTWRITEBYTECODE",
        "QUARTERDECK_ATTEMPT",
    }


def test_a_virtual_environment_given_by_its_path_works(place: Place) -> None:
    said = place.said(sys.executable, "-c", "import pydantic, sys; print(sys.prefix)")
    assert said.strip() == sys.prefix


def test_a_script_is_found_with_its_folder_and_its_interpreter(place: Place) -> None:
    tool = place.root / "tools" / "agent"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nimport part\nprint(part.__file__)\n")
    tool.chmod(0o755)
    (tool.parent / "part.py").touch()
    link = place.root / "link"
    link.symlink_to(tool)
    assert place.said(str(link)).strip() == str(tool.parent / "part.py")


def test_temporary_files_have_a_place_whatever_the_host_uses(place: Place) -> None:
    assert place.sh('touch "$TMPDIR/x" && echo done', TMPDIR=str(place.root / "tmp")) == "done\n"


def test_certificates_that_a_variable_names_are_there(place: Place) -> None:
    (place.root / "ca.pem").write_text("a certificate")
    assert place.sh('cat "$SSL_CERT_FILE"', SSL_CERT_FILE=str(place.root / "ca.pem")) == "a certificate"


def test_a_program_that_a_variable_names_is_there(place: Place) -> None:
    other = place.root / "more" / "helper"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho helped\n")
    other.chmod(0o755)
    assert place.sh('"$HELPER"', HELPER=str(other)) == "helped\n"


def test_folders_of_the_program_are_there_and_read_only(place: Place) -> None:
    data = place.root / "data"
    data.mkdir()
    (data / "model").write_text("weights")
    said = place.said(
        "sh", "-c", f"cat {data}/model; touch {data}/x 2>/dev/null || echo refused", folders=(data,)
    )
    assert said == "weightsrefused\n"


def test_a_folder_around_the_job_is_never_bound(place: Place) -> None:
    folders = (place.root, Path("/"), Path.home(), Path("/etc"))
    said = place.said("sh", "-c", f"ls -A {place.root}; ls -A /etc | grep -c shadow; true", folders=folders)
    assert said == "job\n0\n"


def test_whatever_it_started_ends_with_it(place: Place) -> None:
    (place.tree / "hang").write_text("setsid sleep 86417 & setsid sleep 86417 & echo up; wait")
    launch = place.started(Launch(["/bin/sh", str(place.tree / "hang")], ENV))

    async def run() -> Exit:
        attempt = await Attempt.start(place.root / "agent", Spec(launch.argv, place.tree, launch.env, 60))
        async for chunk in attempt.follow():
            if b"up" in chunk.data:
                break
        attempt.cancel()
        return await attempt.wait()

    ended = asyncio.run(run())
    assert (ended.reason, ended.left) == ("cancelled", False)
    assert not [each for each in psutil.process_iter(["cmdline"]) if "86417" in (each.info["cmdline"] or [])]


def test_the_network_stays_open(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 30); print('reached')"
        assert place.said(sys.executable, "-c", code) == "reached\n"


def test_bubblewrap_is_judged_by_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert asyncio.run(sandbox.choose("auto")) == sandbox.Sandbox(None, "not permitted")
    with pytest.raises(Unavailable, match="not permitted"):
        asyncio.run(sandbox.choose("required"))


def test_without_bubblewrap_the_launch_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    box = asyncio.run(sandbox.choose("auto"))
    assert (box.enforced, box.reason) == ("verified", "bwrap is not on PATH")
    launch = Launch(["agent", "x"], {"A": "1"})
    assert box.wrap(tmp_path, tmp_path)(launch).argv == ["agent", "x"]
    with pytest.raises(Unavailable, match="not on PATH"):
        asyncio.run(sandbox.choose("required"))


def test_switched_off_it_is_not_even_looked_for() -> None:
    assert asyncio.run(sandbox.choose("off")).program is None


def test_no_secret_is_on_the_command_line(place: Place) -> None:
    launch = place.started(Launch(["/bin/true"], {**ENV, "API_KEY": "a-secret-key"}))
    assert "a-secret-key" not in " ".join(launch.argv)
    assert "a-secret-key" not in repr(launch)
    assert subprocess.list2cmdline(launch.argv)
