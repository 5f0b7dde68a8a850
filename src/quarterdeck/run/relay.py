"""The runner of relay jobs: a checkout, an agent that may only read it, and a patch that git accepts."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from quarterdeck.core import relay
from quarterdeck.core.queue import Ending, File
from quarterdeck.core.tokens import LOCAL_USER
from quarterdeck.domain import contract, hosts, patch
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.contract import BadArtifacts, Sections
from quarterdeck.domain.errors import Invalid, Unavailable
from quarterdeck.domain.jobspec import JobSpec, prompt_for
from quarterdeck.run import checkout as checkouts
from quarterdeck.run import pull_requests, sandbox
from quarterdeck.run.adapters.base import Assignment, Outcome
from quarterdeck.run.adapters.variables import environment, family
from quarterdeck.run.checkout import Checkout
from quarterdeck.run.gate import Gate
from quarterdeck.run.mirror import CheckoutError
from quarterdeck.run.pull_requests import PullRequest
from quarterdeck.run.sandbox import Sandbox
from quarterdeck.run.worker import Failed, JobRun

_NAMED: Final = 20


async def perform(run: JobRun) -> Ending:
    """One attempt at a relay job. However it ends, its log stays, and what was enforced is on record."""
    record: dict[str, Any] = {}
    try:
        ending = await _attempt(run, record)
    except Failed as failed:
        ending = Ending("FAILED", failed.summary, failed.reason, failed.result, failed.files)
    except CheckoutError as error:
        ending = Ending("FAILED", str(error), error.reason)
    said = await run.log() or f"{ending.summary}\n".encode()
    return replace(ending, result={**record, **ending.result}, files=[*ending.files, _file("logs.txt", said)])


async def _attempt(run: JobRun, record: dict[str, Any]) -> Ending:
    spec, worker = relay.spec_of(run.job), run.core.settings.worker
    run.agent()
    try:
        box = await sandbox.choose(worker.sandbox, worker.sandbox_network)
    except Unavailable as error:
        raise Failed("EXECUTOR_ERROR", error.message) from error
    checkout = await _checkout(run, spec)
    home = run.folder / "home"
    await asyncio.to_thread(home.mkdir, mode=0o700, exist_ok=True)
    assignment = Assignment(
        prompt=prompt_for(spec, await checkout.tree()),
        cwd=checkout.path,
        home=home,
        mode="read",
        sandboxed=box.enforced == "bubblewrap",
        model=spec.execution.preferred_model,
        mcp_url=run.mcp_url,
        token=run.token,
        job_id=run.job.id,
    )
    record |= {"sandbox": box.enforced, "network": worker.sandbox_network}
    outcome = await _outcome(run, assignment, box, record)
    if outcome.usage is not None:
        record["usage"] = asdict(outcome.usage)
    if outcome.denials:
        record["denials"] = list(outcome.denials)[:_NAMED]
    # Whatever enforced it: a tree that changed is a sandbox that did not hold.
    if changed := await checkouts.changed_paths(checkout):
        raise Failed("POLICY", f"the agent changed its read-only checkout: {_some(changed)}")
    if not outcome.ok:
        raise Failed("EXECUTOR_ERROR", outcome.error or f"the agent stopped: {outcome.stop_reason}")
    return await _delivered(run, checkout, await _verified(checkout, outcome.final_text))


async def _outcome(run: JobRun, assignment: Assignment, box: Sandbox, record: dict[str, Any]) -> Outcome:
    """The agent's run in its sandbox, with a gate as its only way out where its network is isolated."""
    tree, home = assignment.cwd, assignment.home
    agent, settings = run.agent(), run.core.settings
    if settings.worker.sandbox_network == "open":
        return await run.run_agent(assignment, wrap=box.wrap(tree, home))
    env = environment(agent, settings, home)
    allowed = hosts.allowed(family(agent), [run.mcp_url], env, settings.worker.sandbox_hosts)
    async with Gate(run.folder / "gate", allowed) as gate:
        try:
            return await run.run_agent(assignment, wrap=box.wrap(tree, home, gate))
        finally:
            if gate.refused:
                record["refused"] = sorted(gate.refused)


async def _checkout(run: JobRun, spec: JobSpec) -> Checkout:
    """The files of the job. A local repository is looked for where its owner may have one."""
    owner = Caller(run.job.user_id, "viewer", everyone=run.job.user_id is None)
    try:
        await relay.check_path(run.core, owner, spec)
    except Invalid as error:
        raise Failed("POLICY", error.message) from error
    return await checkouts.prepare(
        spec,
        run.folder / "checkout",
        run.core.data_dir / "mirrors",
        await relay.local_folders(run.core, owner) if spec.repo.type == "local" else (),
        user_config=_trusted(run),
    )


def _trusted(run: JobRun) -> bool:
    """Whether the job is of the user who runs the core, whose credentials git may then use."""
    return run.job.user_id == LOCAL_USER


async def _verified(checkout: Checkout, text: str) -> Sections:
    try:
        sections = await asyncio.to_thread(contract.parse, text)
    except BadArtifacts as error:
        raise Failed("BAD_ARTIFACTS", str(error)) from error
    verdict = await checkouts.verify_patch(checkout, sections.diff)
    if verdict.code is not None:
        raise Failed(verdict.code, _some(verdict.details))
    return sections


async def _delivered(run: JobRun, checkout: Checkout, sections: Sections) -> Ending:
    """The files of a job that succeeded, and its pull request where one was asked for."""
    summary = await asyncio.to_thread(_counted, sections.diff)
    files = [_file("patch.diff", sections.diff.encode()), _file("out.md", contract.out_md(sections).encode())]
    notify = checkout.spec.notify
    if notify is None or not notify.enable_pr:
        return Ending("SUCCEEDED", summary, files=files)
    made = await _pull_request(run, checkout, sections)
    if isinstance(made, str):
        summary = f"{summary}; no pull request: {made}"
        return Ending("SUCCEEDED", summary, result={"pr_note": made}, files=files)
    files.append(_file("pr.json", made.json()))
    return Ending("SUCCEEDED", f"{summary}; {made.url}", result={"pr": made.row()}, files=files)


async def _pull_request(run: JobRun, checkout: Checkout, sections: Sections) -> PullRequest | str:
    """The pull request, or why there is none: that alone fails no job."""
    if run.core.settings.relay.pull_requests == "local" and not _trusted(run):
        return "relay.pull_requests allows them to the user who runs the core alone"
    try:
        return await pull_requests.create(checkout, sections, run.job.id)
    except pull_requests.NotOpened as error:
        return str(error)


def _file(name: str, content: bytes) -> File:
    return File(name, relay.ARTIFACTS[name], content)


def _counted(diff: str) -> str:
    """What a patch changes, in one line."""
    changes = patch.parse(diff)
    lines = [line for change in changes for hunk in change.hunks for line in hunk.lines]
    added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    return f"{len(changes)} file{'s' if len(changes) != 1 else ''} changed, +{added} -{removed}"


def _some(items: Sequence[str]) -> str:
    more = len(items) - _NAMED
    return "; ".join([*items[:_NAMED], *([f"and {more} more"] if more > 0 else [])])
