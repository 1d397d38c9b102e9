"""The first minutes at the command line: what `rooflight` alone says, Tab, --quiet, pipes and narrow terminals."""

from __future__ import annotations

import errno
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rooflight import recordings
from rooflight.commands.completion import _WORDS
from rooflight.commands.main import FIRST_WORDS, VERBS, cli

ROOFLIGHT = Path(sys.executable).with_name("rooflight")
TORCH_STAYS_OUT = (
    "import sys\nfrom rooflight.commands.main import main\nsys.argv = ['rooflight', *sys.argv[1:]]\n"
    "try:\n    main()\nfinally:\n    assert not {'torch', 'altair', 'sympy'} & set(sys.modules)\n"
)


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """In an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run


# --- rooflight alone ---


def test_rooflight_alone_shows_three_commands_and_where_help_is():
    done = subprocess.run([sys.executable, "-c", TORCH_STAYS_OUT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip("\n") == FIRST_WORDS
    commands = first_commands()
    assert [words[1] for words in commands] == ["estimate", "report", "predict"]
    assert "rooflight --help" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def first_commands() -> list[list[str]]:
    return [shlex.split(line) for line in FIRST_WORDS.splitlines() if line.startswith("  rooflight ")]


@pytest.mark.parametrize("words", first_commands(), ids=lambda words: words[1])
def test_its_commands_can_be_given(words):
    """Every option is one of the verb's, every value one that it takes; what they print is shown in the README."""
    _, verb, *arguments = words
    command = cli.get_command(click.Context(cli), verb)
    context = command.make_context(verb, arguments, obj=None)
    for path in context.params.get("paths", ()):
        assert recordings.path(str(path)).is_file()


def test_options_alone_say_the_same(run):
    assert run("--quiet") == (0, FIRST_WORDS + "\n", "")


# --- what the machine lacks, or does not allow ---

RECORDING = "recorded:h200/mnist-cnn-infer-fp32"


def test_what_a_machine_lacks_is_exit_code_3_with_the_remedy(run):
    code, out, err = run("doctor", "--require", "counters")
    if code == 0:
        pytest.skip("this machine has counters")
    assert (code, run.code) == (3, "capability-missing")
    assert len(out.splitlines()) > 5
    assert err.startswith("rooflight: ") and err.count("\n") == 1
    wanted = json.loads(run("doctor", "--json")[1])["checks"]["counters_cupti"]
    assert wanted["detail"] in err and wanted["remedy"]


@pytest.fixture
def nobody():
    """Root may do everything, so these tests are somebody else for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def locked(run, tmp_path):
    """A folder that only its owner may enter; everything that is needed is imported before."""
    run("report", "none.json")
    folder = tmp_path / "locked"
    folder.mkdir()
    shutil.copy(recordings.path(RECORDING), folder / "run.json.gz")
    folder.chmod(0o000)
    yield folder
    folder.chmod(0o700)


def test_no_permission_is_one_line(run, locked, nobody):
    for arguments in (["report", locked / "run.json.gz"], ["compare", RECORDING, "-o", locked / "c.json"]):
        code, out, err = run(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert str(locked) in err
        refused = isinstance(run.error, PermissionError) or isinstance(run.error.__context__, PermissionError)
        assert refused or run.code == "no-permission"


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [ROOFLIGHT, "list", "models"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("rooflight: ") and done.stderr.count("\n") == 1
    assert os.strerror(errno.ENOSPC) in done.stderr


# --- what is said beside the result ---


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_drops_words_and_keeps_result_and_file(run, tmp_path, place):
    code, loud, said = run("estimate", "mnist-cnn", "-o", "loud.json")
    assert code == 0 and "loud.json" in said
    line = ["estimate", "mnist-cnn", "-o", "quiet.json"]
    code, out, err = run(*(["--quiet", *line] if place == "before" else [*line, "--quiet"]))
    assert (code, out, err) == (0, loud, "")
    assert (tmp_path / "quiet.json").exists()


def test_quiet_keeps_errors(run):
    code, out, err = run("estimate", "resnet5O", "--quiet")
    assert (code, out, run.code) == (2, "", "unknown-model")
    assert err.startswith("rooflight: ")


def test_the_programs_own_quiet_is_not_ours(run):
    code, out, err = run("run", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--quiet", "--debug")
    assert code == 0
    assert out == "['--quiet', '--debug']\n"
    assert err.startswith("rooflight: ") and err.count("\n") == 1
    code, out, _ = run("run", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--quiet")
    assert (code, out) == (0, "['--quiet']\n")


def at_terminal(*line, **environment) -> tuple[int, str]:
    """Exit code and everything that reaches a terminal of 100 columns, which is both outputs."""
    words = [str(word) for word in line]
    ours = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "", **environment}
    child, terminal = pty.fork()
    if child == 0:
        os.execve(words[0], words, ours)
    seen = b""
    try:
        while part := os.read(terminal, 65536):
            seen += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen.decode()


def test_colour_only_where_it_is_wanted():
    line = [str(ROOFLIGHT), "list", "devices", "h200"]
    code, seen = at_terminal(*line)
    assert code == 0 and "\x1b[1m" in seen
    for unwanted in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        code, plain = at_terminal(*line, **unwanted)
        assert code == 0 and "\x1b" not in plain and "NVIDIA H200" in plain
    piped = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout + piped.stderr


WORKING = """
import sys, click
from rooflight.commands.terminal import ProgramOptions, progress, say
@click.command()
def command():
    with progress("working", count="{task.completed:g} of {task.total:g}") as bar:
        bar.show("still working", 1, 2)
    say("wrote it")
command(obj=ProgramOptions(quiet="--quiet" in sys.argv), args=[])
"""


def test_a_bar_only_where_somebody_looks_and_wants_it():
    """It takes what it drew away again, with codes that a dumb terminal does not have."""
    line = [sys.executable, "-c", WORKING]
    code, seen = at_terminal(*line)
    assert code == 0 and "still working" in seen and "1 of 2" in seen and "\x1b[2K" in seen
    assert seen.endswith("wrote it\r\n")
    assert at_terminal(*line, TERM="dumb") == (0, "wrote it\r\n")
    assert at_terminal(*line, "--quiet") == (0, "")
    piped = subprocess.run(line, capture_output=True, text=True, check=True)
    assert (piped.stdout, piped.stderr) == ("", "wrote it\n")


@pytest.mark.parametrize("line", ["--help", "list devices", f"report {RECORDING}", "estimate mnist-cnn"])
def test_a_narrow_terminal_breaks_nothing(run, line):
    """60 columns: tables give way, and only what is there to be copied is longer."""
    code, out, _ = run(*line.split(), columns=60)
    assert code == 0
    wide = [text for text in out.splitlines() if len(text.rstrip()) > 60]
    assert len(wide) <= 0.15 * len(out.splitlines())


# --- Tab ---


def test_every_shell_has_its_script(run):
    for shell in ("bash", "zsh", "fish"):
        code, out, err = run("completion", shell)
        assert (code, err) == (0, "")
        assert "_ROOFLIGHT_COMPLETE=" in out and "rooflight" in out
    assert 'string split --max 1 ","' in out, "fish must not cut h200,a100 in two"


def completed(line: str, words: list[str], folder: Path) -> list[str]:
    """What bash offers for the line; `words` as bash cuts it, at colons too."""
    script = (
        f'eval "$({ROOFLIGHT} completion bash)"\n'
        f"COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}\n"
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        f'compopt() {{ :; }}\n_rooflight_completion {ROOFLIGHT}\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(("line", "words", "offered"), [
    ("rooflight es", None, ["estimate"]),
    ("rooflight estimate mnist", None, ["mnist-cnn", "mnist-cnn-5x5"]),
    ("rooflight estimate resnet50 --ba", None, ["--batch"]),
    ("rooflight estimate resnet50 --step ", ["rooflight", "estimate", "resnet50", "--step", ""], ["infer", "train", "decode"]),
    ("rooflight predict resnet50 --on h200,l4", None, ["h200,l4", "h200,l40", "h200,l40s"]),
    ("rooflight report recorded:h200/gpt2-train", ["rooflight", "report", "recorded", ":", "h200/gpt2-train"],
     ["h200/gpt2-train-bf16", "h200/gpt2-train-fp32"]),
    ("rooflight report mnist-cnn,mnist-cnn-", None, ["mnist-cnn,mnist-cnn-5x5"]),
    ("rooflight compare recorded:h200/gpt2-train-b", ["rooflight", "compare", "recorded", ":", "h200/gpt2-train-b"],
     ["h200/gpt2-train-bf16"]),
    ("rooflight report x --chart roof", None, ["roofline"]),
    ("rooflight report x --to p", None, ["png", "pdf"]),
    ("rooflight estimate resnet50 --explain layer1.0.conv", None, ["layer1.0.conv1", "layer1.0.conv2", "layer1.0.conv3"]),
    ("rooflight list devices h2", None, ["h20", "h200", "h200-nvl"]),
    ("rooflight completion ", ["rooflight", "completion", ""], ["bash", "zsh", "fish"]),
])  # fmt: skip
def test_bash_completes(tmp_path, line, words, offered):
    assert completed(line, words or line.split(), tmp_path) == offered


def test_words_are_taught_to_parameters_that_there_are():
    known = {verb: {parameter.name for parameter in cli.get_command(None, verb).params} for verb in VERBS}
    anywhere = set().union(*known.values())
    assert [(verb, name) for verb, name in _WORDS if name not in (known[verb] if verb else anywhere)] == []


def test_bash_offers_files_beside_recordings(tmp_path):
    (tmp_path / "mine.json").touch()
    (tmp_path / "study").mkdir()
    offered = completed("rooflight report ", ["rooflight", "report", ""], tmp_path)
    assert {"mine.json", "study/"} < set(offered)
    assert [name for name in offered if name.startswith("recorded:")] == [
        f"recorded:{name}" for name in recordings.names()
    ]


def test_tab_never_waits_for_torch():
    for line in ("rooflight ", "rooflight estimate resnet50 --explain la", "rooflight report recorded:"):
        environment = {**os.environ, "_ROOFLIGHT_COMPLETE": "bash_complete", "ROOFLIGHT_LINE": line}
        command = [sys.executable, "-c", TORCH_STAYS_OUT]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) >= min(4, len(VERBS))


@pytest.mark.parametrize(("arguments", "package"), [
    (["estimate", "torchvision:resnet18"], "torchvision"),
    (["estimate", "timm:resnet18"], "timm"),
    (["estimate", "hf:bert"], "transformers"),
    (["study", "mnist-cnn", "--launcher", "slurm", "-o", "s"], "rooflight[slurm]"),
])  # fmt: skip
def test_extras_are_optional(run, monkeypatch, arguments, package):
    """Each as if it were not there: what it is for says so in one line, with the command that installs it."""
    for name in ("torchvision", "timm", "transformers", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = run(*arguments)
    assert (code, out, run.code) == (2, "", "package-missing")
    assert err.startswith("rooflight: ") and err.count("\n") == 1
    assert f"pip install {package}" in err.replace("'", "")
