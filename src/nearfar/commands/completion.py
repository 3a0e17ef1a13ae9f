"""The command that prints the completion for a shell.

nearfar completion bash > ~/.local/share/bash-completion/completions/nearfar
nearfar completion zsh > ~/.zfunc/_nearfar
nearfar completion fish > ~/.config/fish/completions/nearfar.fish
"""

from __future__ import annotations

from typing import Literal


def completion_script(shell: Literal["bash", "zsh", "fish"]) -> str:
    """Print a script that lets bash, zsh or fish complete commands, options and their values.

    Write it to the file where the shell looks for it, as below, and again after an update of
    nearfar or timm.

    Args:
        shell: bash, zsh or fish.

    Returns:
        The script.
    """
    from nearfar.app import command_app, command_line, command_paths, pretrain_app
    from nearfar.device import KINDS
    from nearfar.methods import method_class, method_names
    from nearfar.networks import encoder_names
    from nearfar.views import PRESETS

    choices = {
        "accelerator": KINDS,
        "encoder": encoder_names(),
        "method": method_names(),
        "recipe": sorted(
            {name for method in method_names() for name in method_class(method).recipes}
        ),
        "views": list(PRESETS),
    }
    apps = [command_app(name, choices) for name in command_paths() if name != "pretrain"]
    pretrain = pretrain_app(method_names(), full=True, choices=choices)
    script = command_line(pretrain, *apps).generate_completion(shell=shell)
    print(script)
    return script
