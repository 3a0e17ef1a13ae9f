"""`nearfar link`: hard links in place of copies, without a name or a byte that is lost."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.cli import main
from nearfar.commands.link import (
    ALREADY,
    ANNEXED,
    BLANK,
    CHANGED,
    OTHER_BYTES,
    OTHER_KIND,
    OTHER_RIGHTS,
    OTHER_SYSTEM,
    STORED,
    UNFINISHED,
    NotLinked,
    link_copies,
    link_copy,
)
from nearfar.mcp import VERBS
from nearfar.tools.result import read_table, write_table
from tests.commands.test_copies import photographs

pytestmark = pytest.mark.usefixtures("known_speed")

ODD = b"a\n b \xff'.png"


def contents(*folders):
    """The bytes that each name reads, through links too."""
    paths = [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    return {os.fsencode(path): path.read_bytes() for path in paths}


def inode(path):
    return os.lstat(path).st_ino


def used(*folders):
    """Bytes on the disk of all files, those with several names once."""
    files = [path for folder in folders for path in Path(folder).rglob("*")]
    known = {
        inode(path): path.lstat() for path in files if path.is_file() and not path.is_symlink()
    }
    return sum(512 * entry.st_blocks for entry in known.values())


@pytest.fixture
def people(tmp_path):
    """Photographs as people have them, in two data sets: copies in other folders, under odd names,
    hard links and symbolic links, a read-only file, empty masks.
    """
    trip, backup = tmp_path / "photos/trip to é", tmp_path / "backup"
    for folder in (trip, tmp_path / "photos/best of", tmp_path / "photos/masks", backup):
        folder.mkdir(parents=True)
    for number, image in enumerate(photographs(6)):
        image.save(trip / f"IMG {number}.png")
    for number in range(2):
        Image.new("L", (40, 40)).save(tmp_path / f"photos/masks/IMG {number}.png")
    (trip / "IMG 0.xmp").write_text("rating: 5")
    shutil.copy(trip / "IMG 0.png", tmp_path / "photos/best of/IMG 0.png")
    shutil.copy(trip / "IMG 0.png", os.fsencode(backup) + b"/" + ODD)
    os.link(trip / "IMG 1.png", trip / "linked.png")
    shutil.copy(trip / "IMG 1.png", backup / "IMG 1.png")
    os.link(backup / "IMG 1.png", backup / "its other name.png")
    os.symlink("../trip to é/IMG 2.png", tmp_path / "photos/best of/symbolic.png")
    shutil.copy(trip / "IMG 3.png", backup / "=3.png")
    for path in (trip / "IMG 3.png", backup / "=3.png"):
        path.chmod(0o444)
    small = Image.open(trip / "IMG 4.png").resize((48, 36), Image.Resampling.BICUBIC)
    small.save(backup / "small.png")
    shutil.copy(backup / "small.png", tmp_path / "photos/best of/small again.png")
    return tmp_path / "photos", backup


def linked_by(capsys, table):
    capsys.readouterr()
    assert main(["link", str(table), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_name_reads_what_it_read_and_the_space_is_freed(
    people, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before, room = contents(*people), used(*people)
    words = ["duplicates", *map(str, people), "--out", "found.html"]
    assert main(words) == 0
    assert "nearfar link found.csv" in capsys.readouterr().err
    result = linked_by(capsys, "found.csv")
    assert contents(*people) == before and result["freed"] == room - used(*people) > 0
    photos, backup = people
    assert inode(photos / "trip to é/IMG 0.png") == inode(photos / "best of/IMG 0.png")
    assert inode(photos / "trip to é/IMG 0.png") == inode(os.fsencode(backup) + b"/" + ODD)
    assert inode(photos / "trip to é/IMG 3.png") == inode(backup / "=3.png")
    assert inode(backup / "small.png") == inode(photos / "best of/small again.png")
    assert inode(backup / "small.png") != inode(photos / "trip to é/IMG 4.png")
    assert (photos / "best of/symbolic.png").is_symlink()
    assert list(result["left"].values()) == [BLANK] and result["shared"] == 1

    # a file with two names is free once both are links, which takes the two commands again
    assert main([*words[:-1], "again.html"]) == 0
    again = linked_by(capsys, "again.csv")
    assert len(again["linked"]) == 1 and again["shared"] == 0 and contents(*people) == before
    assert result["freed"] + again["freed"] == room - used(*people)
    assert inode(photos / "trip to é/linked.png") == inode(backup / "its other name.png")
    assert main([*words[:-1], "last.html"]) == 0
    assert linked_by(capsys, "last.csv")["linked"] == []
    assert linked_by(capsys, "found.csv")["already"] == len(result["linked"])


def test_what_json_prints_is_a_table_too(people, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = contents(*people)
    assert main(["duplicates", *map(str, people), "--json"]) == 0
    Path("found.json").write_text(capsys.readouterr().out)
    assert len(linked_by(capsys, "found.json")["linked"]) == 5 and contents(*people) == before


def test_new_images_become_links_to_the_archive(people, tmp_path, log):
    photos, backup = people
    before = contents(*people)
    nearfar.duplicates(backup, against=photos, out=tmp_path / "had.html")
    kept = inode(photos / "trip to é/IMG 3.png")
    result = link_copies(tmp_path / "had.csv")
    assert contents(*people) == before and inode(backup / "=3.png") == kept
    assert all(Path(path).parent == backup for path in result["linked"])
    assert len(result["linked"]) == 4  # with the small one
    assert log.lines[-2].startswith("4 of 4 copies")


class Interrupted:
    """The calls of the operating system, of which one ends in an error, before or after it."""

    def __init__(self, number, after, error):
        self.number, self.after, self.error = number, after, error
        self.calls = []

    def __getattr__(self, name):
        def call(*given, **named):
            self.calls.append(name)
            struck = len(self.calls) == self.number + 1
            if struck and not self.after:
                raise self.error
            result = getattr(os, name)(*given, **named)
            if struck:
                if name == "open":
                    os.close(result)
                raise self.error
            return result

        return call


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error")])
def test_an_interruption_at_any_step_loses_nothing(after, error, tmp_path):
    """And the same again after it links the two."""
    folder = tmp_path / "a folder"
    seen = set()
    for number in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        kept, copy = folder / "kept.jpg", folder / os.fsdecode(ODD)
        for path in (kept, copy):
            path.write_bytes(b"bytes of an image" * 100_000)
        os.link(kept, folder / "its other name.jpg")
        before = contents(folder)
        system = Interrupted(number, after, error)
        try:
            link_copy(os.fspath(copy), os.fspath(kept), system)
        except (KeyboardInterrupt, NotLinked) as stopped:
            assert isinstance(stopped, NotLinked) == isinstance(error, OSError)
        seen.add(system.calls[-1])
        now = contents(folder)
        further = {path for path in now if UNFINISHED in os.fsdecode(path)}
        assert {path: now[path] for path in now if path not in further} == before
        assert all(inode(path) == inode(kept) for path in further) and len(further) <= 1
        if number >= len(system.calls):
            break
        if inode(copy) != inode(kept):
            assert link_copy(os.fspath(copy), os.fspath(kept)) > 0
        assert inode(copy) == inode(kept) and before.items() <= contents(folder).items()
    assert number > 15 and {"lstat", "open", "read", "fsync", "link", "replace", "unlink"} <= {
        *seen,
        *system.calls,
    }


@pytest.fixture
def two(tmp_path):
    """Two files with the same bytes."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("kept.jpg", "copy.jpg"):
        (folder / name).write_bytes(b"bytes of an image")
    return folder / "kept.jpg", folder / "copy.jpg"


def refused(kept, copy, system=os):
    """The reason for which a copy stays what it is."""
    before = copy.lstat() if os.path.lexists(copy) else None
    names = sorted(copy.parent.iterdir())
    with pytest.raises(NotLinked) as reason:
        link_copy(str(copy), str(kept), system)
    assert sorted(copy.parent.iterdir()) == names
    assert before is None or copy.lstat().st_ino == before.st_ino
    return str(reason.value)


def test_other_bytes_permissions_and_kinds_of_files_stay(two, tmp_path):
    kept, copy = two
    copy.write_bytes(b"bytes of AN image")
    assert refused(kept, copy) == OTHER_BYTES
    copy.write_bytes(b"bytes of an image, and more")
    assert refused(kept, copy) == OTHER_BYTES
    copy.write_bytes(kept.read_bytes())
    copy.chmod(0o600)
    assert refused(kept, copy) == OTHER_RIGHTS
    copy.unlink()
    assert "gone" in refused(kept, copy)
    os.symlink(kept, copy)
    assert refused(kept, copy) == OTHER_KIND and refused(copy, kept) == OTHER_KIND
    copy.unlink()
    os.link(kept, copy)
    assert refused(kept, copy) == ALREADY


def test_notes_that_a_file_system_keeps_beside_a_file_stay(two):
    kept, copy = two
    try:
        os.setxattr(copy, "user.xdg.tags", b"holiday")
    except (AttributeError, OSError):
        pytest.skip("no extended attributes here")
    assert refused(kept, copy) == OTHER_RIGHTS
    os.setxattr(kept, "user.xdg.tags", b"holiday")
    assert link_copy(str(copy), str(kept)) > 0


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EXDEV, OTHER_SYSTEM),  # two mounts of one file system
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
        (errno.EMLINK, "Too many links"),
    ],
)
def test_where_no_link_can_be_made_the_copy_stays(number, reason, two):
    class Refusing:
        def __getattr__(self, name):
            return getattr(os, name)

        def link(self, *_):
            raise OSError(number, os.strerror(number))

    assert reason in refused(*two, Refusing())


def test_a_folder_that_is_read_only_stays_as_it_is(two):
    kept, copy = two
    copy.parent.chmod(0o555)
    try:
        if os.access(copy.parent, os.W_OK):
            pytest.skip("this user may write everywhere")
        assert "Permission denied" in refused(kept, copy)
    finally:
        copy.parent.chmod(0o755)


def test_files_of_two_file_systems_stay(two):
    class Mounted:
        def __getattr__(self, name):
            return getattr(os, name)

        def lstat(self, path):
            known = os.lstat(path)
            if "copy" not in str(path):
                return known
            return os.stat_result([*known[:2], known.st_dev + 1, *known[3:]])

    assert refused(*two, Mounted()) == OTHER_SYSTEM


def test_copies_that_cannot_be_links_to_the_kept_file_are_links_to_each_other(tmp_path, capsys):
    files = [tmp_path / name for name in ("kept", "private", "private too", "another")]
    for path in files:
        path.write_bytes(b"bytes of an image")
    for path in files[1:3]:
        path.chmod(0o600)
    rows = {"path": [str(path) for path in files[1:]], "of": [str(files[0])] * 3}
    table = tmp_path / "found.csv"
    write_table(table, {**rows, "kind": ["same file"] * 3, "why": [""] * 3})
    for linked in ([files[2], files[3]], []):
        result = linked_by(capsys, table)
        assert result["linked"] == list(map(str, linked))
        assert result["left"] == {str(files[1]): OTHER_RIGHTS}
        assert result["already"] == 2 - len(linked)
    assert inode(files[0]) == inode(files[3]) != inode(files[1]) == inode(files[2])


@pytest.mark.parametrize("name", ["copy.jpg", "kept.jpg"])
def test_what_another_program_writes_meanwhile_stays(name, two):
    kept, copy = two

    class Busy:
        def __getattr__(self, called):
            return getattr(os, called)

        def fsync(self, file):
            (kept.parent / name).write_bytes(b"written meanwhile")

    assert refused(kept, copy, Busy()) == CHANGED
    assert (kept.parent / name).read_bytes() == b"written meanwhile"


def test_the_stores_of_git_and_git_annex_are_never_touched(two):
    kept, copy = two
    for store in (".git/lfs", "annex/objects/x"):
        other = kept.parent / store / "object.jpg"
        other.parent.mkdir(parents=True)
        shutil.copy(kept, other)
        other.chmod(0o444)
        assert refused(kept, other) == refused(other, kept) == STORED
    (kept.parent / ".git/annex").mkdir()
    assert refused(kept, copy) == ANNEXED


@pytest.mark.skipif(shutil.which("git-annex") is None, reason="git-annex is not installed")
def test_an_annex_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    """Its copies share their bytes already, as `git annex add` does for those beside it."""
    annex = tmp_path / "my annex"
    annex.mkdir()
    monkeypatch.chdir(annex)
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "EMAIL"):
        monkeypatch.setenv(name, "name@localhost")
    monkeypatch.setenv("HOME", str(tmp_path))

    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    git("annex", "init", "-q")
    git("config", "annex.thin", "true")
    for number, image in enumerate(photographs(4)):
        image.save(f"{number}.png")
    shutil.copy("0.png", "0 again.png")
    shutil.copy("1.png", "1 again.png")
    git("annex", "add", "-q", "0.png", "0 again.png", "1.png")
    git("annex", "unlock", "-q", "1.png")
    git("commit", "-qm", "images")
    shutil.copy("2.png", "2 again.png")
    before = contents(annex)
    out = tmp_path / "found.html"
    assert main(["duplicates", str(annex), "--out", str(out)]) == 0
    result = linked_by(capsys, out.with_suffix(".csv"))
    assert result["linked"] == [] and set(result["left"].values()) == {ANNEXED}
    assert contents(annex) == before
    names = [path for path in out.with_suffix(".list").read_bytes().split(b"\0") if path]
    assert [Path(os.fsdecode(name)).name for name in names] == ["1 again.png", "2 again.png"]
    files = out.with_suffix(".list").open()
    subprocess.run(["xargs", "-0", "git", "annex", "add", "--"], stdin=files, check=True)
    assert Path("1 again.png").is_symlink() and "ok" in git("annex", "fsck")


def test_a_table_is_read_as_it_was_written(tmp_path):
    columns = {
        "path": ["/a/=1.png", "=2.png", "'+3", "'", "line\nbreak", "\udcff", "a,\"b'"],
        "kind": ["same file"] * 7,
    }
    write_table(tmp_path / "table.csv", columns)
    assert read_table(tmp_path / "table.csv") == columns
    write_table(tmp_path / "empty.csv", {"path": [], "kind": []})
    assert read_table(tmp_path / "empty.csv") == {"path": [], "kind": []}


@pytest.mark.parametrize("text", ["", "a,b\n1\n", "{", "[]", "path,kind\nx,y\n", "\0"])
def test_another_table_is_refused_in_one_line(text, tmp_path, complaint):
    (tmp_path / "other.csv").write_text(text)
    assert "other.csv" in complaint("link", str(tmp_path / "other.csv"))


def test_vectors_have_no_files_to_link(tmp_path, complaint):
    vectors = np.eye(8, dtype=np.float32).repeat(2, 0)
    nearfar.duplicates(vectors, out=tmp_path / "found.html")
    assert "found.csv" in complaint("link", str(tmp_path / "found.csv"))


def test_an_agent_cannot_ask_for_links():
    assert "link" not in {*nearfar.tool_names(), *VERBS}


def test_an_empty_table_is_named(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="empty"):
        link_copies(tmp_path / "empty.csv")
