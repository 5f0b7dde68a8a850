"""The library on a real folder: overriding, live edits, broken files, and what must not be followed."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from quarterdeck.core.templates import Library
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.templates import MAX_BYTES

GOOD = "name: {name}\ncategory: mine\nvariables: {{WHO: }}\nphases: [{{name: P, tasks: [T]}}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "templates"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, file: str, text: str | None = None) -> Path:
    path = folder / file
    path.write_text(GOOD.format(name=path.stem) if text is None else text)
    return path


def users(library: Library) -> dict[str, str | None]:
    """The user's templates by slug, with their errors."""
    return {one.slug: one.error for one in library.listing() if one.origin == "user"}


def test_without_a_folder_there_are_the_built_in_templates(tmp_path: Path) -> None:
    library = Library(tmp_path / "missing")
    assert len(library.listing()) >= 6
    assert library.get("bug-fix").slug == "bug-fix"


def test_a_user_template_is_listed_among_the_others(folder: Path) -> None:
    write(folder, "my-own.yaml")
    library = Library(folder)
    (mine,) = [one for one in library.listing() if one.origin == "user"]
    assert (mine.slug, mine.name, mine.category, mine.phases_count) == ("my-own", "my-own", "mine", 1)
    assert [(variable.name, variable.required) for variable in mine.variables] == [("WHO", True)]
    assert [one.slug for one in library.listing()] == sorted(one.slug for one in library.listing())


def test_a_user_template_overrides_the_built_in_one_of_its_slug(folder: Path) -> None:
    path = write(folder, "bug-fix.yaml", GOOD.format(name="Ours"))
    library = Library(folder)
    assert library.get("bug-fix").name == "Ours"
    assert [one.origin for one in library.listing() if one.slug == "bug-fix"] == ["user"]
    path.unlink()
    assert library.get("bug-fix").name == "Bug Fix"


def test_the_listing_can_be_narrowed_to_a_category(folder: Path) -> None:
    write(folder, "my-own.yaml")
    write(folder, "broken.yaml", "name: [")
    library = Library(folder)
    assert [one.slug for one in library.listing("mine")] == ["my-own"]
    assert [one.slug for one in library.listing(" MINE ")] == ["my-own"]
    assert {one.category for one in library.listing("development")} == {"development"}
    assert library.listing("") == []


def test_an_edit_is_used_at_once_even_when_neither_size_nor_time_tells(folder: Path) -> None:
    path = write(folder, "live.yaml", GOOD.format(name="a"))
    library = Library(folder)
    before = path.stat()
    assert library.get("live").name == "a"
    write(folder, "live.yaml", GOOD.format(name="b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert library.get("live").name == "b"
    write(folder, "live.yaml", GOOD.format(name="longer"))
    assert library.get("live").name == "longer"


def test_an_edit_long_after_the_last_reading_is_used_at_once(folder: Path) -> None:
    path = write(folder, "live.yaml", GOOD.format(name="a"))
    library = Library(folder)
    before = path.stat()
    # By then the library trusts the file's times instead of reading it each time.
    time.sleep(2.1)
    assert library.get("live").name == "a"
    assert library.get("live").name == "a"
    write(folder, "live.yaml", GOOD.format(name="b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert library.get("live").name == "b"


def test_an_old_file_that_is_replaced_is_read_again(folder: Path, tmp_path: Path) -> None:
    path = write(folder, "live.yaml", GOOD.format(name="a"))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    library = Library(folder)
    assert library.get("live").name == "a"
    other = write(tmp_path, "other.yaml", GOOD.format(name="b"))
    os.utime(other, (1_000_000_000, 1_000_000_000))
    other.replace(path)
    assert library.get("live").name == "b"


def test_an_unchanged_file_keeps_its_template(folder: Path) -> None:
    write(folder, "same.yaml")
    library = Library(folder)
    assert library.get("same") is library.get("same")


def test_files_come_and_go(folder: Path) -> None:
    library = Library(folder)
    path = write(folder, "new.yaml")
    assert library.get("new").name == "new"
    path.rename(folder / "newer.yaml")
    assert list(users(library)) == ["newer"]
    with pytest.raises(NotFound):
        library.get("new")


def test_a_broken_file_is_listed_with_its_error_and_hides_no_other(folder: Path) -> None:
    write(folder, "broken.yaml", "name: N\nphases: [{name: P}, {name: Q, tasks: x}]")
    write(folder, "fine.yaml")
    library = Library(folder)
    assert users(library) == {"broken": "template broken: phases[1].tasks must be a list", "fine": None}
    assert library.get("fine").name == "fine"
    with pytest.raises(Invalid, match=r"^template broken: phases\[1\]\.tasks must be a list$") as caught:
        library.get("broken")
    assert caught.value.hint == "correct broken.yaml in the templates folder of the data directory"
    write(folder, "broken.yaml")
    assert users(library) == {"broken": None, "fine": None}


def test_a_broken_override_is_an_error_and_not_silently_the_built_in_one(folder: Path) -> None:
    write(folder, "release.yaml", "name: [")
    with pytest.raises(Invalid, match="template release: line "):
        Library(folder).get("release")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"name: \xff\xfe", "byte 6 of the file is not UTF-8"),
        (b"# " + b"x" * MAX_BYTES, "the file is larger than 256 KB"),
        (b"", "the file must be a mapping"),
        (b"a: &a [x]\nb: *a", "an alias"),
    ],
    ids=["encoding", "size", "empty", "alias"],
)
def test_bytes_that_are_no_template_are_listed_as_such(folder: Path, raw: bytes, problem: str) -> None:
    (folder / "bytes.yaml").write_bytes(raw)
    assert problem in (users(Library(folder))["bytes"] or "")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(folder: Path) -> None:
    text = GOOD.format(name="windows").replace("\n", "\r\n")
    (folder / "windows.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert Library(folder).get("windows").name == "windows"


@pytest.mark.parametrize("file", ["My Template.yaml", "under_score.yaml", "-dash.yaml", f"{'x' * 65}.yaml"])
def test_a_file_whose_name_is_no_slug_is_listed_with_that_error(folder: Path, file: str) -> None:
    path = write(folder, file)
    library = Library(folder)
    assert "lower-case letters, digits and hyphens" in (users(library)[path.stem] or "")
    with pytest.raises(Invalid):
        library.get(path.stem)


def test_a_name_in_another_encoding_can_still_be_answered(folder: Path) -> None:
    write(folder, os.fsdecode(b"caf\xe9.yaml"), "name: N")
    ((slug, error),) = users(Library(folder)).items()
    assert (slug + str(error)).encode()


def test_hidden_files_other_files_and_folders_are_no_templates(folder: Path) -> None:
    write(folder, ".hidden.yaml")
    write(folder, "notes.txt")
    write(folder, "other.yml")
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    assert users(Library(folder)) == {}


@pytest.mark.parametrize(
    "slug",
    [
        *("../secret", "..", ".", "/", "", "x/../../secret", "..\\secret", "%2e%2e%2fsecret", "secret.yaml"),
        *(
            "mine.yaml",
            "mine\x00",
            "mine\n",
            "MINE",
            " mine",
            "~",
            "mine/",
            "./mine",
            "\udc80",
            "m" * 100_000,
        ),
    ],
    ids=range(19),
)
def test_a_slug_is_never_a_path(folder: Path, slug: str) -> None:
    write(folder, "mine.yaml")
    write(folder.parent, "secret.yaml")
    library = Library(folder)
    for attempt in (slug, f"{folder.parent}/secret", f"{folder}/mine"):
        with pytest.raises(NotFound) as caught:
            library.get(attempt)
        assert len(caught.value.message) < 400
        assert caught.value.field == "slug"


def test_a_near_miss_is_answered_with_what_was_probably_meant() -> None:
    library = Library(Path("missing"))
    for slug in ("feature-developement", "Feature-Development", "feature_development"):
        with pytest.raises(NotFound) as caught:
            library.get(slug)
        assert caught.value.hint == "did you mean feature-development?"
    with pytest.raises(NotFound) as caught:
        library.get("zzz")
    assert "one of bug-fix, dependency-upgrade, " in str(caught.value.hint)


def test_links_out_of_the_folder_are_ignored(folder: Path) -> None:
    secret = write(folder.parent, "secret.yaml")
    (folder / "absolute.yaml").symlink_to(secret)
    (folder / "relative.yaml").symlink_to("../secret.yaml")
    (folder / "dangling.yaml").symlink_to("nowhere.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "device.yaml").symlink_to("/dev/zero")
    (folder / "outside").symlink_to(folder.parent)
    (folder / "through.yaml").symlink_to("outside/secret.yaml")
    library = Library(folder)
    assert users(library) == {}
    with pytest.raises(NotFound):
        library.get("absolute")


def test_a_link_within_the_folder_is_a_second_name(folder: Path) -> None:
    write(folder, "first.yaml")
    (folder / "second.yaml").symlink_to("first.yaml")
    library = Library(folder)
    assert library.get("second").name == "first"
    assert library.get("second").slug == "second"


def test_the_folder_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    write(folder, "mine.yaml")
    (tmp_path / "link").symlink_to(folder)
    assert Library(tmp_path / "link").get("mine").name == "mine"


def test_a_file_that_cannot_be_read_says_so() -> None:
    with TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        write(folder, "locked.yaml").chmod(0)
        write(folder, "open.yaml")
        library = Library(folder)
        root = os.geteuid() == 0
        try:
            # To root no file is locked.
            if root:
                os.seteuid(65534)
            found = users(library)
        finally:
            if root:
                os.seteuid(0)
        assert found == {
            "locked": "template locked: the file cannot be read: Permission denied",
            "open": None,
        }
        (folder / "locked.yaml").chmod(0o644)
        assert users(library) == {"locked": None, "open": None}
