"""The files of a JobSpec job: an export of its scope for the agent, and the baseline to judge its patch by.

A checkout is a folder with two parts. `tree` is for the agent: the files in scope, byte for byte as they are
in the commit, with a throw-away repository of just those files, so that `git diff` works there. `git` is
ours: a bare repository that borrows the cache's objects. The agent may write what it likes into `tree/.git`;
nothing here ever runs git on it again, since its configuration could name programs to run.
"""

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from quarterdeck.domain import patch
from quarterdeck.domain.jobspec import CodeSnippet, FailReason, JobSpec, Tree
from quarterdeck.domain.patch import SUBMODULE, SYMLINK, FileChange
from quarterdeck.git.spawn import GitError, GitTimeout, git
from quarterdeck.run.mirror import FETCH_SECONDS, CheckoutError, fetch_commit, source_of

_SCOPE_REF: Final = "refs/heads/scope"
_EXCERPT: Final = 20_000
_DETAILS: Final = 20
_CHUNK: Final = 1 << 20
# Stronger than any .gitattributes: what is in the commit is what lies in the folder, and `git diff` shows it.
_ATTRIBUTES: Final = "* -text !eol !ident !filter !working-tree-encoding !diff\n"
_AUTHOR: Final = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (
        ("NAME", "Quarterdeck"),
        ("EMAIL", "quarterdeck@localhost"),
        ("DATE", "@946684800 +0000"),
    )
}
_MALFORMED: Final = re.compile(
    r"corrupt patch|no valid patches|only garbage|lacks filename|bad git-diff"
    r"|inconsistent (?:old|new) filename|fragment without header|unexpected end of file|invalid mode",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an export may take. A larger file is left out of it; more files or bytes are refused."""

    file_bytes: int = 20 * 1024 * 1024
    tree_bytes: int = 2 * 1024 * 1024 * 1024
    files: int = 200_000
    fetch_seconds: float = FETCH_SECONDS


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit: its mode, the id of its content, and its size (None for a submodule)."""

    mode: str
    blob: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a patch is worth: accepted when `code` is None, else why not."""

    code: Literal["BAD_ARTIFACTS", "POLICY", "CONFLICT"] | None = None
    details: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.code is None


@dataclass(frozen=True, slots=True)
class Checkout:
    """A prepared folder. `files` is what the agent got; `left_out` is in scope, but huge or a submodule."""

    spec: JobSpec
    folder: Path
    files: Mapping[str, Entry]
    left_out: tuple[str, ...]

    @property
    def path(self) -> Path:
        """The agent's working directory."""
        return self.folder / "tree"

    @property
    def git_dir(self) -> Path:
        return self.folder / "git"

    async def tree(self) -> Tree:
        """The files and code snippets for the prompt, from the commit and not from the folder."""
        snippets = self.spec.context.code_snippets if self.spec.context else ()
        excerpts = [await self._excerpt(snippet) for snippet in snippets]
        names = (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in self.files)
        return Tree(tuple(names), tuple(excerpts))

    async def _excerpt(self, snippet: CodeSnippet) -> str | None:
        entry = self.files.get(snippet.path.removeprefix("./"))
        if entry is None or entry.mode in (SYMLINK, SUBMODULE):
            return None
        blob = await git(["cat-file", "blob", entry.blob], self.git_dir)
        lines = blob.decode("utf-8", "replace").split("\n")[snippet.first - 1 : snippet.last]
        return "\n".join(lines)[:_EXCERPT] if lines else None

    async def remove(self) -> None:
        """Delete the folder, also where an agent took its own rights away."""
        await asyncio.to_thread(_remove, self.folder)


async def prepare(
    spec: JobSpec,
    into: Path,
    cache_dir: Path,
    allowed_local: Sequence[Path] = (),
    *,
    limits: Limits | None = None,
    user_config: bool = False,
) -> Checkout:
    """Bring the baseline commit into the cache and its files in scope into the new folder `into`.

    Raises CheckoutError, and leaves no folder behind then. A file URL or local path has to lie within one of
    `allowed_local`; with `user_config` git may use the credentials of the user who runs the core.
    """
    limits, commit, branch = limits or Limits(), spec.repo.baseline_commit, spec.repo.base_branch
    into, cache_dir = map(Path.absolute, (into, cache_dir))
    source = await source_of(spec.repo, allowed_local, user_config=user_config)
    cache = await fetch_commit(source, commit, branch, cache_dir, timeout=limits.fetch_seconds)
    try:
        await asyncio.to_thread(into.mkdir, parents=True)
    except FileExistsError:
        raise CheckoutError(f"{into} is in use already", "INTERNAL_ERROR") from None
    try:
        await git(["init", "--quiet", "--bare", "--template=", str(into / "git")], into)
        (into / "git" / "objects" / "info" / "alternates").write_bytes(os.fsencode(cache / "objects") + b"\n")
        await _export(spec, into, limits)
        return await reopen(spec, into)
    except GitError as error:
        await asyncio.to_thread(_remove, into)
        raise CheckoutError(
            f"commit {commit} cannot be checked out: {error.said}",
            "TIMEOUT" if isinstance(error, GitTimeout) else "EXECUTOR_ERROR",
        ) from error
    except BaseException:
        await asyncio.to_thread(_remove, into)
        raise


async def reopen(spec: JobSpec, into: Path) -> Checkout:
    """The checkout that was prepared in this folder, for a worker that takes over from another."""
    try:
        files = await _entries(into / "git", _SCOPE_REF)
        whole = await _entries(into / "git", spec.repo.baseline_commit)
    except GitError as error:
        raise CheckoutError(f"{into} holds no checkout: {error.said}", "INTERNAL_ERROR") from error
    in_scope = await asyncio.to_thread(_in_scope, whole, spec)
    return Checkout(spec, into, files, tuple(name for name in in_scope if name not in files))


async def _entries(git_dir: Path, commit: str) -> dict[str, Entry]:
    listing = await git(["ls-tree", "-r", "-z", "-l", "--full-tree", commit], git_dir)
    # A large tree takes a while, and a worker's heartbeat must not wait for it.
    return await asyncio.to_thread(_parsed, listing)


def _parsed(listing: bytes) -> dict[str, Entry]:
    entries = {}
    for row in listing.split(b"\0")[:-1]:
        described, _, name = row.partition(b"\t")
        mode, _, blob, size = described.decode().split()
        entries[os.fsdecode(name)] = Entry(mode, blob, None if size == "-" else int(size))
    return entries


def _in_scope(entries: Mapping[str, Entry], spec: JobSpec) -> dict[str, Entry]:
    return {name: entry for name, entry in entries.items() if spec.scope.contains(name)}


async def _export(spec: JobSpec, into: Path, limits: Limits) -> None:
    whole = await _entries(into / "git", spec.repo.baseline_commit)
    chosen = {
        name: entry
        for name, entry in (await asyncio.to_thread(_in_scope, whole, spec)).items()
        if entry.size is not None and entry.size <= limits.file_bytes
    }
    if whole and not chosen:
        raise CheckoutError(f"no file of commit {spec.repo.baseline_commit} is in the scope of the job")
    size = sum(entry.size or 0 for entry in chosen.values())
    if len(chosen) > limits.files or size > limits.tree_bytes:
        raise CheckoutError(
            f"the scope holds {len(chosen)} files of {size} bytes; at most {limits.files} files of "
            f"{limits.tree_bytes} bytes are allowed"
        )
    commit = await _scope_commit(into / "git", chosen, f"Baseline {spec.repo.baseline_commit}")
    tree = into / "tree"
    await git(["init", "--quiet", "--template=", str(tree)], into)
    (tree / ".git" / "info").mkdir()
    (tree / ".git" / "info" / "attributes").write_text(_ATTRIBUTES)
    # A fetch takes exactly the objects of the scope: the agent's repository needs nothing outside its folder.
    await git(
        [
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--"),
            *(str(into / "git"), f"{_SCOPE_REF}:refs/remotes/baseline"),
        ],
        tree,
        protocols=("file",),
        timeout=limits.fetch_seconds,
    )
    await git(["update-ref", "--no-deref", "HEAD", commit], tree)
    await git(["read-tree", commit], tree)
    await git(["checkout-index", "--all", "--index", "--quiet"], tree, timeout=limits.fetch_seconds)


async def _scope_commit(git_dir: Path, entries: Mapping[str, Entry], message: str) -> str:
    """A commit without parents that holds these files only."""
    rows = b"".join(
        f"{entry.mode} {entry.blob}\t".encode() + os.fsencode(name) + b"\0" for name, entry in entries.items()
    )
    own = {"GIT_INDEX_FILE": str(git_dir / "scope.index"), **_AUTHOR}
    await git(["update-index", "-z", "--index-info"], git_dir, stdin=rows, env=own)
    tree = (await git(["write-tree"], git_dir, env=own)).decode().strip()
    commit = (await git(["commit-tree", tree, "-m", message], git_dir, env=own)).decode().strip()
    await git(["update-ref", _SCOPE_REF, commit], git_dir)
    return commit


async def verify_patch(checkout: Checkout, diff: str) -> Verdict:
    """Judge a patch against the whole baseline, in an index of its own; the agent's folder is not looked at.

    The spec's rules are checked twice: on the text, and on what git really made of it.
    """
    try:
        raw = diff.encode()
        changes = await asyncio.to_thread(patch.parse, diff)
    except UnicodeEncodeError:
        return Verdict("BAD_ARTIFACTS", ("the diff is not valid Unicode text",))
    except patch.BadPatch as error:
        return Verdict("BAD_ARTIFACTS", (str(error),))
    if reasons := await asyncio.to_thread(patch.check_policy, changes, checkout.spec):
        return Verdict("POLICY", tuple(reasons))
    try:
        found = await _applied(checkout, raw)
    except GitError as error:
        reason: FailReason = "TIMEOUT" if isinstance(error, GitTimeout) else "INTERNAL_ERROR"
        raise CheckoutError(f"the patch cannot be checked: {error.said}", reason) from error
    if isinstance(found, Verdict):
        return found
    if not found:
        return Verdict("BAD_ARTIFACTS", ("the diff changes nothing",))
    reasons = patch.check_policy(found, checkout.spec)
    return Verdict("POLICY", tuple(reasons)) if reasons else Verdict()


async def _applied(checkout: Checkout, diff: bytes) -> list[FileChange] | Verdict:
    """What git makes of the diff, or how it refuses it."""
    git_dir, commit = checkout.git_dir, checkout.spec.repo.baseline_commit
    with tempfile.TemporaryDirectory(dir=git_dir, prefix="verify-") as scratch:
        own = {
            "GIT_DIR": str(git_dir),
            "GIT_INDEX_FILE": f"{scratch}/index",
            # What the patch brings goes away with the scratch folder.
            "GIT_OBJECT_DIRECTORY": scratch,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git_dir / "objects"),
        }
        await git(["read-tree", commit], git_dir, env=own)
        try:
            await git(["apply", "--cached", "--whitespace=nowarn", "-"], git_dir, stdin=diff, env=own)
        except GitTimeout:
            raise
        except GitError as error:
            return _refusal(error)
        made = await git(
            ["diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev", commit], git_dir, env=own
        )
    return list(_raw_changes(made))


def _refusal(error: GitError) -> Verdict:
    lines = [line.removeprefix("error: ") for line in error.said.splitlines() if line.strip()]
    code: Literal["BAD_ARTIFACTS", "CONFLICT"] = (
        "BAD_ARTIFACTS" if _MALFORMED.search(error.said) else "CONFLICT"
    )
    return Verdict(code, tuple(lines[:_DETAILS]))


def _raw_changes(raw: bytes) -> Iterator[FileChange]:
    """The rows of `git diff-index --raw -z`: `:old new id id status`, then the path."""
    fields = raw.split(b"\0")[:-1]
    for described, name in zip(fields[::2], fields[1::2], strict=True):
        old, new, _, _, status = described.decode().lstrip(":").split()
        path = os.fsdecode(name)
        match status:
            case "A":
                yield FileChange(None, path, "new", None, new)
            case "D":
                yield FileChange(path, None, "deleted", old, None)
            case _:
                yield FileChange(path, path, "modified", old, new)


async def unchanged(checkout: Checkout) -> bool:
    """Whether the agent's files are still what it was given, and nothing is added; `.git` does not count."""
    return not await changed_paths(checkout)


async def changed_paths(checkout: Checkout) -> list[str]:
    """What the agent changed, removed or added in its folder, ignored files and empty folders too."""
    return await asyncio.to_thread(_changed_paths, checkout)


def _changed_paths(checkout: Checkout) -> list[str]:
    folders = {""}
    for name in checkout.files:
        while name := name.rpartition("/")[0]:
            folders.add(name)
    missing = set(checkout.files)
    changed: list[str] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            found = list(os.scandir(checkout.path / folder))
        except OSError:
            changed.append(folder or ".")
            continue
        for item in found:
            name = f"{folder}/{item.name}" if folder else item.name
            if name == ".git":
                continue
            if item.is_dir(follow_symlinks=False) and name in folders:
                waiting.append(name)
            elif not _same(checkout.files.get(name), item.path):
                changed.append(name)
            missing.discard(name)
    return sorted({*changed, *missing})


def _same(entry: Entry | None, path: str) -> bool:
    """Whether a file is what the commit says. By content, since times and sizes can be set."""
    if entry is None:
        return False
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            # A Path would drop what is redundant in the target.
            target = os.fsencode(os.readlink(path))  # noqa: PTH115
            return entry.mode == SYMLINK and _blob_id(target) == entry.blob
        # What is no plain file is not opened: a pipe would block.
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
            return False
        if entry.mode != ("100755" if found.st_mode & stat.S_IXUSR else "100644"):
            return False
        digest = hashlib.sha1(b"blob %d\0" % found.st_size, usedforsecurity=False)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return False
    return digest.hexdigest() == entry.blob


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except PermissionError:
        folder.chmod(0o700)
        for parent, names, _ in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                if not path.is_symlink():
                    path.chmod(0o700)
        shutil.rmtree(folder)
