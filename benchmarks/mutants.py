"""Show mutants of the code to the tests: how many of 200 one-line mistakes in a room do they catch?

    python benchmarks/mutants.py --contexts         first: which lines each fast test reaches; goes on with build/mutants
    python benchmarks/mutants.py ROOM ... [--write]  judge --count mutants of rooms; --write: keep the share in results/mutants.json

Every line that can be mutated is as likely as another of its room; `mutations.py` says what is done to it. A mutant is
shown to the tests that reach its line: the quickest and most specific first, two of a test function before a third of
any, at most 40 tests and 6 seconds of CPU time together. It is caught if one fails, if the module cannot be imported or
if the program does not end; it survives if all pass. Code that runs at import is reached by the tests that reach a use of
what it defines. A test counts if it takes at most 3 seconds of CPU time, and if it passes on the unchanged code.
Programs that tests start see the unchanged source. Each mutant is a fork of a process that has loaded torch but nothing of
the package; the working tree is never written to. With 200 mutants the share is known to about 3 points.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import json
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from functools import cached_property
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from mutations import Mutation, mutations

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results/mutants.json"
sys.path[:] = [path for path in sys.path if Path(path).resolve() != FOLDER]  # its coverage.py hides the package
TESTS, SECONDS, LONGEST, START = 40, 6.0, 3.0, 20.0
MEMORY = 8 << 30
MAY_LOSE = 2.0
"""Points that a rebuild may lose."""

Drawn = tuple[Path, int, int]
"""A file, a line, and which of its changes."""


class Checkout:
    """One package in src/, its tests in tests/, and what is known of them in build/mutants."""

    def __init__(self, root: Path) -> None:
        self.root, self.build = root, root / "build/mutants"
        self.package = next(root.glob("src/*/__init__.py")).parent
        self.rooms = tomllib.loads((root / "budgets.toml").read_text())

    def preload(self) -> None:
        """Load what the package and its tests import from others, as far as it can be."""
        source = str(self.root / "src")
        os.environ |= {"OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6", "PYTHONPATH": source}
        os.environ["PYTEST_ADDOPTS"] = ""  # the caller's options may be of plugins that are off here
        sys.path[:0] = [source, str(self.root)]
        texts = [file.read_text() for folder in ("src", "tests") for file in (self.root / folder).rglob("*.py")]
        names = {name for text in texts for name in re.findall(r"^ *(?:import|from) (\w[\w.]*)", text, re.MULTILINE)}
        for name in sorted(names):
            if name.partition(".")[0] not in (self.package.name, "tests"):
                with contextlib.suppress(Exception), open(os.devnull, "w") as out, contextlib.redirect_stderr(out):
                    importlib.import_module(name)
        assert self.package.name not in sys.modules, "loaded before it can be mutated"
        gc.freeze()

    def drawn(self, room: str, seed: int) -> Iterator[Drawn]:
        """Mutants that compile, each of another line, in an order that the seed alone chooses."""
        files = [
            file for file in sorted(self.package.rglob("*.py"))
            if any(fnmatch(str(file.relative_to(self.root)), path) for path in self.rooms[room]["paths"])
        ]  # fmt: skip
        lines = [(file, line, len(changes)) for file in files for line, changes in mutations(ast.parse(file.read_text())).items()]  # fmt: skip
        (rng := random.Random(seed)).shuffle(lines)
        mutants = ((file, line, rng.randrange(changes)) for file, line, changes in lines)
        return (mutant for mutant in mutants if made(mutant)[2] is not None)

    # Which test reaches which lines.

    def record_contexts(self) -> None:
        """Trace the fast tests, four files in a fork."""
        import coverage

        parts, slow = self.build / "parts", self.build / "slow.txt"
        parts.mkdir(parents=True, exist_ok=True)
        slow.touch()
        files = sorted(map(str, (self.root / "tests").rglob("test_*.py")))

        def record(start: int) -> None:
            part = parts / f"{start}.json"
            part.with_suffix(".sqlite").unlink(missing_ok=True)

            def action(folder: Path) -> dict[str, float]:
                traced = coverage.Coverage(str(part.with_suffix(".sqlite")), source_pkgs=[self.package.name], config_file=False)  # fmt: skip
                recorder = ContextRecorder(traced, set(slow.read_text().splitlines()))
                code = self.run_pytest(folder, recorder, "-m", "not slow", *files[start : start + 4])
                assert code in (0, 1, 5), f"pytest ends with {code}"
                traced.stop()
                traced.save()
                with slow.open("a") as out:
                    out.writelines(f"{test}\n" for test, seconds in recorder.seconds.items() if seconds > LONGEST)
                return {test: seconds for test, seconds in recorder.seconds.items() if test not in recorder.failed}

            if isinstance(seconds := forked(action, 600), dict):
                part.write_text(json.dumps(seconds))
            print(f"{time.strftime('%T')} {start}: {seconds if isinstance(seconds, str) else len(seconds)}", flush=True)

        two_at_a_time([start for start in range(0, len(files), 4) if not (parts / f"{start}.json").exists()], record)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """CPU time of the tests that count."""
        parts = (self.build / "parts").glob("*.json")
        return {test: seconds for part in parts for test, seconds in json.loads(part.read_text()).items()}

    @cached_property
    def reach(self) -> Counter[str]:
        """How many lines each test reaches."""
        reach = Counter[str]()
        for test, lines in self._rows("true"):
            reach[test] += lines.bit_count()
        return reach

    def _rows(self, condition: str, *values: str) -> Iterator[tuple[str, int]]:
        """Tests and the lines they reach, as the bits of a number."""
        join = "line_bits join context on context.id = context_id join file on file.id = file_id"
        for part in (self.build / "parts").glob("*.json"):
            with contextlib.closing(sqlite3.connect(part.with_suffix(".sqlite"))) as database:
                for test, bits in database.execute(f"select context, numbits from {join} where {condition}", values):
                    if test in self.seconds:
                        yield test, int.from_bytes(bits, "little")

    def of(self, file: Path, lines: Iterable[int]) -> set[str]:
        """Tests that reach one of the lines of a file."""
        wanted = sum(1 << line for line in set(lines))
        return {test for test, reached in self._rows("path = ?", str(file)) if reached & wanted} if wanted else set()

    def reaching(self, file: Path, mutation: Mutation) -> set[str]:
        """Tests that reach the line of a mutation, or a use of what it defines: in its file, else anywhere."""
        if mutation.names is None:
            return self.of(file, [getattr(mutation.old, "lineno", 0)]) or self.of(file, mutation.lines)
        for files in ([file], sorted(self.package.rglob("*.py")) if mutation.names else ()):
            if tests := set[str]().union(
                *(self.of(path, lines_of_uses(path.read_text(), mutation.names)) for path in files)
            ):
                return tests
        return set()

    def chosen(self, tests: Iterable[str]) -> list[str]:
        """Those that are run, in their order."""
        by_cost = sorted(tests, key=lambda test: ((self.seconds[test] + 0.02) * self.reach[test], test))
        seen, turns, seconds = Counter[str](), dict[str, int](), 0.0
        for test in by_cost:
            turns[test] = seen[test.partition("[")[0]] // 2
            seen[test.partition("[")[0]] += 1
        chosen = sorted(by_cost, key=turns.__getitem__)[:TESTS]
        for number, test in enumerate(chosen):
            seconds += self.seconds[test]
            if number and seconds > SECONDS:
                return chosen[:number]
        return chosen

    # What the tests make of a mutant.

    def run_pytest(self, folder: Path, plugin: object, *arguments: str) -> int:
        """Run tests in this process, which is a fork."""
        os.chdir(self.root)
        plain = ["-q", "--tb=native", *(f"-pno:{name}" for name in ("cacheprovider", "randomly", "xdist", "cov"))]
        folders = [f"--rootdir={self.root}", f"--basetemp={folder}/tests"]
        return int(pytest.main([*plain, *folders, *arguments], [plugin]))

    def failure(self, tests: Sequence[str], file: Path, code: CodeType | None) -> str:
        """The test that fails when `file` has another code; "" if all pass; or how it ends else."""

        def action(folder: Path) -> tuple[int, str]:
            unchanged, first = SourceFileLoader.get_code, FirstFailure()

            def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
                return code if code is not None and loader.path == str(file) else unchanged(loader, name)

            SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
            return self.run_pytest(folder, first, "-x", "--hypothesis-seed=0", *tests), first.test

        outcome = forked(action, START + 3 * sum(self.seconds.get(test, LONGEST) for test in tests))
        if isinstance(outcome, str):
            return outcome
        if outcome[0] == 4 and any("[" in test for test in tests):  # the mutant renames cases of a test
            return self.failure(list(dict.fromkeys(test.partition("[")[0] for test in tests)), file, code)
        return outcome[1] or ("" if outcome[0] in (0, 5) else "import")

    def verdict(self, mutant: Drawn) -> list[Any]:
        """The place, the change, how many tests it was shown to, and what caught it."""
        mutation, words, code = made(mutant)
        reaching = self.reaching(mutant[0], mutation)
        while tests := self.chosen(reaching):
            by = self.failure(tests, mutant[0], code)
            if not by or not (unchanged := self.failure([by] if "::" in by else tests, mutant[0], None)):
                break
            if "::" not in by:
                raise RuntimeError(f"{unchanged} without a mutant of {mutant[0]}, too: {tests}")
            reaching -= {test for test in tests if test == by or test.partition("[")[0] == by}  # fails by itself
        return [f"{mutant[0].relative_to(self.package)}:{mutant[1]}", words, len(tests), by if tests else ""]

    def judged(self, room: str, mutants: Sequence[Drawn], minutes: float) -> list[list[Any]]:
        """Verdicts, as far as the time allows."""
        end, log = time.monotonic() + 60 * minutes, self.build / f"{room}.jsonl"
        log.write_text("")
        assert self.reach  # read before the forks

        def record(number: int) -> None:
            if time.monotonic() < end:
                verdict = self.verdict(mutants[number])
                with log.open("a") as out:
                    out.write(json.dumps([number, *verdict]) + "\n")

        two_at_a_time(range(len(mutants)), record)
        return [row for _, *row in sorted(map(json.loads, log.read_text().splitlines()))]


def made(mutant: Drawn) -> tuple[Mutation, str, CodeType | None]:
    """A mutant's change, in words, and its code."""
    file, line, change = mutant
    tree = ast.parse(file.read_text())
    mutation = mutations(tree)[line][change]
    return mutation, str(mutation), mutation.compiled(tree, str(file))


def lines_of_uses(source: str, names: Sequence[str]) -> set[int]:
    """Lines inside functions that have one of the names, or are of a function of that name; without names, all."""
    word = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b" if names else "")
    lines, found = source.splitlines(), set[int]()
    for node in ast.walk(ast.parse(source)) if word.search(source) else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            found.update(line for line in body if node.name in names or word.search(lines[line - 1]))
    return found


class FirstFailure:
    """Keeps the first test that fails."""

    test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.test = self.test or report.nodeid


class ContextRecorder:
    """Traces each test by itself, and stops one that takes too long."""

    def __init__(self, coverage: Any, slow: set[str]) -> None:
        self.coverage, self.slow, self.seconds, self.failed = coverage, slow, dict[str, float](), set[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.slow]

    def pytest_collection_finish(self) -> None:
        def stop(_: int, frame: FrameType | None) -> None:
            while frame is not None:
                if "/coverage/" in frame.f_code.co_filename:  # which may hold its lock
                    signal.setitimer(signal.ITIMER_PROF, 0.01)
                    return
                frame = frame.f_back
            raise TimeoutError(f"takes more than {LONGEST:g} s")

        signal.signal(signal.SIGPROF, stop)
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if sys.gettrace() is None:  # the last test took it away
            self.coverage.stop()
            self.coverage.start()
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LONGEST)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.seconds[item.nodeid] = time.process_time() - start

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def forked(action: Callable[[Path], Any], cpu_s: float) -> Any:
    """The result of an action in a fork, which gets a folder of its own; "timeout" or "crash" if it does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        if not (child := os.fork()):
            with contextlib.ExitStack() as stack:
                stack.callback(os._exit, 0)
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 5))
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
                signal.alarm(int(10 * cpu_s))
                output = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ |= {
                    "XDG_CACHE_HOME": f"{folder}/cache",
                    "HYPOTHESIS_STORAGE_DIRECTORY": f"{folder}/hypothesis",
                }
                Path(folder, "result").write_text(json.dumps(action(Path(folder))))
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # programs that tests left running
        if Path(folder, "result").exists():
            return json.loads(Path(folder, "result").read_text())
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return "timeout" if killed in (signal.SIGXCPU, signal.SIGALRM) else "crash"


def two_at_a_time(jobs: Iterable[int], action: Callable[[int], None]) -> None:
    """Do each job in a fork of its own."""
    running = failed = 0
    for job in jobs:
        if running == 2:
            failed, running = failed or os.wait()[1], running - 1
        if not os.fork():
            status = 1
            try:
                action(job)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        running += 1
    for _ in range(running):
        failed = failed or os.wait()[1]
    if failed:
        sys.exit("a job failed")


def judge(checkout: Checkout, room: str, asked: argparse.Namespace) -> str:
    """Judge a room, print what survives, and keep or compare its row; the reason if it lost too much."""
    start = time.monotonic()
    verdicts = checkout.judged(room, list(islice(checkout.drawn(room, asked.seed), asked.count)), asked.minutes)
    for place, change, tests, by in verdicts:
        print(f"{by or ('survived' if tests else 'not reached')}  {place}  {change}")
    log = ["git", "log", "-1", "--format=%h", "--abbrev=8", "."]
    caught = sum(bool(by) for *_, by in verdicts)
    row: dict[str, Any] = {
        "seed": asked.seed, "asked": asked.count, "count": len(verdicts), "caught": caught, "percent": round(100 * caught / len(verdicts), 1),
        "not reached": sum(not tests for _, _, tests, _ in verdicts),
        **{how: sum(by == how for *_, by in verdicts) for how in ("import", "timeout", "crash")},
        "seconds": round(time.monotonic() - start),
        "commit": subprocess.run(log, cwd=checkout.package, capture_output=True, text=True).stdout.strip(),
    }  # fmt: skip
    print(f"{room}: {row}", flush=True)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before = rows.get(room, row)["percent"]
    if before - row["percent"] > MAY_LOSE:
        return f"{room}: {row['percent']}% are caught, {before}% before"
    if asked.write:
        RESULTS.write_text(json.dumps({**rows, room: row}, indent=1) + "\n")
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM")
    parser.add_argument("--contexts", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=30, help="for a room")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--root", type=Path, default=FOLDER.parent, help="another checkout")
    asked = parser.parse_args()
    checkout = Checkout(asked.root.resolve())
    if not (asked.rooms or asked.contexts) or set(asked.rooms) - checkout.rooms.keys():
        parser.error(f"rooms of budgets.toml: {'; '.join(checkout.rooms)}")
    checkout.preload()
    if asked.contexts:
        checkout.record_contexts()
    if losses := list(filter(None, [judge(checkout, room, asked) for room in asked.rooms])):
        sys.exit("\n".join(losses))


if __name__ == "__main__":
    main()
