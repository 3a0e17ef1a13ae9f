"""The command that lets an agent use nearfar's commands on one folder, by the Model Context
Protocol.

nearfar mcp photos/
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from nearfar.messages import check_known, summary_of

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

VERBS = ("pretrain", "embed", "methods")  # commands for agents, besides the tools
OF_ENGINES = {"engine", "workers"}  # whose processes nothing confines
LONGEST, ROWS = 50_000, 200  # characters of an answer, and rows of one that is longer
OUTSIDE = "outside the folder of this server"
SCRIPT = "from nearfar.mcp import run_confined; run_confined()"
KINDS = {bool: "boolean", int: "integer", float: "number"}
PATHS_OF = {  # how many paths stand first in what Python tells of an event
    **dict.fromkeys(["open", "os.listdir", "os.scandir", "os.chdir", "os.mkdir"], 1),
    **dict.fromkeys(["os.remove", "os.rmdir", "os.truncate"], 1),
    **dict.fromkeys(["os.rename", "os.link", "os.symlink"], 2),
}


def serve_mcp(folder: str | Path) -> None:
    """Let an agent use the tools of nearfar, `pretrain` and `embed` on the images below a folder.

    The agent's program starts this command and speaks with it by standard input and output (Model
    Context Protocol); nothing listens on the network, and nothing is downloaded. Each call runs a
    command of its own and returns what `--json` prints. It reads and writes below the folder alone
    and never removes or moves an image.

    Args:
        folder: the folder with the images, and for what is written.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"{folder} is no folder")
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise ValueError(
            "`nearfar mcp` needs another package: pip install 'nearfar[mcp]'"
        ) from error

    async def serve() -> None:
        async with stdio_server() as (read, write):
            server = build_server(root)
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def build_server(root: Path) -> Server[Any]:
    """Return a server of the commands, each as a tool of the protocol."""
    import anyio
    import mcp_types as types
    from mcp.server.lowlevel import Server

    import nearfar
    from nearfar.app import command_app, function_of, options_of_app

    names = [*nearfar.tool_names(), *VERBS]
    options = {name: offered(list(options_of_app(command_app(name)))) for name in names}

    async def list_tools(context: Any, page: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=f"{summary_of(function_of(name).__doc__ or '')}\n\n"
                    f"{(function_of(name).__doc__ or '').partition('Returns:')[2]}",
                    input_schema=schema(options[name]),
                    annotations=types.ToolAnnotations(
                        destructive_hint=False, open_world_hint=False
                    ),
                )
                for name in names
            ]
        )

    async def call_tool(context: Any, call: Any) -> types.CallToolResult:
        try:
            check_known("tool", call.name, names)
            words = [call.name, *words_of(options[call.name], call.arguments or {}, root)]
        except ValueError as error:
            answer = json.dumps({"error": str(error)})
            failed = True
        else:
            # -P: no module is imported from the folder
            child = [sys.executable, "-P", "-c", SCRIPT, str(root), *words]
            ended = await anyio.run_process(
                child,
                check=False,
                stdin=subprocess.DEVNULL,
                cwd=root,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )
            lines = ended.stderr.decode(errors="replace").strip()
            answer = ended.stdout.decode().strip() or json.dumps({"error": lines[-2000:]})
            failed = ended.returncode != 0
        texts = [answer] if failed else [shortened(answer), *filter(None, [lines[-LONGEST:]])]
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text) for text in texts], is_error=failed
        )

    return Server(
        "nearfar", version=nearfar.__version__, on_list_tools=list_tools, on_call_tool=call_tool
    )


def offered(options: Sequence[Any]) -> list[Any]:
    """Return the options of a command without those of an engine, whose processes would not be
    confined.
    """
    names = {_name(option) for option in options}
    hidden = OF_ENGINES if names >= OF_ENGINES else set()
    return [option for option in options if _name(option) not in hidden]


def shortened(answer: str) -> str:
    """Return what --json prints, of a long one the first rows alone, with a note that says so."""
    if len(answer) <= LONGEST:
        return answer
    whole = json.loads(answer)
    rows = {name: len(column) for name, column in whole.items() if isinstance(column, list)}
    most = max(rows.values(), default=0)
    if most <= ROWS:
        return answer
    first = {name: whole[name][:ROWS] for name in rows}
    note = f"the first {ROWS} of {most} rows; the table beside the page has all, see the lines"
    return json.dumps(whole | first | {"note": note})


def schema(options: Sequence[Any]) -> dict[str, Any]:
    """Return the JSON schema of the arguments of a command."""
    taken = [option for option in options if _name(option) != "json"]
    return {
        "type": "object",
        "properties": {
            _name(option): _kind(option.hint) | {"description": option.parameter.help or ""}
            for option in taken
        },
        "required": [_name(option) for option in taken if option.required],
        "additionalProperties": False,
    }


def _name(option: Any) -> str:
    return str(option.names[0]).lstrip("-").replace("-", "_").lower()


def _kind(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type."""
    kinds = [kind for kind in _alternatives(hint) if kind is not type(None)]
    if any(get_origin(kind) in (list, tuple) for kind in kinds):
        return {"type": "array", "items": {"type": ["string", "number"]}}
    if len(kinds) == 1 and get_origin(kinds[0]) is Literal:
        return {"enum": list(get_args(kinds[0]))}
    names = {KINDS.get(kind, "string") for kind in kinds}
    return {"type": names.pop() if len(names) == 1 else sorted(names)}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def words_of(options: Sequence[Any], arguments: Mapping[str, Any], root: Path) -> list[str]:
    """Return arguments as words of the command line; raises ValueError for those that the schema
    does not have or that are of other types, and for paths that lead out of the folder.
    """
    known = {_name(option): option for option in options}
    for name in arguments:
        check_known("argument", name, known)
    check_types(options, {name: value for name, value in arguments.items() if value is not None})
    placed, named = list[str](), list[str]()
    for name, option in known.items():
        value = arguments.get(name)
        if value is None or name == "json":
            continue
        values = [str(entry) for entry in (value if isinstance(value, list) else [value])]
        for entry in values:
            check_inside(entry, root)
        if not option.names[0].startswith("-"):
            placed += values
        elif isinstance(value, bool):
            named += [option.names[0 if value else -1]] if value or len(option.names) > 1 else []
        else:
            named += [f"{option.names[0]}={entry}" for entry in values]
    return ["--json", *named, "--", *placed]


def check_types(options: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments that are missing or of other types: a list in place of one
    path would become several arguments, and DATA would take the place of a missing TARGET.
    """
    from jsonschema import Draft202012Validator

    wanted = schema([option for option in options if _name(option) in arguments or option.required])
    for error in Draft202012Validator(wanted).iter_errors(dict(arguments)):
        if error.validator == "required":
            missing = [name for name in wanted["required"] if name not in arguments]
            raise ValueError(f"argument {missing[0]!r} is missing")
        if error.path:
            kind = error.validator_value
            kind = kind if isinstance(kind, str) else " or ".join(map(str, kind))
            value = repr(error.instance)[:100]
            raise ValueError(f"argument {error.path[0]!r} must be {kind}, not {value}")


def check_inside(value: str, root: Path) -> None:
    """Raise ValueError for a path that leads out of the folder, and for a name on the network."""
    if value.startswith("hf:"):
        raise ValueError(f"{value!r:.200}: this server does not use the network")
    if not (root / os.path.expanduser(value)).resolve().is_relative_to(root):
        raise ValueError(f"{value!r:.200} is {OUTSIDE}, {root}")


def run_confined() -> None:
    """Run the command line in a folder, whose files alone Python opens besides its own.

    sys.argv: the folder, then the words. A link that leads out of the folder, and a list of paths
    that lie elsewhere, end like files that may not be read.
    """
    root, *words = sys.argv[1:]
    from nearfar.cli import main

    with tempfile.TemporaryDirectory(prefix="nearfar-mcp-") as scratch:
        tempfile.tempdir = scratch
        own = [root, scratch, *sys.path, *sysconfig.get_paths().values()]
        own += [sys.prefix, sys.base_prefix]
        own += ["/usr", "/lib", "/proc", "/sys", "/dev/null", "/dev/urandom", "/etc", "/opt"]
        own += [os.path.expanduser(f"~/{name}") for name in (".cache", ".config")]
        own += [os.environ.get(name, "") for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")]
        sys.addaudithook(confined_to(own))
        code = main(words)
    sys.exit(code)


def confined_to(places: Sequence[str]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that refuses paths outside these folders; empty ones do not count."""
    homes = {os.path.realpath(place) for place in places if place}

    def check(event: str, details: tuple[Any, ...]) -> None:
        for path in details[: PATHS_OF.get(event, 0)]:
            if isinstance(path, (str, bytes, os.PathLike)):
                place = os.path.realpath(os.fsdecode(path))
                if not any(place == home or place.startswith(f"{home}/") for home in homes):
                    refused = PermissionError(OUTSIDE)
                    refused.strerror = OUTSIDE  # what messages say of an error of the system
                    raise refused

    return check
