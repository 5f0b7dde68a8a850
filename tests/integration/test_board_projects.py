"""Projects of the board: repositories that are checked, and the one that new tasks go to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core_process import CoreProcess
from tests.git_repo import GitRepo
from tests.mcp_client import MODERN, OLDER, Client, Deck

ADMIN = "the admin secret of these tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def deck(folder: Path) -> Iterator[Deck]:
    with CoreProcess(folder, {"QUARTERDECK_ADMIN_SECRET": ADMIN}) as core, Deck(core.url, ADMIN) as deck:
        yield deck


@pytest.fixture(params=[MODERN, OLDER])
def board(request: pytest.FixtureRequest, deck: Deck) -> Client:
    return deck.connect(version=request.param, surface="board")


@pytest.fixture
def repo(tmp_path: Path) -> GitRepo:
    made = GitRepo(tmp_path / "repo")
    made.commit({"a.txt": "a"})
    return made


def project(client: Client, *repos: GitRepo, **fields: str) -> str:
    given = {"name": "A project", **fields, "repo_paths": [str(repo.path) for repo in repos]}
    project_id: str = client.done("projects_create", **given)["project_id"]
    return project_id


def test_a_project_has_several_repositories_each_with_its_own_name(
    board: Client, repo: GitRepo, tmp_path: Path
) -> None:
    twin = GitRepo(tmp_path / "elsewhere" / "repo")
    before = [repo.state(), twin.state()]
    answer = board.done(
        "projects_create", name="Both", description="Two", repo_paths=[str(repo.path), str(twin.path)]
    )
    assert (answer["code"], answer["name"], answer["description"], answer["repo_count"]) == (
        *("CREATED", "Both", "Two"),
        2,
    )
    found = board.done("repos_list", project_id=answer["project_id"])
    assert [(each["name"], each["path"]) for each in found["repos"]] == [
        ("repo", str(repo.path)),
        ("repo-2", str(twin.path)),
    ]
    assert found["count"] == 2 and found["repos"][0].keys() == {"repo_id", "name", "display_name", "path"}
    assert [repo.state(), twin.state()] == before


def test_a_path_that_is_no_repository_is_refused_and_leaves_nothing(
    board: Client, repo: GitRepo, folder: Path, tmp_path: Path
) -> None:
    inner = repo.path / "inside"
    inner.mkdir()
    plain = tmp_path / "plain"
    plain.mkdir()
    worktree = GitRepo(folder / "worktrees" / f"task-{tmp_path.name}" / "repo")
    hidden = tmp_path / "link"
    hidden.symlink_to(worktree.path)
    wrong = [
        "relative/path",
        "~/repo",
        str(tmp_path / "nowhere"),
        str(plain),
        str(inner),
        str(repo.path / ".git"),
    ]
    wrong += [str(worktree.path), str(hidden), "--upload-pack=x", str(repo.path / "a.txt")]
    for path in wrong:
        refusal = board.refused("projects_create", name="P", repo_paths=[str(repo.path), path])
        assert (refusal["code"], refusal["field"]) == ("INVALID_PARAMS", "repo_paths[1]"), path
    twice = board.refused("projects_create", name="P", repo_paths=[str(repo.path), str(repo.path)])
    assert "twice" in twice["message"]
    assert board.done("projects_list")["count"] == 0


def test_new_tasks_go_to_the_open_project(board: Client, repo: GitRepo) -> None:
    first, second = project(board, repo), project(board, repo, name="Another")
    loose = board.done("tasks_create", title="Nowhere")
    assert loose["project_id"] is None
    assert board.done("projects_open", project_id=first)["code"] == "OPENED"
    assert board.done("tasks_create", title="T")["project_id"] == first
    assert board.done("tasks_create", title="T", project_id=second)["project_id"] == second
    board.done("projects_open", project_id=second)
    assert board.done("tasks_create", title="T")["project_id"] == second
    listed = board.done("projects_list")["projects"]
    assert [(each["project_id"], each["active"]) for each in listed] == [(second, True), (first, False)]
    board.done("tasks_update", task_id=loose["task_id"], project_id=first)
    in_first = board.done("tasks_list", project_id=first)["tasks"]
    assert {task["title"] for task in in_first} == {"Nowhere", "T"}
    assert board.done("tasks_list")["count"] == 4


def test_an_accepted_proposal_goes_to_the_project_that_was_open(board: Client, repo: GitRepo) -> None:
    project_id = project(board, repo)
    board.done("projects_open", project_id=project_id)
    proposal = board.done("propose_plan", tasks=[{"title": "One"}, {"title": "Two"}])["proposal_id"]
    accepted = board.done("proposal_accept", proposal_id=proposal)
    assert {task["project_id"] for task in accepted["tasks"]} == {project_id}
    assert board.done("tasks_list", project_id=project_id, plan=accepted["plan"])["count"] == 2


def test_each_user_has_an_open_project_of_their_own(deck: Deck, board: Client, repo: GitRepo) -> None:
    other = deck.connect(surface="board")
    mine, theirs = project(board, repo), project(other, repo)
    board.done("projects_open", project_id=mine)
    other.done("projects_open", project_id=theirs)
    assert board.done("tasks_create", title="T")["project_id"] == mine
    for tool, more in (
        ("projects_open", {}),
        ("repos_list", {}),
        ("tasks_list", {}),
        ("projects_update", {"name": "x"}),
    ):
        assert board.refused(tool, project_id=theirs, **more)["code"] == "PROJECT_NOT_FOUND", tool
    assert board.refused("tasks_create", title="T", project_id=theirs)["code"] == "PROJECT_NOT_FOUND"
    task_id = board.done("tasks_create", title="T")["task_id"]
    assert board.refused("tasks_update", task_id=task_id, project_id=theirs)["code"] == "PROJECT_NOT_FOUND"
    proposal = board.done("propose_plan", tasks=[{"title": "T"}])["proposal_id"]
    refusal = board.refused("proposal_accept", proposal_id=proposal, project_id=theirs)
    assert refusal["code"] == "PROJECT_NOT_FOUND"
    assert board.done("proposals_list", status="received")["count"] == 1


def test_the_admin_opens_no_project(deck: Deck, board: Client, repo: GitRepo) -> None:
    admin = deck.connect(ADMIN, surface="board")
    refusal = admin.refused("projects_open", project_id=project(board, repo))
    assert refusal["code"] == "INVALID_PARAMS"


def test_commands_of_a_project_are_kept(board: Client, repo: GitRepo, folder: Path) -> None:
    project_id = project(board, repo, acceptance_command="make test", gate_command="make check")
    database = sqlite3.connect(folder / "quarterdeck.db")
    columns = "acceptance_command, gate_command"
    found = database.execute(f"SELECT {columns} FROM projects WHERE id = ?", (project_id,)).fetchone()
    database.close()
    assert found == ("make test", "make check")


def test_a_project_is_changed_and_gets_another_repository(
    board: Client, repo: GitRepo, tmp_path: Path
) -> None:
    project_id = project(board, repo, acceptance_command="make test", gate_command="make check")
    twin = GitRepo(tmp_path / "elsewhere" / "repo")
    twin.commit({"b.txt": "b"})
    changed = board.done(
        "projects_update",
        project_id=project_id,
        name="Another name",
        repo_paths=[str(twin.path)],
        acceptance_command="make all",
        gate_command="",
    )
    assert (changed["code"], changed["name"], changed["repo_count"]) == ("UPDATED", "Another name", 2)
    assert (changed["acceptance_command"], changed["gate_command"]) == ("make all", None)
    assert board.done("projects_list")["projects"][0]["name"] == "Another name"
    found = board.done("repos_list", project_id=project_id)["repos"]
    assert [each["name"] for each in found] == ["repo", "repo-2"]
    for wrong in ({}, {"repo_paths": [str(twin.path)]}, {"repo_paths": ["nowhere"]}, {"name": ""}):
        refusal = board.refused("projects_update", project_id=project_id, **wrong)
        assert refusal["code"] == "INVALID_PARAMS", wrong
    assert board.done("repos_list", project_id=project_id)["count"] == 2


def test_a_token_bound_to_a_project_sees_that_project_only(deck: Deck, repo: GitRepo) -> None:
    minted = deck.mint()
    owner = deck.connect(minted["token"], surface="board")
    own, other = project(owner, repo), project(owner, repo)
    owner.done("projects_open", project_id=other)
    inside = owner.done("tasks_create", title="In", project_id=own)["task_id"]
    outside = owner.done("tasks_create", title="Out")["task_id"]
    bound = deck.connect(
        deck.mint(minted["user_id"], "pair_worker", project_id=own)["token"], surface="board"
    )
    assert bound.done("tasks_list", project_id=own)["count"] == 1
    assert bound.done("get_context", task_id=inside)["repo_count"] == 1
    assert bound.done("repos_list", project_id=own)["count"] == 1
    assert bound.refused("tasks_list", project_id=other)["code"] == "PROJECT_NOT_FOUND"
    assert bound.refused("repos_list", project_id=other)["code"] == "PROJECT_NOT_FOUND"
    assert bound.refused("get_task", task_id=outside)["code"] == "TASK_NOT_FOUND"
    assert bound.refused("projects_list")["code"] == "AUTHORIZATION_DENIED"


def test_a_token_bound_to_a_task_sees_the_repositories_of_its_project(deck: Deck, repo: GitRepo) -> None:
    minted = deck.mint()
    owner = deck.connect(minted["token"], surface="board")
    own, other = project(owner, repo), project(owner, repo)
    task_id = owner.done("tasks_create", title="In", project_id=own)["task_id"]
    owner.done("tasks_create", title="Beside", project_id=own)
    bound = deck.connect(
        deck.mint(minted["user_id"], "pair_worker", task_id=task_id)["token"], surface="board"
    )
    assert bound.done("repos_list", project_id=own)["count"] == 1
    assert bound.refused("repos_list", project_id=other)["code"] == "PROJECT_NOT_FOUND"
    shown = bound.done("tasks_list", project_id=own)["tasks"]
    assert [task["task_id"] for task in shown] == [task_id]
    context = bound.done("get_context", task_id=task_id)
    assert (context["project_name"], context["repos"][0]["path"]) == ("A project", str(repo.path))
