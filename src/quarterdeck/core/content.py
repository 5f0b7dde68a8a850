"""Content: briefs, a text for a prompt, briefs out of a plan, and what the models cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core import models, plans
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.content import PERIOD_DAYS, Provider
from quarterdeck.domain.errors import NotFound
from quarterdeck.domain.ids import new_id, now_us
from quarterdeck.domain.records import Brief, Plan, Task
from quarterdeck.store import content as rows
from quarterdeck.store import plans as plan_rows
from quarterdeck.store.content import Used
from quarterdeck.store.tx import Tx

_DAY_US = 86_400_000_000
_TITLE = 255
_DONE = ("completed", "cancelled")


@dataclass(frozen=True, slots=True)
class BriefView:
    """A brief with the plan it belongs to and what it cost so far."""

    brief: Brief
    plan_slug: str | None
    used: Used | None = None

    @property
    def total_cost(self) -> float | None:
        return None if self.used is None else Sums().plus(self.used).known_cost


@dataclass(frozen=True, slots=True)
class FromPlan:
    """The briefs made from a plan, and the unfinished tasks that got none."""

    briefs: list[Brief]
    already: int
    left: int


@dataclass(frozen=True, slots=True)
class Sums:
    """Usage added up; `cost_usd` is the known part, `unknown` the calls that it leaves out."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unknown: int = 0

    @property
    def known_cost(self) -> float | None:
        """None when nothing is known about the cost of any call."""
        return None if self.requests and self.unknown == self.requests else round(self.cost_usd, 8)

    def plus(self, used: Used) -> "Sums":
        return Sums(
            self.requests + used.requests,
            self.input_tokens + used.input_tokens,
            self.output_tokens + used.output_tokens,
            self.cost_usd + used.cost_usd,
            self.unknown + used.unknown,
        )


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What a user's calls took since a time."""

    since: int
    total: Sums
    by_provider: Mapping[str, Sums]
    by_purpose: Mapping[str, Sums]


async def generate(
    core: Core,
    caller: Caller,
    prompt: str,
    *,
    provider: Provider | None = None,
    temperature: float = 0.7,
    max_tokens: int = 4000,
) -> models.Generated:
    """A text for a prompt, from the named provider, else the default one, else any that has a key."""
    chosen = core.providers.choose(provider)
    return await models.generate(
        core, caller, chosen, prompt, temperature=temperature, max_tokens=max_tokens, purpose="prompt"
    )


async def create(
    core: Core,
    caller: Caller,
    *,
    title: str,
    content_type: str,
    service: str | None = None,
    keywords: Sequence[str] = (),
    target_word_count: int = 800,
    description: str | None = None,
    difficulty: str | None = None,
    plan_slug: str | None = None,
) -> BriefView:
    """A pending brief, perhaps of a plan."""

    def body(tx: Tx) -> BriefView:
        plan = None if plan_slug is None else plans.found(tx, plan_slug)
        brief = _add(
            tx,
            user_id=caller.user_id,
            plan_id=plan.id if plan else None,
            title=title,
            content_type=content_type,
            service=service,
            keywords=keywords,
            target_word_count=target_word_count,
            description=description,
            difficulty=difficulty,
        )
        return BriefView(brief, plan_slug)

    return await core.db.tx(caller, body)


def _add(
    tx: Tx,
    *,
    user_id: str | None,
    title: str,
    content_type: str,
    service: str | None,
    target_word_count: int,
    description: str | None,
    keywords: Sequence[str] = (),
    difficulty: str | None = None,
    plan_id: str | None = None,
    task_id: str | None = None,
) -> Brief:
    brief = Brief(
        id=new_id(),
        user_id=user_id,
        plan_id=plan_id,
        task_id=task_id,
        title=title,
        content_type=content_type,
        service=service,
        keywords=list(keywords),
        target_word_count=target_word_count,
        description=description,
        difficulty=difficulty,
        status="pending",
        draft_output=None,
        refined_output=None,
        final_content=None,
        error_message=None,
        generation_log=[],
        created_at=tx.now,
        updated_at=tx.now,
    )
    rows.add_brief(tx, brief)
    tx.emit("brief.created", brief.id, task_id=task_id, user_id=user_id, title=title[:200])
    return brief


async def get(core: Core, caller: Caller, brief_id: str) -> BriefView:
    def body(tx: Tx) -> BriefView:
        brief = found(tx, brief_id)
        slugs = plan_rows.slugs_of(tx, [brief.plan_id] if brief.plan_id else [])
        return BriefView(brief, slugs.get(brief.plan_id or ""), rows.usage_of(tx, brief.id))

    return await core.db.read(caller, body)


async def listing(
    core: Core, caller: Caller, *, status: str | None = None, limit: int = 20
) -> list[BriefView]:
    """The caller's briefs, newest first; `limit` is clamped to 1–100."""

    def body(tx: Tx) -> list[BriefView]:
        briefs = rows.newest_briefs(tx, min(max(limit, 1), 100), status)
        slugs = plan_rows.slugs_of(tx, [brief.plan_id for brief in briefs if brief.plan_id])
        return [BriefView(brief, slugs.get(brief.plan_id or "")) for brief in briefs]

    return await core.db.read(caller, body)


async def from_plan(
    core: Core,
    caller: Caller,
    plan_slug: str,
    *,
    content_type: str = "help_article",
    service: str | None = None,
    limit: int = 5,
    target_word_count: int = 800,
) -> FromPlan:
    """One brief for each unfinished task of a plan that has none yet; `limit` is clamped to 1–100."""

    def body(tx: Tx) -> FromPlan:
        plan = plans.found(tx, plan_slug, lock=True)
        unfinished = [task for task in plan_rows.tasks_of(tx, plan.id) if task.status not in _DONE]
        has_one = rows.briefed_tasks(tx, [task.id for task in unfinished])
        wanting = [task for task in unfinished if task.id not in has_one]
        taken = wanting[: min(max(limit, 1), 100)]
        briefs = [
            _add(
                tx,
                user_id=plan.user_id,
                plan_id=plan.id,
                task_id=task.id,
                title=task.title[:_TITLE],
                content_type=content_type,
                service=service,
                target_word_count=target_word_count,
                description=_about(plan, task),
            )
            for task in taken
        ]
        return FromPlan(briefs, len(has_one), len(wanting) - len(taken))

    return await core.db.tx(caller, body)


def _about(plan: Plan, task: Task) -> str:
    """What a writer should know about a task."""
    known = (f"Part of the plan: {plan.title}", plan.description, task.description, task.notes)
    return "\n\n".join(text for text in known if text)


async def usage(core: Core, caller: Caller, period: str) -> UsageReport:
    """The caller's usage of the last day, week, month (30 days) or year."""
    since = now_us() - PERIOD_DAYS[period] * _DAY_US
    total, by_provider, by_purpose = Sums(), dict[str, Sums](), dict[str, Sums]()
    for used in await core.db.read(caller, rows.usage_since, since):
        total = total.plus(used)
        by_provider[used.provider] = by_provider.get(used.provider, Sums()).plus(used)
        by_purpose[used.purpose] = by_purpose.get(used.purpose, Sums()).plus(used)
    return UsageReport(since, total, by_provider, by_purpose)


def found(tx: Tx, brief_id: str, *, lock: bool = False) -> Brief:
    """The caller's brief, or NotFound."""
    brief = rows.get_brief(tx, brief_id, lock=lock)
    if brief is None:
        raise NotFound(
            f"brief {brief_id} not found", field="brief_id", hint="content_brief_list shows your briefs"
        )
    return brief
