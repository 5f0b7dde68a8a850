"""A pull request for a verified patch: a branch of one commit, pushed with git, opened with the `gh` CLI."""

import asyncio
import json
import os
import re
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from quarterdeck.domain.contract import Sections, out_md
from quarterdeck.domain.jobspec import JobSpec, without_secrets
from quarterdeck.git.spawn import GitError, credentials_apart, git, identity
from quarterdeck.run.checkout import Checkout

PUSH_SECONDS: Final = 300.0
GH_SECONDS: Final = 120.0

_SCP_LIKE: Final = re.compile(r"[\w.-]+@([\w.-]+):(.+)")
_PULL: Final = re.compile(r"https?://\S+/pull/(\d+)")
_SHOWN: Final = 500
_MAX_ANSWER: Final = 1 << 20
_PROTOCOLS: Final = ("https", "ssh", "git", "file")
# Where `gh` finds its login and its way out.
_PASSED: Final = (
    *("PATH", "HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "GH_CONFIG_DIR", "GH_TOKEN", "GITHUB_TOKEN"),
    *("GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "TMPDIR"),
)


class NotOpened(Exception):
    """There is no pull request; the text says why."""


@dataclass(frozen=True, slots=True)
class PullRequest:
    """As the forge knows it; `status` is `open` when it was just made."""

    url: str
    number: int
    status: str

    def row(self) -> dict[str, Any]:
        return asdict(self)

    def json(self) -> bytes:
        """The text of the artifact `pr.json`."""
        return (json.dumps(self.row(), indent=2) + "\n").encode()


def repository(url: str) -> str:
    """`owner/repo` of a URL, with the host in front where it is not github.com."""
    found = _SCP_LIKE.fullmatch(url)
    parts = urlsplit(url)
    host, path = (found[1], found[2]) if found and not parts.netloc else (parts.hostname or "", parts.path)
    names = [name for name in path.removesuffix("/").removesuffix(".git").split("/") if name]
    if len(names) < 2:
        raise NotOpened("the URL of the repository names no owner")
    slug = "/".join(names[-2:])
    return slug if host in ("", "github.com", "ssh.github.com") else f"{host}/{slug}"


async def create(checkout: Checkout, sections: Sections, job_id: str) -> PullRequest:
    """Push the patch as a branch of its own and open a pull request; one that is there is found again."""
    spec = checkout.spec
    if spec.repo.type != "git" or not spec.repo.url:
        raise NotOpened("the repository is a folder of this host")
    program = shutil.which("gh")
    if program is None:
        raise NotOpened("the gh CLI is not on PATH")
    repo, branch = repository(spec.repo.url), f"quarterdeck/{job_id}"
    try:
        await _push(checkout, sections, branch)
    except GitError as error:
        raise NotOpened(f"the branch cannot be pushed: {error.said[:_SHOWN]}") from error
    return await _open(program, spec, sections, repo, branch)


async def _push(checkout: Checkout, sections: Sections, branch: str) -> None:
    """Commit the patch on the baseline, in our own bare repository, and push that commit."""
    git_dir, repo = checkout.git_dir, checkout.spec.repo
    base, title = repo.baseline_commit, " ".join(checkout.spec.task.title.split())
    # We may hold no commit before the baseline; to git it is then the first.
    (git_dir / "shallow").write_text(f"{base}\n")
    with TemporaryDirectory(dir=git_dir, prefix="commit-") as scratch:
        own = {"GIT_INDEX_FILE": f"{scratch}/index", **await identity(git_dir)}
        await git(["read-tree", base], git_dir, env=own)
        diff = sections.diff.encode()
        await git(["apply", "--cached", "--whitespace=nowarn", "-"], git_dir, stdin=diff, env=own)
        tree = (await git(["write-tree"], git_dir, env=own)).decode().strip()
        message = f"{title}\n\n{sections.notes}\n".encode()
        made = await git(["commit-tree", tree, "-p", base, "-F", "-"], git_dir, stdin=message, env=own)
    # By force: an attempt before this one may have pushed the same branch.
    refspec = f"+{made.decode().strip()}:refs/heads/{branch}"
    address, secret = credentials_apart(repo.url or "")
    await git(
        ["push", "--quiet", "--no-verify", "--", address, refspec],
        git_dir,
        env=secret,
        user_config=True,
        protocols=_PROTOCOLS,
        timeout=PUSH_SECONDS,
    )


async def _open(program: str, spec: JobSpec, sections: Sections, repo: str, branch: str) -> PullRequest:
    title = " ".join(spec.task.title.split())
    code, said, errors = await _gh(
        program,
        *("pr", "create", "--repo", repo, "--head", branch, "--base", spec.repo.base_branch),
        *("--title", title, "--body-file", "-"),
        stdin=_body(spec, sections),
    )
    if code == 0 and (found := _PULL.search(said)):
        return PullRequest(found[0], int(found[1]), "open")
    known = await _known(program, repo, branch)
    if known is not None:
        return known
    last = (errors.strip() or said.strip() or f"exit code {code}").splitlines()[-1]
    raise NotOpened(f"gh: {without_secrets(last)[:_SHOWN]}")


async def _known(program: str, repo: str, branch: str) -> PullRequest | None:
    """The pull request of a branch that an earlier attempt opened."""
    code, said, _ = await _gh(
        program,
        *("pr", "list", "--repo", repo, "--head", branch, "--state", "all", "--limit", "1"),
        *("--json", "url,number,state"),
    )
    with suppress(ValueError, KeyError, IndexError, TypeError):
        if code == 0:
            row = json.loads(said)[0]
            return PullRequest(str(row["url"]), int(row["number"]), str(row["state"]).lower())
    return None


def _body(spec: JobSpec, sections: Sections) -> bytes:
    done = "".join(f"- [ ] {line.strip()}\n" for line in spec.task.acceptance)
    parts = (spec.task.description.strip(), f"# Acceptance\n\n{done}" if done else "", out_md(sections))
    return "\n\n".join(part for part in parts if part).encode()


async def _gh(program: str, *words: str, stdin: bytes | None = None) -> tuple[int | None, str, str]:
    """Run `gh` with what it needs of our environment; its exit code and words."""
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env |= {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *words,
            cwd=Path("/"),
            env=env,
            stdin=DEVNULL if stdin is None else PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise NotOpened(f"gh cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(GH_SECONDS):
            said, errors = await process.communicate(stdin)
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(error, TimeoutError):
            raise NotOpened(f"gh did not answer in {GH_SECONDS:g} s") from None
        raise
    shown = [text[:_MAX_ANSWER].decode("utf-8", "replace") for text in (said, errors)]
    return process.returncode, shown[0], shown[1]
