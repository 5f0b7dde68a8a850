"""The JobSpec: what a relay job is asked to do, checked field by field.

Where the document is silent: no `readPaths` means the whole tree; a `readPaths` entry that names a file is in
scope as it is, and `fileGlobs` choose among the files below the folders; an absent list is an empty one. Text
has generous upper limits, as every row has to fit into the store.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from quarterdeck.domain import globs
from quarterdeck.domain.errors import Invalid

FailReason = Literal["BAD_ARTIFACTS", "CONFLICT", "POLICY", "EXECUTOR_ERROR", "TIMEOUT", "INTERNAL_ERROR"]
OUTPUT_CONTRACT: Final = ("DIFF", "TEST_PLAN", "NOTES")

_MONTH_S: Final = 30 * 24 * 3600
_SHOWN: Final = 200
_MORE_ERRORS: Final = 20
_LISTED: Final = 500
# Lower case only: git looks up a scheme as it is written.
_URL: Final = re.compile(r"(https|ssh|git|file)://[^/\s].*|file:///.*")
_SCP_LIKE: Final = re.compile(r"[\w.][\w.-]*@[\w.][\w.-]*:[^\s:-].*")
_WEBHOOK: Final = re.compile(r"https?://[^/\s?#@]+([/?#]\S*)?", re.IGNORECASE)
_ANY_URL: Final = re.compile(r"([A-Za-z][\w+.-]{0,20}://)(?:[^/\s'\"]*@)?([^\s'\"?#]*)(?:[?#][^\s'\"]*)?")
# What git itself refuses in a ref's name, see git-check-ref-format(1).
_BAD_REF: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[/-]|[/.]$|(^|/)\.|\.lock(/|$)|^@$")
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

_ANSWER: Final = """## Your answer

End with exactly these three sections, each with its heading on a line of its own, and nothing after them:

### DIFF

```diff
The whole change as one unified diff against the baseline, as `git diff` writes it: `diff --git a/… b/…`
headers, `new file mode 100644` for a new file, and hunk headers whose line counts are right.
```

### TEST_PLAN

How to check the change: the commands to run, and what they should show.

### NOTES

What a reviewer should know: decisions, risks, what was left out.
"""


def _inner_path(path: str) -> str:
    """Refuse a path or pattern that could lead out of the tree or be taken for an option."""
    if path.startswith("-"):
        raise ValueError("must not start with a dash")
    windows = PureWindowsPath(path)
    if path.startswith("/") or windows.drive or windows.root:
        raise ValueError("must be relative to the root of the repository")
    if ".." in windows.parts:
        raise ValueError("must not contain '..'")
    if _CONTROL.search(path):
        raise ValueError("contains a control character")
    return path


def _glob(pattern: str) -> str:
    globs.compiled(_inner_path(pattern))
    return pattern


def branch_name(name: str) -> str:
    """The name, if git would take it for a branch; else ValueError."""
    if _BAD_REF.search(name):
        raise ValueError("is not the name of a branch")
    return name


def model_name(name: str) -> str:
    """The name, if a model could have it; else ValueError."""
    if not name.strip() or name.startswith("-") or _CONTROL.search(name):
        raise ValueError("is not the name of a model")
    return name


def _webhook(url: str) -> str:
    if not _WEBHOOK.fullmatch(url):
        raise ValueError("must be an http or https URL without a user in it")
    return url


def _fixed_contract(parts: tuple[str, ...]) -> tuple[str, ...]:
    if parts != OUTPUT_CONTRACT:
        raise ValueError(f"must be exactly {json.dumps(OUTPUT_CONTRACT)}")
    return parts


def _sha(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{40}", text):
        raise ValueError("must be a full commit id of 40 hexadecimal digits")
    return text.lower()


Line = Annotated[str, Field(min_length=1, max_length=10_000)]
InnerPath = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_inner_path)]
GlobPattern = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_glob)]
LineNumber = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]
Seconds = Annotated[float, Field(strict=True, gt=0, le=_MONTH_S, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


class _Part(BaseModel):
    """Names are camel case on the wire; an unknown one is refused, as a typo must not be lost silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    @field_validator("*")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and "\x00" in text:
                raise ValueError("contains a NUL character")
            if isinstance(text, str) and _HALF_PAIR.search(text):
                raise ValueError("contains half a surrogate pair")
        return value


class Repo(_Part):
    """Where the code is: a remote by `url`, or a repository of this host by `path`."""

    type: Literal["git", "local"]
    url: Annotated[str, Field(max_length=2_000)] | None = Field(default=None, validate_default=True)
    path: Annotated[str, Field(max_length=4_000)] | None = Field(default=None, validate_default=True)
    base_branch: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(branch_name)]
    baseline_commit: Annotated[str, AfterValidator(_sha)]

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("type") != "git":
            return url
        if not url:
            raise ValueError('is required when type is "git"')
        if _CONTROL.search(url) or not (_URL.fullmatch(url) or _SCP_LIKE.fullmatch(url)):
            raise ValueError("must be an https, ssh or git URL, or user@host:path")
        if "://-" in without_secrets(url):
            raise ValueError("names a host that starts with a dash")
        allow_file = bool(info.context and info.context.get("allow_file"))
        if url.startswith("file:") and not allow_file:
            raise ValueError('must not be a file URL here; use type "local" with a path')
        return url

    @field_validator("path")
    @classmethod
    def _check_path(cls, path: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("type") != "local":
            return path
        if not path:
            raise ValueError('is required when type is "local"')
        if not PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError("must be an absolute path without '..'")
        if _CONTROL.search(path):
            raise ValueError("contains a control character")
        return path


class TaskText(_Part):
    """What to do, and how one sees that it is done."""

    title: Annotated[str, Field(min_length=1, max_length=200)]
    description: Annotated[str, Field(max_length=10_000)]
    acceptance: Annotated[tuple[Line, ...], Field(max_length=200)]


class Scope(_Part):
    """The part of the tree that the agent sees and may change."""

    read_paths: Annotated[tuple[InnerPath, ...], Field(max_length=1_000)]
    file_globs: Annotated[tuple[GlobPattern, ...], Field(max_length=100)] = ()
    disallow_reformatting: Flag

    def contains(self, path: str) -> bool:
        """Whether a file of the tree is in scope."""
        roots = _roots(self.read_paths)
        if path in roots:
            return True
        if not any(root == "" or path.startswith(f"{root}/") for root in roots):
            return False
        return not self.file_globs or any(globs.matches(pattern, path) for pattern in self.file_globs)


class CodeSnippet(_Part):
    """Lines of a file that the agent should look at first."""

    path: InnerPath
    first: LineNumber = Field(alias="from")
    last: LineNumber = Field(alias="to")

    @field_validator("last")
    @classmethod
    def _check_last(cls, last: int, info: ValidationInfo) -> int:
        if last < info.data.get("first", 0):
            raise ValueError("must not be less than from")
        return last


class Context(_Part):
    """What the caller already knows about the code; it enters the prompt."""

    dir_tree_digest: Annotated[str, Field(max_length=100_000)] | None = None
    key_signatures: Annotated[tuple[Line, ...], Field(max_length=1_000)] = ()
    code_snippets: Annotated[tuple[CodeSnippet, ...], Field(max_length=100)] = ()


class Execution(_Part):
    """How to run it. `sandbox` and `askPolicy` are fixed by the contract."""

    preferred_model: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(model_name)]
    sandbox: Literal["read-only"]
    ask_policy: Literal["untrusted"]
    timeout_s: Seconds | None = None
    priority: Literal["P0", "P1", "P2"]
    ttl_s: Seconds


class Notify(_Part):
    """Who hears of the end, beside the subscribers."""

    enable_pr: Flag | None = None
    webhook: Annotated[str, Field(max_length=2_000), AfterValidator(_webhook)] | None = None


class JobSpec(_Part):
    """A relay job as it was submitted. Make one with `parse_spec`."""

    repo: Repo
    task: TaskText
    scope: Scope
    context: Context | None = None
    output_contract: Annotated[
        tuple[str, ...],
        Field(max_length=10, json_schema_extra={"items": {"type": "string", "enum": [*OUTPUT_CONTRACT]}}),
        AfterValidator(_fixed_contract),
    ]
    execution: Execution
    idempotency_key: Annotated[str, Field(min_length=1, max_length=500)]
    notify: Notify | None = None

    @classmethod
    def load(cls, stored: str) -> Self:
        """A spec that was accepted before, from its stored JSON."""
        return cls.model_validate_json(stored, context={"allow_file": True})

    def dump(self) -> str:
        """The spec as canonical JSON in the names of the wire."""
        shown = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return json.dumps(shown, sort_keys=True, separators=(",", ":"))


def parse_spec(value: Any, *, allow_file: bool = False) -> JobSpec:
    """The checked spec, or Invalid with the path of the first error; the rest are in its `errors`.

    `allow_file` lets a file URL through; which folders it may name is still for the checkout to see.
    """
    try:
        return JobSpec.model_validate(value, context={"allow_file": allow_file})
    except ValidationError as error:
        raise _worded(error) from None


def fingerprint(spec: JobSpec) -> str:
    """The SHA-256 of the canonical spec: the same for two specs that ask for the same."""
    return hashlib.sha256(spec.dump().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Tree:
    """What a checkout adds to the prompt: its files, and the text of each code snippet of the spec."""

    files: tuple[str, ...] = ()
    excerpts: tuple[str | None, ...] = ()


def prompt_for(spec: JobSpec, tree: Tree | None = None) -> str:
    """What the agent is told. The same spec and tree always make the same prompt."""
    tree = tree or Tree()
    return "\n".join([*_assignment(spec), *_surroundings(spec, tree), *_background(spec, tree), _ANSWER])


def _assignment(spec: JobSpec) -> Iterator[str]:
    yield f"# {' '.join(spec.task.title.split())}\n"
    if spec.task.description.strip():
        yield f"{spec.task.description.strip()}\n"
    if spec.task.acceptance:
        yield "## Done when\n"
        yield "".join(f"{number}. {line.strip()}\n" for number, line in enumerate(spec.task.acceptance, 1))


def _surroundings(spec: JobSpec, tree: Tree) -> Iterator[str]:
    repo, scope = spec.repo, spec.scope
    yield "## Where you work\n"
    yield (
        f"Your working directory holds the files in scope of commit {repo.baseline_commit} "
        f"(branch {repo.base_branch}). Leave them as they are: your answer alone is the result.\n"
    )
    if tree.files:
        more = len(tree.files) - _LISTED
        shown = [*tree.files[:_LISTED], *([f"… and {more} more"] if more > 0 else [])]
        yield f"Its files ({len(tree.files)}):\n\n{_fenced(chr(10).join(shown))}\n"
    yield "Rules for the change:\n"
    roots = ", ".join(f"`{root}`" if root else "the whole tree" for root in _roots(scope.read_paths))
    yield f"- Only files within: {roots}"
    if scope.file_globs:
        yield f"- Below a folder only files that match: {', '.join(f'`{glob}`' for glob in scope.file_globs)}"
    yield "- Text files only: no binary file, symbolic link, submodule, or anything of git's own"
    if scope.disallow_reformatting:
        yield "- No reformatting: leave white space and line breaks of unrelated lines as they are"
    yield ""


def _background(spec: JobSpec, tree: Tree) -> Iterator[str]:
    context = spec.context
    if context is None:
        return
    if context.dir_tree_digest:
        yield f"## Overview of the tree\n\n{_fenced(context.dir_tree_digest)}\n"
    if context.key_signatures:
        yield f"## Signatures to know\n\n{_fenced(chr(10).join(context.key_signatures))}\n"
    if context.code_snippets:
        yield "## Look here first\n"
    for number, snippet in enumerate(context.code_snippets):
        yield f"{snippet.path}, lines {snippet.first} to {snippet.last}\n"
        text = tree.excerpts[number] if number < len(tree.excerpts) else None
        if text is not None:
            yield f"{_fenced(text)}\n"


def _fenced(text: str) -> str:
    """The text in a fence that nothing in it can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"


def without_secrets(text: str) -> str:
    """A URL, or text with URLs in it, without the user, password, query and fragment of any."""
    return _ANY_URL.sub(r"\1\2", text)


@lru_cache(maxsize=256)
def _roots(read_paths: tuple[str, ...]) -> tuple[str, ...]:
    """The paths without `.` and doubled slashes; the root of the tree is an empty one."""
    roots = ("/".join(part for part in path.split("/") if part not in ("", ".")) for path in read_paths)
    return tuple(dict.fromkeys(roots)) or ("",)


_SENTENCES: Final = {
    "missing": "is required",
    "string_type": "must be a string",
    "string_unicode": "contains half a surrogate pair",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
    "tuple_type": "must be an array",
    "string_too_short": "must not be empty",
    "extra_forbidden": "is not a field of a JobSpec",
}


def _worded(error: ValidationError) -> Invalid:
    problems = [
        (_path(problem["loc"]), _sentence(problem))
        for problem in error.errors(include_url=False, include_input=False)
    ]
    field, sentence = problems[0]
    rest = [{"field": where, "error": what} for where, what in problems[1 : _MORE_ERRORS + 1]]
    more = {"errors": rest} if rest else {}
    return Invalid(f"{field} {sentence}", field=field, hint="see the structure of a JobSpec", **more)


def _path(parts: Iterable[int | str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN]}" for part in parts)
    return f"spec{path}"[:_SHOWN]


def _sentence(problem: Any) -> str:
    context = problem.get("ctx", {})
    match problem["type"]:
        case "literal_error":
            return f"must be {context['expected']}"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "too_long":
            return f"has more than {context['max_length']} entries"
        case "greater_than" | "greater_than_equal":
            sign, bound = ("more than", context["gt"]) if "gt" in context else ("at least", context["ge"])
            return f"must be {sign} {int(bound)}"
        case "less_than_equal":
            return f"must be at most {int(context['le'])}"
        case "value_error":
            return str(context["error"])
        case kind:
            return _SENTENCES.get(kind) or f"is not valid: {problem['msg']}"
