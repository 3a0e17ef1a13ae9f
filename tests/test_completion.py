"""`nearfar completion`: a shell with the script knows verbs, options and their values."""

import shutil
import subprocess
import sys

import pytest

from nearfar.app import command_paths
from nearfar.cli import main
from nearfar.methods import method_names
from nearfar.networks import encoder_names

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The script of each shell, as the command prints it."""
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        for shell in SHELLS:
            with (folder / shell).open("w") as file:
                patch.setattr(sys, "stdout", file)
                assert main(["completion", shell]) == 0
    return {shell: folder / shell for shell in SHELLS}


def completed(script, *words):
    """The completions that bash offers for the last of the words."""
    function = "complete -p nearfar | sed 's/.*-F //; s/ .*//'"
    lines = f"""
        source {script}
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        $({function}) nearfar "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}" 2>/dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", lines, "bash", "nearfar", *words], capture_output=True, text=True, check=True
    )
    return {word.strip() for word in done.stdout.split("\n") if word.strip()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], set(command_paths())),
        (["e"], {"evaluate", "embed", "explore", "export"}),
        (["pretrain", "photos", "--batch"], {"--batch-size"}),
        (["pretrain", "photos", "--temp"], {"--temperature"}),  # a number of methods
        (
            ["pretrain", "photos", "--method", "s"],
            {name for name in method_names() if name.startswith("s")},
        ),
        (["pretrain", "photos", "--encoder", "sma"], {"small"}),
        (
            ["pretrain", "photos", "--encoder", "resnet10"],
            {name for name in encoder_names() if name.startswith("resnet10")},
        ),
        (["pretrain", "photos", "--views", "m"], {"microscope"}),
        (["pretrain", "photos", "--optimizer", "la"], {"lars", "larc", "larc-clip"}),
        (["map", "run", "--layout", ""], {"projector", "finetune", "cluster-embedding"}),
        (["select", "run", "--by", "n"], {"near"}),
        (["pretrain", "photos", "--accelerator", "c"], {"cpu", "cuda"}),
        (["completion", ""], set(SHELLS)),
    ],
)
def test_bash_completes(scripts, words, offered):
    assert completed(scripts["bash"], *words) == offered
