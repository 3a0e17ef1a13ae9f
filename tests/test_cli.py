"""The command line: what words mean, one clear line and exit code 2 for a mistake, and the pages of
--help.
"""

import inspect
import os
import re
import shlex
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import nearfar
from nearfar import cli
from nearfar.app import (
    GROUPS,
    REQUIRED,
    command_app,
    command_paths,
    examples_of,
    function_of,
    options_of_app,
    pretrain_app,
)
from nearfar.atomic import NotWrittenError
from nearfar.cli import main
from nearfar.messages import to_argv

pytest.importorskip("pydantic")  # cyclopts checks values by it where anybody has imported it

pytestmark = pytest.mark.usefixtures("known_speed")

VERBS = [name for name, path in command_paths().items() if path.startswith("nearfar:")]
FAST = ["--epochs", "1", "--batch-size", "16", "--held-out", "16", "--encoder", "tiny"]


class Nothing(dict):
    """The result of a tool that found nothing."""

    def piped(self):
        return []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pretrian"], "did you mean 'pretrain'"),
        (["pretrain"], "name the images"),
        (["pretrain", "DATA", "--methd", "dcl"], "Did you mean --method?"),
        (["pretrain", "DATA", "--temprature", "0.1"], "Did you mean --temperature?"),
        (["pretrain", "DATA", "--method", "simclrr"], "did you mean 'simclr'"),
        (["pretrain", "DATA", "--method", "simclr", "--alpha", "1"], "Unknown option: --alpha."),
        (["pretrain", "DATA", "--recipe", "nature"], "no recipe of SimCLR 'nature'"),
        (["pretrain", "DATA", "--seed", "1.5"], '--seed: unable to convert "1.5"'),
        (["pretrain", "DATA", "--optimizer", "lasr"], 'Did you mean "lars"?'),
        (["pretrain", "DATA", "--mean"], "--mean requires"),
        (
            ["pretrain", "DATA", "--tensorboard", "true"],
            "true",
        ),  # a flag takes no word: here it is a source
        (["pretrain", "-rf.png"], "Unknown option: -rf.png"),
        (["pretrain", "--resume", "run", "--limit", "3"], "--resume takes everything but"),
        (["pretrain", "DATA", "--data-changed"], "--data-changed goes with --resume"),
        (["pretrain", "DATA", "--epochs", "0"], "--epochs must be 1e-06 to"),
        (["pretrain", "DATA", "--batch-size", "5000"], "larger than the 72 images"),
        (["pretrain", "DATA", "--negatives", "0"], "negatives"),
        (["pretrain", "DATA", "--projector", "8", "0", "--batch-size", "16"], "width"),
        (
            ["pretrain", "DATA", "--method", "moco-v2", "--queue-size", "-1", "--batch-size", "16"],
            "queue",
        ),
        (["pretrain", "DATA", "--encoder", "resnet81", "--batch-size", "16"], "did you mean"),
        (["pretrain", "DATA", "--views", "strnog"], "'strong'"),
        (["pretrain", "DATA", "--views", "strong+weak+weak"], "3 views"),
        (
            ["pretrain", "DATA", "--out", "x\udcff"],
            "x\\udcff is not text",
        ),
        (["embed", "DATA", "--out", "x\udcff.parquet"], "x\\udcff.parquet is not text"),
        (["embed", "DATA", "--out", "x\udcff.csv"], "x\\udcff.csv is not text"),
        (
            ["pretrain", "DATA", "--init", "nothing.safetensors", "--batch-size", "16"],
            "nothing.safetensors",
        ),
        (["pretrain", "no/such/folder"], "no/such/folder"),
        (["pretrain", "--resume", "no/such/run"], "not a run folder"),
        (["pretrain", "DATA", "--projector", "99999999999999999999"], "cannot be built"),
        (["pretrain", "DATA", "--config", "DATA"], "is not YAML"),
        (
            ["views", "DATA", "--views", "multi-crop", "--method", "sce"],
            "8 views, but sce needs 2",
        ),
        (["views", "DATA", "--images", "0"], "--images must be 1 to 1000"),
        (["views", "DATA", "--crop-size", "1"], "--crop-size must be 2 to 16384"),
        (["views", "DATA", "--seed", "-1"], "--seed must be 0 to"),
        (
            ["views", "DATA", "--out", "views.png"],
            "choose an --out in .html",
        ),
        (["demo", "DATA", "--minutes", "0"], "--minutes must be 0.1"),
        (["evaluate"], "TARGET requires an argument"),
        (["evaluate", "no/such/run"], "no no/such/run"),
        (["completion", "tcsh"], "fish"),
    ],
)
def test_a_mistake_is_one_line(words, says, images_file, complaint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in complaint(*[images_file if word == "DATA" else word for word in words])
    assert not list(tmp_path.iterdir())


def test_a_program_reads_parameters_and_a_terminal_options(caplog, capsys):
    """In errors, lines of the log, tables and commands to go on with."""
    with pytest.raises(ValueError, match=r"^`n` must .* 1797, not 1798$"):
        nearfar.select("digits", n=1798)
    assert main(["select", "digits", "--n", "1798"]) == 2
    assert "nearfar: --n must " in capsys.readouterr().err
    options = dict(protocol=["knn"], limit=300, baselines=False)
    with caplog.at_level("INFO", "nearfar"):
        nearfar.evaluate("digits", **options)
        nearfar.show_views()
    assert "`limit`: 300 of 1437 images" in caplog.text
    assert "\n`views` " in caplog.text and "--" not in caplog.text
    assert main(["evaluate", "digits", *to_argv(options)]) == main(["views"]) == 0
    out = capsys.readouterr().out
    assert "--limit: 300 of 1437 images" in out
    assert " --views " in out and "`" not in out


def test_an_existing_folder_is_left_alone(images_file, complaint, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "note").write_text("mine")
    assert "exists already" in complaint("pretrain", images_file, "--out", str(tmp_path / "run"))
    assert (tmp_path / "run" / "note").read_text() == "mine"


def test_a_saved_configuration_runs_again(images_file, tmp_path, capsys):
    first, again = tmp_path / "first", tmp_path / "again"
    words = ["pretrain", images_file, "--method", "dcl", "--temperature", "0.3", *FAST]
    assert main([*words, "--out", str(first)]) == 0
    assert main(["pretrain", "--config", str(first / "config.yaml"), "--out", str(again)]) == 0
    first_plan, second_plan = (
        yaml.safe_load((path / "config.yaml").read_text()) for path in (first, again)
    )
    assert first_plan.pop("out") != second_plan.pop("out")
    assert first_plan == second_plan
    assert first_plan["temperature"] == 0.3
    lines = [
        (path / "metrics.jsonl").read_text().splitlines()[-1].split('"images_per')[0]
        for path in (first, again)
    ]
    assert lines[0] == lines[1]


def test_a_configuration_with_an_object_is_for_python(tmp_path, complaint):
    (tmp_path / "config.yaml").write_text(
        "method: simclr\ndata:\n  object: array [48, 8, 8] uint8\n"
    )
    message = complaint(
        "pretrain", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")
    )
    assert "data" in message and "array [48, 8, 8] uint8" in message
    assert not (tmp_path / "run").exists()


def test_what_nobody_foresaw_is_one_line_below_its_traceback(capsys, monkeypatch):
    def broken():
        return {}["a\nkey"]

    monkeypatch.setattr(nearfar, "list_methods", broken)
    assert main(["methods"]) == 1
    *lines, last = capsys.readouterr().err.splitlines()
    assert last.startswith("nearfar: KeyError") and "report" in last
    assert lines[0].startswith("Traceback") and any("in broken" in line for line in lines)


def test_a_full_disk_is_no_mistake_of_the_user(capsys, monkeypatch):
    def full():
        raise NotWrittenError("x: no space")

    monkeypatch.setattr(nearfar, "list_methods", full)
    assert main(["methods"]) == 1
    assert capsys.readouterr().err == "nearfar: x: no space\n"


def test_names_are_printed_as_they_are(images_file, tmp_path, monkeypatch, capsys, complaint):
    """Not as rich's markup or emoji."""
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            ["views", images_file, "--out", "[red]:cat:[b].html", "--images", "1", "--samples", "1"]
        )
        == 0
    )
    assert "-> [red]:cat:[b].html" in capsys.readouterr().out
    assert "no/\\x1b[31m[/red]\\udcff" in complaint("pretrain", "no/\x1b[31m[/red]\udcff")


@pytest.mark.skipif(os.name != "posix", reason="pipes of a shell")
@pytest.mark.slow
def test_a_reader_that_stops_is_no_error():
    words = f"{shlex.quote(sys.executable)} -m nearfar completion bash"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} | head -c 1"], capture_output=True
    )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_installation_is_one_line(capsys, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "nearfar.training.processes", None
    )  # as if something that it imports were missing
    assert main(["methods"]) == 1
    err = capsys.readouterr().err
    assert (
        err.startswith("nearfar: import of nearfar.training")
        and "pip install" in err
        and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("push --private RUN a/b", {"run": "RUN", "repo": "a/b", "private": True}),
        ("push --private=false RUN a/b", {"run": "RUN", "repo": "a/b", "private": False}),
        ("push RUN --no-private a/b", {"run": "RUN", "repo": "a/b", "private": False}),
        ("duplicates --approximate RUN", {"target": "RUN", "approximate": True}),
        (
            "duplicates RUN --approximate=false photos",
            {"target": "RUN", "data": "photos", "approximate": False},
        ),
        (
            "evaluate --no-baselines RUN photos",
            {"target": "RUN", "data": "photos", "baselines": False},
        ),
        (
            "evaluate RUN --protocol knn linear --limit 9",
            {"protocol": ["knn", "linear"], "limit": 9},
        ),
        ("pretrain --adapt photos --no-cache", {"data": "photos", "adapt": True, "cache": False}),
        ("pretrain one --tensorboard two", {"data": ["one", "two"], "tensorboard": True}),
        ("pretrain a --whiten=false --epochs 1e1", {"data": "a", "whiten": False, "epochs": 10}),
        (
            "pretrain --method sigclr --learn-temperature photos",
            {"data": "photos", "learn_temperature": True},
        ),
        (
            "pretrain a --projector 64 32 --no-output-norm",
            {"projector": (64, 32), "output_norm": False},
        ),
        (
            "pretrain a --projector=[64,32] --mean -0.5 1",
            {"projector": (64, 32), "mean": [-0.5, 1]},
        ),
        ("pretrain a --method saclr --negatives all --rho 0.5", {"negatives": "all", "rho": 0.5}),
        (
            "pretrain a --method saclr --negatives 3 --micro-batch auto",
            {"negatives": 3, "micro_batch": "auto"},
        ),
        (
            "pretrain a --value-range uint8 --show-channels 2",
            {"value_range": "uint8", "show_channels": [2]},
        ),
        ("pretrain a --value-range 0 4095 --limit 10", {"value_range": [0, 4095], "limit": 10}),
        ("search RUN --k 2 a.png", {"images": ["a.png"], "k": 2}),
        ("search RUN 007 --data 2020", {"images": ["007"], "data": "2020"}),
        ("search RUN --data 2020 007", {"images": ["007"], "data": "2020"}),
        ("search RUN 007 --data one --data 2020", {"images": ["007"], "data": ["one", "2020"]}),
        ("select RUN --labelled 000041 --by near", {"labelled": "000041", "by": "near"}),
        (
            "search --k 2 RUN -- --json -h -1",
            {"target": "RUN", "images": ["--json", "-h", "-1"], "k": 2},
        ),
        ("pretrain --epochs 1 -- --photos", {"data": "--photos", "epochs": 1}),
        (
            "pretrain null --limit none --split null",
            {"data": "null", "limit": None, "split": "null"},
        ),
        ("pretrain x\udcff", {"data": "x\udcff"}),
    ],
)
def test_a_word_is_taken_as_its_place_says(words, expected, monkeypatch):
    """A flag takes no word, a list all up to the next option, and what is behind -- is no
    option.
    """
    verb, *rest = words.split()
    function, given = function_of(verb), {}

    def record(**values):
        inspect.signature(function).bind(**values)
        given.update(values)
        return Nothing()

    monkeypatch.setattr(cli, "function_of", lambda verb: record)
    assert main([verb, *rest]) == 0
    assert {name: given[name] for name in expected} == expected
    assert given.keys() <= {*expected, "run", "target", "data", "images", "method"}, (
        "only what is given is passed on"
    )


def test_settings_are_written_as_words_that_give_them_again(monkeypatch):
    settings = dict(
        data="a b",
        adapt=True,
        cache=False,
        limit=None,
        mean=[0.5, -1.0],
        epochs=1e-5,
        method="saclr",
        negatives="all",
    )
    given = {}
    monkeypatch.setattr(cli, "function_of", lambda verb: lambda **values: given.update(values))
    words = to_argv({name: value for name, value in settings.items() if name != "data"})
    assert main(["pretrain", settings["data"], *words]) == 0
    assert {name: given[name] for name in settings} == settings


def test_a_file_of_settings_is_read_as_words_are(tmp_path, monkeypatch, capsys, complaint):
    file, given = tmp_path / "own.yaml", {}
    monkeypatch.setattr(cli, "function_of", lambda verb: lambda **values: given.update(values))
    file.write_text(
        "method: saclr\ndata: [one, two]\nlr: 1e-3\nmean: [0, 1]\nprojector: [64, "
        "32]\nlimit: null\nadapt: true\n"
        "negatives: all\nseed: 3\nsplit: '007'\nout: null\n"
    )
    assert main(["pretrain", "--config", str(file), "--seed", "4", "--negatives", "2"]) == 0, (
        capsys.readouterr().err
    )
    assert given == dict(
        method="saclr",
        data=["one", "two"],
        lr=1e-3,
        mean=[0, 1],
        projector=(64, 32),
        limit=None,
        adapt=True,
        negatives=2,
        seed=4,
        split="007",
        out=None,
    )
    for line, says in (
        ("epoch: 3", "Did you mean --epochs?"),
        ("seed: x", "[seed]"),
        ("alpha: 1", "[alpha]"),
    ):
        file.write_text(f"data: one\n{line}\n")
        assert says in complaint("pretrain", "--config", str(file))
    assert "No such file" in complaint("pretrain", "--config", str(tmp_path / "none.yaml"))


def test_a_warning_of_a_library_is_one_line_without_its_source(capsys, monkeypatch):
    def warning():
        warnings.warn("invalid\nin\x1b[31m cast", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr(nearfar, "list_methods", warning)
    before = warnings.showwarning
    assert main(["methods"]) == 0
    assert capsys.readouterr().err == "nearfar: warning: invalid in\\x1b[31m cast\n"
    assert warnings.showwarning is before


def test_starting_weights_are_read_before_the_images(tmp_path, complaint):
    class Payload:
        def __reduce__(self):
            return os.makedirs, (str(tmp_path / "ran"),)

    torch.save({"weight": Payload()}, tmp_path / "hostile.pth")
    message = complaint("pretrain", "no/such/folder", "--init", str(tmp_path / "hostile.pth"))
    assert "cannot read weights from" in message
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.pth"]


def page(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def options_of(text):
    return set(re.findall(r"^│ +(--[\w-]+)", text, re.MULTILINE))


def words_of(text):
    return " ".join(re.sub("[│─╮╭╰╯]", " ", text).split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_argument_says_what_it_means_and_can_be_given(verb):
    """Parameters that take objects alone, and nothing else, are left out."""
    known = {argument.field_info.name: argument for argument in options_of_app(command_app(verb))}
    assert all(argument.parameter.help for argument in known.values())
    if verb != "pretrain":
        parameters = inspect.signature(function_of(verb)).parameters
        left_out = parameters.keys() - known.keys()
        objects = {"console", "encoder", "views"} - ({"views"} if verb == "views" else set())
        assert left_out <= objects
        assert known.keys() - parameters.keys() <= {"json", "null", "max_pixels"}
        assert all(
            argument.field_info.required
            == (parameters[name].default is inspect.Parameter.empty or (verb, name) in REQUIRED)
            for name, argument in known.items()
            if name in parameters
        )


@pytest.mark.parametrize("verb", VERBS)
def test_examples_can_be_run(verb, monkeypatch, capsys):
    """They are parsed as they are written; the function behind the verb is not called."""
    examples = examples_of(verb)
    assert examples and all(example in page(capsys, verb, "--help") for example in examples)
    called = []

    def recorded(*given, **named):
        called.append(verb)
        return Nothing()

    monkeypatch.setattr(cli, "function_of", lambda verb: recorded)
    monkeypatch.setattr(nearfar, "resume", recorded)
    for example in examples:
        first, *words = shlex.split(re.split("[|>]", example)[0])
        assert (first, words[0]) == ("nearfar", verb)
        assert main(words) == 0, capsys.readouterr().err
    assert called == [verb] * len(examples)


def test_the_usual_settings_are_on_a_short_page_and_all_on_a_long_one(capsys):
    short = page(capsys, "pretrain", "--help")
    assert {"--minutes", "--batch-size", "--method", "--encoder", "--views", "--out"} <= options_of(
        short
    )
    assert "--help-all" in short
    assert not {"--weight-decay", "--log-every", "--temperature"} & options_of(short)
    assert len(short.splitlines()) < 80
    long = page(capsys, "pretrain", "--help-all")
    arguments = options_of_app(pretrain_app())
    assert {
        argument.name for argument in arguments if argument.name.startswith("--")
    } <= options_of(long)
    titles = [*GROUPS, "--method simclr --recipe small"]
    places = [long.index(f"─ {title} ─") for title in titles]
    assert places == sorted(
        places
    )  # in the order in which people need them, the method's own numbers last
    assert "In Python" not in long and "in Python" not in long
    help_words = words_of(long)
    assert (
        "[choices: sgd, adam" in help_words
        and "Default: 30, unless epochs" in help_words
        and "[default: None]" not in help_words
    )


def test_numbers_of_a_method_stand_as_its_recipe_sets_them(capsys, complaint):
    text = page(capsys, "pretrain", "--help-all", "--method", "simclr", "--recipe", "cifar")
    assert "--queue-size" not in text
    numbers = words_of(text.split("--method simclr --recipe cifar ─")[1])
    assert re.search(r"--temperature .*of the softmax; .*? \[default: 0\.5\]", numbers)
    assert "widths of the projector. [default: 2048 128]" in numbers
    assert "--queue-size" in page(capsys, "pretrain", "--method", "moco-v2", "--help")
    assert "did you mean 'simclr'" in complaint("pretrain", "--help-all", "--method", "simclrr")


def test_pages_show_places_and_what_is_required(capsys):
    text = page(capsys, "embed", "-h")
    assert text.startswith("Usage: nearfar embed ") and " TARGET [ARGS...]\n" in text
    assert re.search(r"\* +--out .*\[required\]", " ".join(text.split()))
    assert page(capsys, "evaluate", "run", "-h") == page(capsys, "evaluate", "--help")


def test_no_line_names_an_option_that_the_command_lacks(tmp_path, capsys, monkeypatch):
    """On images of 8 and 16 bits each command gave advice that few could follow."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "deep").mkdir()
    for number in range(6):
        pixels = rng.integers(0, 256, (16, 16)).astype(np.uint16 if number > 2 else np.uint8)
        Image.fromarray(pixels).save(tmp_path / "deep" / f"{number}.png")
    assert main(["duplicates", "deep"]) == 0
    spoken = capsys.readouterr()
    assert "all become 8 bits" in spoken.out + spoken.err
    assert "--value-range" not in spoken.out + spoken.err
    assert main(["views", "deep", "--out", "views.html"]) == 0
    spoken = capsys.readouterr()
    assert "--value-range keeps" in spoken.out + spoken.err
