"""`rooflight`: finds the verb, runs it, and turns what goes wrong into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

import click

from rooflight._version import __version__
from rooflight.commands.signals import answered_by, say_again
from rooflight.commands.terminal import ProgramOptions, complain, program_options
from rooflight.errors import BadInput, RooflightError

VERBS = {
    "estimate": "FLOPs, bytes and memory of every operation by formula, without a GPU",
    "measure": "what the hardware does, per operation: counters, time and memory",
    "run": "measure the regions of a script",
    "predict": "time and memory of a step on any device, or on many, without running it",
    "accuracy": "how far predictions are from steps that were timed, by device, model and step",
    "calibrate": "time this device with micro-benchmarks, for calibrated predictions",
    "compare": "two ledgers side by side: estimate and measurement, eager and compiled, two devices",
    "study": "a grid of models, batches, precisions and devices, here or on a cluster",
    "import": "read the logs of ncu, nsys, nvprof and PyTorch's profiler",
    "doctor": "what can be measured on this machine, and how to enable the rest",
    "report": "show a saved ledger or a study as text, Markdown, CSV, JSON or HTML",
    "list": "list models, devices, formulas, recordings and metrics; Big-O of functions",
    "completion": "shell completion of verbs, options, models and devices with Tab",
}

_MODULES = {"import": "import_"}
"""Modules of verbs whose name is Python's."""

COMPLETION = "_ROOFLIGHT_COMPLETE"
"""Set by the shell's script when Tab is pressed: rooflight then only answers what could follow."""

FIRST_WORDS = """\
rooflight: what a PyTorch model costs, what the hardware did,
and how long it takes elsewhere

Three commands to try; none of them needs a GPU:

  rooflight estimate resnet50 --batch 16 --step train
      FLOPs, bytes and memory of every layer, by formula

  rooflight report recorded:h200/resnet50-train-fp32 -o report.html
      the same step measured on an H200, as one page for your browser

  rooflight predict resnet50 --batch 16 --step train --on h200,a100,v100
      how long the step takes on three GPUs, and what memory it needs

rooflight --help lists all verbs, rooflight VERB --help the options of one"""


class _Verbs(click.Group):
    """Imports a verb only when it is run: `--help` must not wait for torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"rooflight.commands.{_MODULES.get(cmd_name, cmd_name)}").command
        if not any(option.name == "quiet" for option in command.params):
            command.params += program_options()
        if COMPLETION in os.environ:
            from rooflight.commands.completion import teach

            teach(cmd_name, command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(VERBS)}"
            raise BadInput("unknown-verb", f"no verb {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    params=program_options(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="rooflight")
@click.pass_context
def cli(context: click.Context) -> None:
    """What a PyTorch model costs: FLOPs, bytes and memory of every operation, with the formula; what the hardware did;
    and how long it will take on a GPU that is elsewhere."""
    if context.invoked_subcommand is None:
        click.echo(FIRST_WORDS)


def main() -> None:
    """Run the verb of the command line, and end with its exit code: 2 for what the user can mend, 130 for Ctrl-C.

    The error behind an exit code is the cause of the `SystemExit`.
    """
    if COMPLETION in os.environ:
        from rooflight.commands.completion import register

        register()
    _mend_output()
    asked = ProgramOptions()
    interrupted = _Interrupted()
    try:
        with interrupted.noticed():
            cli.main(
                args=sys.argv[1:], prog_name="rooflight", complete_var=COMPLETION, standalone_mode=False, obj=asked
            )
    except click.exceptions.Exit as request:
        sys.exit(request.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        if asked.debug or _wants_traceback(sys.argv[1:]):
            raise
        # Ctrl-C in the middle of an import can come out as any other error.
        if interrupted.seen or isinstance(error, (click.Abort, KeyboardInterrupt)):
            complain("interrupted; nothing was written")
            sys.stderr.flush()
            # Python ends itself by the signal, whatever exit code it is told, if Ctrl-C came in the wrong place.
            os._exit(130)
        message, code = _explained(error)
        complain(message)
        raise SystemExit(code) from error


def _wants_traceback(arguments: list[str]) -> bool:
    """For what fails before the options are read. What follows `--` is another program's."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return "--debug" in arguments[:end]


def _mend_output() -> None:
    """Print what can be printed: a closed output swallows, one that cannot write × shows a question mark."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (for the rest of the process)
    elif isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _Interrupted:
    """Remembers that Ctrl-C was pressed, whatever becomes of the KeyboardInterrupt."""

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def noticed(self) -> Iterator[None]:
        def handler(number: int, frame: FrameType | None) -> None:
            self.seen = True
            # Python drops what is raised inside callbacks and finalizers: say it again until somebody listens.
            say_again(1.0)
            raise KeyboardInterrupt

        with answered_by(handler, "SIGINT", "SIGALRM"):
            try:
                yield
            finally:
                say_again(0)


def _explained(error: BaseException) -> tuple[str, int]:
    """One line and an exit code."""
    text = " ".join(str(error).split())
    if isinstance(error, click.ClickException):
        return _usage(error), 2
    if isinstance(error, RooflightError):
        return " ".join(error.on_command_line.split()), error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) has seen enough; what is still buffered must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot reach {error.filename}: {error.strerror or text}; check the path, and whether you may use it", 2
    if isinstance(error, OSError):
        # A full disk or a closed terminal behind the output; files we write ourselves say so in their own words.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"cannot write the output: {error.strerror or text}; send it somewhere else, or make room first", 2
    if isinstance(error, UnicodeEncodeError):
        return "a name or a path that is not UTF-8 cannot be written: rename it, or give another", 2
    if isinstance(error, MemoryError):
        return "out of memory: try a smaller batch, or --debug to see where", 2
    return f"a bug in rooflight: {type(error).__name__}: {text} (add --debug for the traceback)", 70


def _usage(error: click.ClickException) -> str:
    """click says what is wrong; where it does not say what would be right, the help does."""
    from rooflight.spec import by_option  # `--help` needs none of it

    if isinstance(error, click.NoSuchOption) and (field := by_option().get(error.option_name)) is not None:
        return f"{field.option} is of {' and '.join(field.verbs)}: leave it out, or use one of these"
    text = " ".join(error.format_message().split()).rstrip(".")
    if any(words in text.lower() for words in ("did you mean", "one of", "there are", "`rooflight ")):
        return text
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        return f"{text}; see: {context.command_path} --help"
    verb = next((argument for argument in sys.argv[1:] if argument in VERBS), "")
    return f"{text}; see: {' '.join(['rooflight', *([verb] if verb else []), '--help'])}"


if __name__ == "__main__":
    main()
