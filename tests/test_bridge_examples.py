"""Copies go to a photo server and to FiftyOne: the scripts of examples/, against stand-ins that hold
to the documented interfaces.
"""

import hashlib
import json
import os
import re
import runpy
import shutil
import sys
import threading
import uuid
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from nearfar.cli import main
from tests.commands.test_copies import photographs

pytestmark = pytest.mark.usefixtures("known_speed")

EXAMPLES = Path(__file__).parents[1] / "examples"
KEY = "the key"
ODD = b"copy\nof \xff.png"


class Immich(ThreadingHTTPServer):
    """A photo server with the requests that are documented, and no others."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.assets, self.stacks, self.requests = {}, {}, []
        self.page = 2  # search results in an answer
        self.address = f"http://127.0.0.1:{self.server_port}"

    def add(self, file, place, trashed=False):
        """Add an image: its file on this machine, and its path on the server."""
        identity = str(uuid.uuid4())
        checksum = hashlib.sha1(Path(os.fsdecode(file)).read_bytes()).hexdigest()
        self.assets[identity] = {
            "id": identity,
            "originalPath": place,
            "isTrashed": trashed,
            "checksum": checksum,
        }
        return identity

    def make_stack(self, ids):
        """Stack images as Immich does: stacks whose first image is among them join in."""
        members = [*ids]
        for stack in [stack for stack in self.stacks.values() if stack["primaryAssetId"] in ids]:
            members += stack["members"]
            del self.stacks[stack["id"]]
        for stack in self.stacks.values():
            stack["members"] = [asset for asset in stack["members"] if asset not in members]
        made = {"id": str(uuid.uuid4()), "primaryAssetId": ids[0]}
        self.stacks[made["id"]] = made | {"members": list(dict.fromkeys(members))}
        return made["id"]

    def described(self, identity):
        stack = self.stacks[identity]
        assets = [self.assets[member] for member in stack["members"]]
        return {"id": identity, "primaryAssetId": stack["primaryAssetId"], "assets": assets}


class Answering(BaseHTTPRequestHandler):
    """One request; what is not in the documentation is answered as an error."""

    def log_message(self, *_):
        """Say nothing."""

    def answer(self, code, content, **headers):
        data = json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.handle_request(None)

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"] != "application/json":
            return self.answer(400, {"message": "no JSON"})
        return self.handle_request(json.loads(raw))

    def handle_request(self, content):
        self.server.requests.append((self.command, self.path, content))
        if self.path.startswith("/moved/"):
            return self.answer(302, {}, Location=f"{self.server.address}/api/stacks")
        if self.headers["x-api-key"] != KEY:
            return self.answer(401, {"message": "Invalid API key", "statusCode": 401})
        known = {
            ("GET", "/api/stacks"): self.list_stacks,
            ("POST", "/api/stacks"): self.create_stack,
            ("POST", "/api/search/metadata"): self.search,
            ("POST", "/api/assets/bulk-upload-check"): self.check,
        }
        function = known.get((self.command, self.path))
        if function is None:
            return self.answer(404, {"message": f"Cannot {self.command} {self.path}"})
        try:
            return function(content)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            return self.answer(400, {"message": f"bad request: {error!r}", "statusCode": 400})

    def list_stacks(self, _):
        self.answer(200, [self.server.described(identity) for identity in self.server.stacks])

    def create_stack(self, content):
        assert content.keys() == {"assetIds"}
        ids = content["assetIds"]
        assert len(ids) >= 2 and len({*ids}) == len(ids) and {*ids} <= self.server.assets.keys()
        assert all(str(uuid.UUID(identity)) == identity for identity in ids)
        self.answer(201, self.server.described(self.server.make_stack(ids)))

    def search(self, content):
        assert content.keys() <= {"originalPath", "page", "size", "withDeleted"}
        assert 1 <= content["size"] <= 1000 and content["page"] >= 1
        part = content["originalPath"].casefold()
        items = [a for a in self.server.assets.values() if part in a["originalPath"].casefold()]
        items = [a for a in items if content.get("withDeleted") or not a["isTrashed"]]
        page, most = content["page"], min(content["size"], self.server.page)
        some = items[(page - 1) * most : page * most]
        following = str(page + 1) if page * most < len(items) else None
        assets = {"total": len(some), "count": len(some), "items": some, "facets": []}
        empty = {"total": 0, "count": 0, "items": [], "facets": []}
        self.answer(200, {"albums": empty, "assets": {**assets, "nextPage": following}})

    def check(self, content):
        assert content.keys() == {"assets"}
        results = []
        for item in content["assets"]:
            assert item.keys() == {"id", "checksum"} and type(item["id"]) is str
            assert re.fullmatch(r"[0-9a-f]{40}", item["checksum"])
            same = [a for a in self.server.assets.values() if a["checksum"] == item["checksum"]]
            results.append({"id": item["id"], "action": "accept"})
            if same:
                state = {"assetId": same[0]["id"], "isTrashed": same[0]["isTrashed"]}
                results[-1] |= {"action": "reject", "reason": "duplicate", **state}
        self.answer(200, {"results": results})


@pytest.fixture
def immich(monkeypatch):
    server = Immich()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("IMMICH_API_KEY", KEY)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def listing(tmp_path_factory):
    """Photographs with copies of three, the same file, resized and saved again, and what nearfar
    says of them.
    """
    home = tmp_path_factory.mktemp("photos of people")
    photos = home / "my photos"
    (photos / "best of").mkdir(parents=True)
    for number, image in enumerate(photographs(6)):
        image.save(photos / f"{number}.png")
    for name in ("best of/0.png", "0 again.png"):
        shutil.copy(photos / "0.png", photos / name)
    shutil.copy(photos / "0.png", os.fsencode(photos) + b"/" + ODD)
    for number in (1, 2):
        Image.open(photos / f"{number}.png").save(photos / f"best of/{number}.jpg", quality=80)
    with pytest.MonkeyPatch.context() as patch, open(home / "found.json", "w") as file:
        patch.chdir(home)
        with redirect_stdout(file):
            assert main(["duplicates", "my photos", "--json"]) == 0
    return home / "found.json"


@pytest.fixture
def stacked(listing, immich, capsys):
    """Run the script; its exit code and lines."""
    script = runpy.run_path(str(EXAMPLES / "stack_copies.py"))

    def run(*words, file=listing):
        code = script["main"]([str(file), immich.address, *words])
        out, err = capsys.readouterr()
        return code, out.splitlines() if code == 0 else err

    return run


def members(immich):
    """The stacks by the paths of their images, the first one before the others."""
    stacks = []
    for stack in immich.stacks.values():
        others = [asset for asset in stack["members"] if asset != stack["primaryAssetId"]]
        ids = [stack["primaryAssetId"], *others]
        stacks.append([immich.assets[identity]["originalPath"] for identity in ids])
    return sorted(stacks)


def test_uploads_are_stacked_once(listing, immich, stacked):
    """The same bytes are one image there; without --apply nothing is done."""
    photos = listing.parent / "my photos"
    for number in range(6):
        immich.add(photos / f"{number}.png", f"/upload/{number}")
    for number in (1, 2):
        immich.add(photos / f"best of/{number}.jpg", f"/upload/again {number}")
    code, lines = stacked()
    assert code == 0 and "would stack 2 groups of 3" in lines[-1]
    assert not immich.stacks and not [
        r for r in immich.requests if r[:2] == ("POST", "/api/stacks")
    ]
    assert stacked("--apply")[1][-1].startswith("stacked 2 groups of 3; 0 are stacks already")
    expected = [[f"/upload/{number}", f"/upload/again {number}"] for number in (1, 2)]
    assert members(immich) == expected  # the larger file first
    before = dict(immich.stacks)
    assert "stacked 0 groups of 3; 2 are stacks already" in stacked("--apply")[1][-1]
    assert immich.stacks == before


def test_an_external_library_is_found_by_its_paths(listing, immich, stacked):
    """Other paths that hold one of these, in another case or longer, and the trash, are no match."""
    photos = listing.parent / "my photos"
    for path in sorted(photos.rglob("*.*")):
        if path.name != os.fsdecode(ODD):
            place = f"/usr/src/app/external/{path.relative_to(photos)}"
            for other in (place.upper(), f"{place}.png", f"/more{place}"):
                immich.add(path, other)
            immich.add(path, place, trashed=path.name == "2.png")
    where = ["--here", str(photos), "--there", "/usr/src/app/external"]
    code, lines = stacked(*where, "--apply")
    external = "/usr/src/app/external"
    assert code == 0 and members(immich) == [
        [f"{external}/0.png", f"{external}/0 again.png", f"{external}/best of/0.png"],
        [f"{external}/1.png", f"{external}/best of/1.jpg"],
    ]
    place = lines.index("2 of 8 images are not on the server:")
    assert [line.rpartition("/")[2] for line in lines[place + 1 :]] == [
        r"copy\nof \udcff.png",
        "2.png",
    ]
    assert "stacked 2 groups of 3; 0 are stacks already" in lines[place - 1]
    assert "; 2 are stacks already" in "\n".join(stacked(*where, "--apply")[1])


def test_a_stack_grows_and_one_with_other_images_stays(listing, immich, stacked):
    photos = listing.parent / "my photos"
    places = {path: immich.add(path, str(path)) for path in sorted(photos.rglob("[0-9]*"))}
    here = ["--here", str(photos), "--there", str(photos), "--apply"]
    immich.make_stack([places[photos / "best of/0.png"], places[photos / "0.png"]])
    of_raw = immich.make_stack([places[photos / "5.png"], places[photos / "1.png"]])
    code, lines = stacked(*here)
    assert code == 0 and "in another stack: " + str(photos / "1.png") in "\n".join(lines)
    assert "stacked 2 groups of 3; 0 are stacks already; 1 left" in "\n".join(lines)
    assert of_raw in immich.stacks
    names = [
        ["0.png", "0 again.png", "best of/0.png"],
        ["2.png", "best of/2.jpg"],
        ["5.png", "1.png"],
    ]
    grown, *others = members(immich)
    assert grown[0] == str(photos / "0.png") and sorted(grown[1:]) == [
        str(photos / name) for name in names[0][1:]
    ]
    assert others == [[str(photos / name) for name in group] for group in names[1:]]


@pytest.mark.parametrize(
    ("key", "words", "fact"),
    [("wrong", [], "Invalid API key"), ("", [], "IMMICH_API_KEY")],
)
def test_a_wrong_key_is_one_line(key, words, fact, stacked, monkeypatch):
    monkeypatch.setenv("IMMICH_API_KEY", key)
    code, err = stacked(*words)
    assert code == 2 and fact in err and err.count("\n") == 1


NO_LISTINGS = (
    *("", "[]", '{"group": [1]}', '{"archive_path": []}'),
    '{"group": [1], "kind": ["first"], "of": [""], "path": [null]}',
    '{"group": [[1]], "kind": ["first"], "of": [""], "path": ["a.png"]}',
    '{"group": [1, 1], "kind": ["first"], "of": [""], "path": ["a.png"]}',
)


def test_a_file_that_is_gone_is_not_said_to_be_missing_on_the_server(immich, stacked, tmp_path):
    """Nobody can tell, as its SHA-1 is not known here."""
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
    immich.add(tmp_path / "a.png", "/upload/a")
    paths = [str(tmp_path / name) for name in ("a.png", "b.png", "-gone\n.png")]
    listing = {"group": [1, 1, 1], "kind": ["first", "copy", "copy"], "path": paths}
    (tmp_path / "found.json").write_text(json.dumps(listing))
    code, lines = stacked(file=tmp_path / "found.json")
    assert code == 0 and "1 of 3 images are not" in lines[1] and lines[2].endswith("b.png")
    assert "1 of 3 files cannot be read" in lines[3] and lines[4].endswith(r"-gone\n.png")


def test_rows_of_a_group_may_stand_apart_and_its_first_image_anywhere(immich, stacked, tmp_path):
    """As in a file that somebody sorted; a group of near-duplicates has no copies to count."""
    for name in "abcdef":
        (tmp_path / name).write_text(name)
        immich.add(tmp_path / name, f"/upload/{name}")
    listing = {
        "group": [1, 2, 1, 2, 1, 3],
        "kind": ["copy", "first", "first", "copy", "copy", "first"],
        "path": [str(tmp_path / name) for name in "abcdef"],
    }
    (tmp_path / "found.json").write_text(json.dumps(listing))
    lines = stacked("--apply", file=tmp_path / "found.json")[1]
    assert members(immich) == [
        ["/upload/b", "/upload/d"],
        ["/upload/c", "/upload/a", "/upload/e"],
    ]
    assert lines[-1].startswith("stacked 2 groups of 2")


@pytest.mark.parametrize("text", NO_LISTINGS)
def test_another_file_is_one_line(text, stacked, tmp_path):
    (tmp_path / "other.json").write_text(text)
    code, err = stacked(file=tmp_path / "other.json")
    assert code == 2 and "other.json" in err and err.count("\n") == 1
    code, err = stacked(file=tmp_path / "none.json")
    assert code == 2 and "none.json" in err and err.count("\n") == 1


def test_a_server_that_is_none_is_one_line(listing, immich, capsys):
    script = runpy.run_path(str(EXAMPLES / "stack_copies.py"))
    addresses = ["http://127.0.0.1:9", "localhost:2283"]
    addresses += [f"{immich.address}/{place}" for place in ("photos", "moved")]
    for address in addresses:
        assert script["main"]([str(listing), address]) == 2
        err = capsys.readouterr().err
        assert address in err and err.count("\n") == 1
    assert len(immich.requests) == 2  # the key does not follow to another place


class Dataset:
    """Stands for a dataset of FiftyOne: what its documentation says of these methods."""

    def __init__(self, paths):
        self.samples = [{"filepath": str(path), "tags": []} for path in paths]
        self.view = self.samples

    def values(self, field):
        return [sample[field] for sample in self.view]

    def has_sample_field(self, field):
        return any(field in sample for sample in self.samples)

    def clear_sample_field(self, field):
        assert self.has_sample_field(field)
        for sample in self.view:
            sample[field] = None

    def set_values(self, field, values, key_field):
        assert key_field == "filepath" and {*values} <= {*self.values("filepath")}
        for sample in self.samples:
            sample.setdefault(field, None)
            sample[field] = values.get(sample[key_field], sample[field])

    def select_by(self, field, values):
        part = Dataset([])
        part.samples = self.samples
        part.view = [sample for sample in self.view if sample[field] in values]
        return part

    def tag_samples(self, tag):
        for sample in self.view:
            sample["tags"] = [*sample["tags"], tag] if tag not in sample["tags"] else sample["tags"]

    def untag_samples(self, tags):
        for sample in self.view:
            sample["tags"] = [tag for tag in sample["tags"] if tag not in tags]


@pytest.mark.parametrize("text", [*NO_LISTINGS, None])
def test_a_file_that_is_no_listing_changes_no_dataset(text, tmp_path, monkeypatch, capsys):
    """Tags and fields of an earlier call stay."""
    fiftyone = ModuleType("fiftyone")  # has no function: none is called
    monkeypatch.setitem(sys.modules, "fiftyone", fiftyone)
    if text is not None:
        (tmp_path / "other.json").write_text(text)
    script = runpy.run_path(str(EXAMPLES / "fiftyone_tags.py"))
    assert script["main"]([str(tmp_path / "other.json"), "photos"]) == 2
    err = capsys.readouterr().err
    assert "other.json" in err and err.count("\n") == 1


def test_samples_of_fiftyone_have_the_group_and_what_they_are(listing, tmp_path):
    tag_copies = runpy.run_path(str(EXAMPLES / "fiftyone_tags.py"))["tag_copies"]
    photos = listing.parent / "my photos"
    (tmp_path / "linked").symlink_to(photos)
    dataset = Dataset(
        tmp_path / "linked" / path.relative_to(photos) for path in photos.rglob("[0-9]*")
    )
    dataset.select_by("filepath", dataset.values("filepath")[:1]).tag_samples("mine")
    for _ in range(2):  # the second call replaces what the first one wrote
        assert tag_copies(dataset, json.loads(listing.read_text())) == 7
    by_name = {
        os.path.relpath(sample["filepath"], tmp_path / "linked"): sample
        for sample in dataset.samples
    }
    copies = {name for name, sample in by_name.items() if "copy" in sample["tags"]}
    assert copies == {"0 again.png", "best of/0.png", "best of/1.jpg", "best of/2.jpg"}
    assert by_name["best of/0.png"]["nearfar_kind"] == "same file"
    assert by_name["best of/1.jpg"]["nearfar_of"] == str(photos / "1.png")
    assert by_name["1.png"]["nearfar_group"] == by_name["best of/1.jpg"]["nearfar_group"]
    assert "nearfar_group" not in by_name["5.png"] or by_name["5.png"]["nearfar_group"] is None
    path = dataset.values("filepath")[0]
    both = {"group": [7, 2], "kind": ["near-duplicate", "copy"], "of": ["", ""], "path": [path] * 2}
    assert tag_copies(dataset, both) == 1
    assert dataset.samples[0]["nearfar_group"] == 2  # a copy before all
    nothing = {"group": [], "kind": [], "of": [], "path": []}
    assert tag_copies(dataset, nothing) == 0
    assert {tuple(sample["tags"]) for sample in dataset.samples} == {(), ("mine",)}
    assert {sample["nearfar_kind"] for sample in dataset.samples} == {None}
