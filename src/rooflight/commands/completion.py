"""`rooflight completion SHELL`: the script that makes a shell complete rooflight's words, and what those words are.

When Tab is pressed the shell runs rooflight again, which must answer at once: nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from rooflight.spec import fields_for

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

# bash cuts words at colons, and recorded:h200/... has one. So the line goes over whole, and what bash took for a word
# of its own before the last colon is left out of the answer. Files beside names are found here, since bash looks for
# them only where there is no other answer.
_BASH = """\
%(complete_func)s() {
    local kind value path files=
    COMPREPLY=()
    while IFS=, read -r kind value; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            file) files=yes ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(ROOFLIGHT_LINE="${COMP_LINE:0:COMP_POINT}" ROOFLIGHT_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    if [[ $files && ${#COMPREPLY[@]} -eq 0 ]]; then
        compopt -o default
    elif [[ $files ]]; then
        while IFS= read -r path; do
            if [[ -d $path ]]; then path+=/; fi
            COMPREPLY+=("$path")
        done < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == */ ]]; then compopt -o nospace; fi
    fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _LayerNames(ShellComplete):
    """Layers of the model or the ledger before --explain: click forgets what stands before an option without value."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        if args and args[-1] == "--explain":
            return [CompletionItem(layer) for layer in _layers(args[1:-1]) if layer.startswith(incomplete)]
        return super().get_completions(args, incomplete)


class _Bash(_LayerNames, BashComplete):
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("ROOFLIGHT_LINE", "")
        words = split_arg_string(line)
        return words[1:] if line[-1:].isspace() else words[1:-1], "" if line[-1:].isspace() else words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        _, typed = self.get_completion_args()
        breaks = os.environ.get("ROOFLIGHT_BREAKS", "")
        cut = max((place for place, letter in enumerate(typed, start=1) if letter in breaks), default=0)
        return f"{item.type},{str(item.value).removeprefix(typed[:cut])}"


class _Zsh(_LayerNames, ZshComplete): ...


class _Fish(_LayerNames, FishComplete):
    # h200,a100 is one word: only the first comma divides the kind from the word.
    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


_SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


@click.command(short_help="shell completion with Tab")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def command(shell: str) -> None:
    """Print the script with which a SHELL completes verbs, options, models, devices, recordings and layers.

    \b
    bash   add to ~/.bashrc:  eval "$(rooflight completion bash)"
    zsh    add to ~/.zshrc, after compinit:  eval "$(rooflight completion zsh)"
    fish   run once:  rooflight completion fish > ~/.config/fish/completions/rooflight.fish
    """
    from rooflight.commands.main import COMPLETION, cli

    complete = _SHELLS[shell](cli, {}, "rooflight", COMPLETION)
    # Not complete.source(), which starts a bash to ask for its version.
    click.echo(complete.source_template % complete.source_vars(), nl=False)


def register() -> None:
    """Before click is asked for completions."""
    for name, kind in _SHELLS.items():
        add_completion_class(kind, name)


def teach(verb: str, command: click.Command) -> None:
    """Give a verb's parameters their words. They stand here together, so that the verbs need not know of them."""
    for parameter in command.params:
        completer = _WORDS.get((verb, parameter.name or "")) or _WORDS.get(("", parameter.name or ""))
        if completer is not None:
            parameter._custom_shell_complete = completer


def _offer(
    words: Iterable[str] | Callable[[], Iterable[str]], *, listed: bool = False, files: bool = False
) -> Completer:
    """Words that could follow. `listed`: several with commas, those that are there already not again. `files`: or a
    file."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if listed else ("", "", incomplete)
        offered = [word for word in (words() if callable(words) else words) if word not in before.split(",")]
        items = [CompletionItem(before + comma + word) for word in offered if word.startswith(last)]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return complete


def _models() -> Iterable[str]:
    from rooflight.models.registry import NAMES

    return NAMES


def _device_names() -> list[str]:
    """By their files: reading all of them would take longer than the rest."""
    from importlib.resources import files

    specs = files("rooflight.hardware") / "specs"
    return sorted(path.name.removesuffix(".toml") for path in specs.iterdir() if path.name.endswith(".toml"))


def _devices() -> list[str]:
    return [*_device_names(), "here"]


_one_device = _offer(_device_names, files=True)


def _name_of_one(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`rooflight list`: only devices have names there."""
    return _one_device(context, parameter, incomplete) if context.params.get("what") == "devices" else []


def _recordings() -> list[str]:
    from rooflight.recordings import PREFIX, names

    return [PREFIX + name for name in names()]


def _recordings_and_models() -> list[str]:
    return [*_recordings(), *_models()]


def _layers(words: list[str]) -> list[str]:
    """Of a saved ledger; for a built-in model, of a recording of it, since building the model would need torch."""
    from rooflight.errors import RooflightError
    from rooflight.files import load
    from rooflight.recordings import is_recorded

    what = next((word for word in words if not word.startswith("-")), "")
    alike = [name for name in _recordings() if name.partition("/")[2].startswith(f"{what}-")]
    source = what if is_recorded(what) or os.path.isfile(what) else next(iter(alike), None)
    try:
        return [] if source is None else [module.path for module in load(source).modules if module.path]
    except RooflightError:
        return []


def _charts() -> Iterable[str]:
    from rooflight.commands.report import CHARTS

    return CHARTS


_PARALLEL = ("ddp", "fsdp", "zero1", "zero2", "zero3", "tp", "pp")
_WORDS: dict[tuple[str, str], Completer] = {
    ("", "model"): _offer(_models),
    ("", "checkpoint"): _offer(["blocks"]),
    ("", "target"): _offer(["cuda", "cuda:70", "cuda:80", "cuda:89", "cuda:90", "cpu"]),
    ("measure", "device"): _offer(["cuda", "cuda:0", "cpu"]),
    ("measure", "compile_mode"): _offer(["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]),
    ("predict", "devices"): _offer(_devices, listed=True),
    ("predict", "ppp"): _offer(_recordings, files=True),
    ("predict", "parallel"): _offer(_PARALLEL),
    ("accuracy", "on"): _offer(_device_names),
    ("accuracy", "like"): _offer(_models),
    ("report", "paths"): _offer(_recordings_and_models, listed=True, files=True),
    ("report", "on"): _offer(_devices, listed=True),
    ("report", "chart"): _offer(_charts),
    ("compare", "paths"): _offer(_recordings_and_models, listed=True, files=True),
    ("list", "names"): _name_of_one,
    ("calibrate", "described"): _one_device,
    ("calibrate", "where"): _offer(lambda: ["cuda", "cpu", *_device_names()], files=True),
    ("calibrate", "recorded"): _offer(_recordings, files=True),
    ("calibrate", "more"): _offer(_recordings, files=True),
    ("study", "what"): _offer(_models, listed=True, files=True),
    ("study", "on"): _offer(_devices, listed=True),
    ("study", "parallel"): _offer(_PARALLEL, listed=True),
    **{("study", field.name): _offer(field.choices, listed=True) for field in fields_for("study") if field.choices},
}
"""By verb (or any) and parameter. Choices, files and folders click completes by itself."""
