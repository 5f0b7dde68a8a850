"""The templates that ship: each can be used as it is, and is in the documentation."""

import re
from pathlib import Path

import pytest

from quarterdeck.core.templates import Library, Listed
from quarterdeck.domain.templates import CHARSETS, Rendered, Template, parse, render

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"
LIBRARY = Library(Path(__file__).with_name("no-templates-of-a-user"))
SHIPPED = [
    "bug-fix",
    "dependency-upgrade",
    "feature-development",
    "incident",
    "onboarding-codebase",
    "refactor",
    "release",
    "research",
]
VALUES = {"VERSION": "2.4.0"}


def filled(template: Template) -> Rendered:
    """The template with its required variables, and no other, filled in."""
    required = [variable.name for variable in template.variables if variable.required]
    return render(template, {name: VALUES.get(name, f"the {name.lower()}") for name in required})


def listed(slug: str) -> Listed:
    return next(one for one in LIBRARY.listing() if one.slug == slug)


def row(slug: str) -> str:
    """The row of the documentation's table that is about this template."""
    return next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{slug}` |"))


def test_these_templates_ship() -> None:
    assert [(one.slug, one.origin, one.error) for one in LIBRARY.listing()] == [
        (slug, "built-in", None) for slug in SHIPPED
    ]


def test_feature_development_is_as_documented() -> None:
    feature = listed("feature-development")
    assert (feature.name, feature.description, feature.phases_count) == (
        "Feature Development",
        "Standard feature workflow",
        5,
    )
    assert [variable.name for variable in feature.variables if variable.required] == ["FEATURE_NAME"]
    plan = render(LIBRARY.get("feature-development"), {"FEATURE_NAME": "Authentication"})
    assert plan.title == "Feature Development: Authentication"


@pytest.mark.parametrize("slug", SHIPPED)
def test_rendering_needs_only_the_required_variables_and_leaves_no_placeholder(slug: str) -> None:
    plan = filled(LIBRARY.get(slug))
    assert "{{" not in repr(plan)
    assert "}}" not in repr(plan.phases)
    assert plan.context["background"]
    assert len(plan.context["guidelines"]) >= 4


@pytest.mark.parametrize("slug", SHIPPED)
def test_phases_and_tasks_are_of_a_size_to_work_with(slug: str) -> None:
    plan = filled(LIBRARY.get(slug))
    assert 3 <= len(plan.phases) <= 6
    for phase in plan.phases:
        assert 3 <= len(phase.tasks) <= 6
        assert "Done when " in phase.description


@pytest.mark.parametrize("slug", SHIPPED)
def test_a_task_is_one_short_imperative_sentence_that_says_what_done_means(slug: str) -> None:
    tasks = [task for phase in filled(LIBRARY.get(slug)).phases for task in phase.tasks]
    titles = [task.title for task in tasks]
    assert len({title.lower() for title in titles}) == len(titles)
    for task in tasks:
        assert len(task.title) <= 120
        assert re.fullmatch(r"[A-Z][a-z]+ [^\n]+[^.!?]", task.title)
        assert "Done when " in task.description
        assert task.description.endswith(".")


@pytest.mark.parametrize("slug", SHIPPED)
def test_every_variable_is_described_and_used(slug: str) -> None:
    template = LIBRARY.get(slug)
    for variable in template.variables:
        assert variable.description
        assert variable.required or variable.default
        assert template.source.count(f"{{{{ {variable.name} }}}}") >= 1


@pytest.mark.parametrize("slug", SHIPPED)
def test_the_documentation_has_every_template_with_its_variables(slug: str) -> None:
    found = listed(slug)
    documented = row(slug)
    assert f"| {found.phases_count} |" in documented
    assert f"| {found.category} |" in documented
    for variable in found.variables:
        assert (
            f"**`{variable.name}`**" in documented
            if variable.required
            else f"`{variable.name}`" in documented
        )
        if variable.allowed_values:
            assert f"`{variable.name}` ({', '.join(variable.allowed_values)})" in documented


def test_the_documentation_has_no_template_that_does_not_ship() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \| [a-z]+ \|", PAGE.read_text(), re.MULTILINE) == SHIPPED


def test_the_documented_example_works() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    plan = render(parse("database-migration", example), {"TABLE": "orders", "TICKET": "OPS-12"})
    assert plan.title == "Migrate orders"
    assert plan.phases[1].dependencies == (1,)


@pytest.mark.parametrize("name", CHARSETS)
def test_the_documentation_has_every_charset(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text()
