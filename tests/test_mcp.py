"""An agent uses the commands on one folder: the protocol's own client speaks with the server."""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nearfar
from nearfar.app import command_app, options_of_app
from nearfar.mcp import OUTSIDE, VERBS, confined_to, offered, schema, shortened, words_of


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of 12 photographs, one twice, with a link to a picture outside, and that picture."""
    top = tmp_path_factory.mktemp("place")
    photos, outside = top / "home" / "photos", top / "outside"
    photos.mkdir(parents=True)
    outside.mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(photos / f"{number:02d}.png")
    (photos / "again.png").write_bytes((photos / "03.png").read_bytes())
    (top / "home" / "yaml.py").write_text("open('ran', 'w')")  # in the place of a package
    Image.new("RGB", (64, 64), "red").save(outside / "secret.png")
    (photos / "link.png").symlink_to(outside / "secret.png")
    (top / "home" / "list.csv").write_text(f"path\n{photos}/00.png\n{outside}/secret.png\n")
    return top


def calls(place, *wanted):
    """Return the tools of a server on the folder "home", and its answers to calls."""
    pytest.importorskip("mcp")
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = ["-m", "nearfar", "mcp", str(place / "home")]

    async def speak():
        server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            return tools, [await session.call_tool(name, given) for name, given in wanted]

    return anyio.run(speak)


def read(answer):
    return json.loads(answer.content[0].text)


@pytest.mark.slow
def test_an_agent_finds_the_copies_and_nothing_outside(place):
    before = sorted(place.rglob("*"))
    scratch = set(Path(tempfile.gettempdir()).glob("nearfar-mcp-*"))
    tools, answers = calls(
        place,
        ("duplicates", {"target": "photos", "out": "copies.html"}),
        ("duplicates", {"target": "../outside"}),
        ("embed", {"target": "list.csv", "out": "list.parquet"}),
        ("embed", {"target": "hf:somebody/photos", "out": "hub.parquet"}),
        ("duplicates", {"target": "photos", "limit": 3}),
        ("push", {"run": "photos"}),
    )
    assert {tool.name for tool in tools} == {*nearfar.tool_names(), *VERBS}
    copies, parent, listed, hub, unknown, push = answers
    assert not copies.is_error and read(copies)["name"] == ["03.png", "again.png"]
    assert read(copies)["read"][0]["left_out"] == {OUTSIDE: 1}  # the link
    assert "1 of 13 images are copies" in copies.content[1].text  # the lines that people read
    written = place / "home" / "copies.html"
    assert written.is_file() and set(before) <= set(place.rglob("*"))
    assert not (place / "home" / "ran").exists()
    assert set(Path(tempfile.gettempdir()).glob("nearfar-mcp-*")) == scratch
    assert parent.is_error and OUTSIDE in read(parent)["error"]
    assert read(listed)["images"] == 1 and read(listed)["read"][0]["left_out"] == {OUTSIDE: 1}
    assert hub.is_error and "network" in read(hub)["error"]
    assert unknown.is_error and "no argument 'limit'" in read(unknown)["error"]
    assert push.is_error and "no tool 'push'" in read(push)["error"]


def options(name):
    return list(options_of_app(command_app(name)))


def test_a_schema_has_types_meanings_and_what_is_required():
    made = schema(options("duplicates"))
    assert made["required"] == ["target"] and "json" not in made["properties"]
    kinds = {name: about.get("type") for name, about in made["properties"].items()}
    assert kinds["target"] == "string" and kinds["data"] == "array"
    assert kinds["distance"] == "number" and kinds["orientations"] == "boolean"
    assert all(about["description"] for about in made["properties"].values())
    assert schema(options("search"))["properties"]["k"]["type"] == "integer"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"target": "a"}, ["--json", "--", "a"]),
        ({"target": "-a", "k": 3}, ["--json", "--k=3", "--", "-a"]),
        ({"target": "a", "images": ["b", "c"]}, ["--json", "--", "a", "b", "c"]),
        ({"target": "a", "null": True, "json": False}, ["--json", "--null", "--", "a"]),
    ],
)
def test_arguments_become_words(arguments, words, tmp_path):
    assert words_of(options("search"), arguments, tmp_path) == words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": ["a.png"]}, "'target' is missing"),  # an image became the target
        ({"target": None, "images": ["a.png"]}, "'target' is missing"),
        ({"target": ["a", "b"]}, "'target' must be string"),  # b became an image
        ({"target": "a", "k": [1, 2]}, "'k' must be integer"),
        ({"target": "a", "k": True}, "'k' must be integer"),
        ({"target": "a", "crop": "yes"}, "'crop' must be boolean"),
        ({"target": "a", "images": [["b"]]}, "'images' must be string or"),
    ],
)
def test_an_argument_of_another_type_is_refused(arguments, message, tmp_path):
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match=message):
        words_of(options("search"), arguments, tmp_path)


@pytest.mark.parametrize("name", ["embed", "duplicates", "check"])
def test_no_engine_is_offered_whose_processes_are_not_confined(name):
    every = schema(options(name))["properties"]
    assert every.keys() - schema(offered(options(name)))["properties"] == {"engine", "workers"}
    assert "workers" in schema(offered(options("pretrain")))["properties"]


def test_a_long_answer_has_its_first_rows_and_says_how_many_there_are():
    columns = {"name": [f"{row:06}.jpg" for row in range(9000)], "rank": list(range(9000))}
    short = json.loads(shortened(json.dumps({**columns, "read": [{"images": 9000}]})))
    assert short["name"] == columns["name"][:200] and short["rank"] == columns["rank"][:200]
    assert "200 of 9000 rows" in short["note"] and short["read"] == [{"images": 9000}]
    few = json.dumps({"name": ["a.jpg"]})
    assert shortened(few) == few


@pytest.mark.parametrize("path", ["..", "/etc", "~", "a/../../b", "hf:a/b"])
@pytest.mark.parametrize("name", ["target", "out", "encoder"])
def test_no_path_leads_out(name, path, tmp_path):
    with pytest.raises(ValueError, match=r"outside the folder|network"):
        words_of(options("duplicates"), {"target": "a", name: path}, tmp_path)


def test_a_link_leads_out_and_is_refused(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="outside the folder"):
        words_of(options("duplicates"), {"target": "link"}, tmp_path / "root")


@pytest.mark.parametrize(
    ("event", "names", "allowed"),
    [
        ("open", ["in/a"], True),
        ("open", ["inner/a"], False),
        ("os.rename", ["in/a", "in/b"], True),
        ("os.rename", ["in/a", "out"], False),
        ("os.symlink", ["out", "in/a"], False),
        ("os.mkdir", ["out/new"], False),
        ("compile", ["out"], True),
    ],
)
def test_every_path_of_an_event_lies_in_the_folder(event, names, allowed, tmp_path):
    check = confined_to([str(tmp_path / "in"), ""])
    details = (*(str(tmp_path / name) for name in names), -1, -1)
    if allowed:
        return check(event, details)
    with pytest.raises(PermissionError, match="outside the folder") as caught:
        check(event, details)
    assert caught.value.strerror == str(caught.value) == OUTSIDE  # which messages quote
