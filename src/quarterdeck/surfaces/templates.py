"""The template tools of the plans dialect: list, preview, make a plan."""

from typing import Annotated

from pydantic import AliasChoices, Field

from quarterdeck.core import templates
from quarterdeck.domain.templates import Rendered, Variable
from quarterdeck.surfaces.plans import Slug, created_row
from quarterdeck.surfaces.schema import Args, Label, Object, Row, Title
from quarterdeck.surfaces.table import Call, tool


class TemplateList(Args):
    category: Label | None = None


@tool("read", "viewer", catalog=True)
async def template_list(call: Call, a: TemplateList) -> Row:
    """Plan templates with their variables."""
    found = await templates.listing(call.core, a.category)
    return {"success": True, "templates": [_listed(one) for one in found], "count": len(found)}


class TemplatePreview(Args):
    slug: Slug = Field(validation_alias=AliasChoices("slug", "template", "template_slug"))
    variables: Annotated[Object, Field(default_factory=dict)]


@tool("read", "viewer", catalog=True)
async def template_preview(call: Call, a: TemplatePreview) -> Row:
    """The plan a template would make with these variables."""
    rendered = await templates.rendered(call.core, a.slug, a.variables)
    return {"success": True, "template": a.slug, "preview": _preview(rendered)}


class TemplateCreatePlan(Args):
    template_slug: Slug = Field(validation_alias=AliasChoices("template_slug", "template"))
    variables: Annotated[Object, Field(default_factory=dict)]
    title: Title | None = None
    slug: Slug | None = None
    activate: bool = False


@tool("write", "planner")
async def template_create_plan(call: Call, a: TemplateCreatePlan) -> Row:
    """Create a plan from a template."""
    view = await templates.create_plan(
        call.core,
        call.caller,
        a.template_slug,
        a.variables,
        title=a.title,
        slug=a.slug,
        activate=a.activate,
    )
    return {"success": True, "plan": {**created_row(view), "template": a.template_slug}}


def _listed(one: templates.Listed) -> Row:
    if one.error is not None:
        return {"slug": one.slug, "origin": one.origin, "error": one.error}
    return {
        "slug": one.slug,
        "name": one.name,
        "description": one.description,
        "category": one.category,
        "origin": one.origin,
        "phases_count": one.phases_count,
        "variables": [_variable(variable) for variable in one.variables],
    }


def _variable(variable: Variable) -> Row:
    shown: Row = {"name": variable.name, "required": variable.required}
    if variable.description:
        shown["description"] = variable.description
    if variable.default is not None:
        shown["default"] = variable.default
    if variable.allowed_values:
        shown["allowed_values"] = list(variable.allowed_values)
    if variable.pattern:
        shown["pattern"] = variable.pattern
    return shown


def _preview(rendered: Rendered) -> Row:
    return {
        "title": rendered.title,
        "description": rendered.description,
        "context": rendered.context,
        "variables": rendered.variables,
        "phases": [
            {
                "order": order,
                "name": phase.name,
                "description": phase.description,
                "tasks": [{"name": task.title, "description": task.description} for task in phase.tasks],
            }
            for order, phase in enumerate(rendered.phases, 1)
        ],
    }


TOOLS = (template_list, template_preview, template_create_plan)
