"""A real Slurm on loopback: munged, slurmctld and three slurmd, in a folder of their own, gone when the tests are.

The daemons are children of a keeper, a second process that reads commands from its standard input. When the tests end,
however they end, that input ends too; the keeper then kills every process that came from it, jobs included, and removes
the folder. Run as a program, this file is the keeper.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NODES = ("node1", "node2", "node3")
CONTROLLER = "slurmctld"
PARTITION = "gpu"
OF_NODES = {"old": ("node3",), "new": ("node1", "node2")}
"""Partitions of some nodes only, as clusters have them for every kind of GPU."""
GPUS = ("/dev/null", "/dev/zero")
"""Slurm wants a character device for every GPU, and looks no further."""
MOST_IN_ARRAY = 9
_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
_PATIENCE_S = 600
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_CONF = """\
ClusterName=rooflight
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# How long a requeued job waits before it may start again is the life of its credential; 120 seconds unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Larger studies are cut into several arrays.
MaxArraySize={largest}
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
# Only jobs that ask for it are requeued.
JobRequeue=0
ReturnToService=2
SlurmdTimeout=60
KillWait=2
CompleteWait=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# Nodes have more processors than the machine, so that it is their GPUs that jobs wait for.
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{partitions}
"""


def why_not() -> str | None:
    """What stands in the way of a cluster on this machine, in words; `None` if nothing does."""
    missing = [name for name in _NEEDED if _found(name) is None]
    if missing:
        return f"no real Slurm here, {', '.join(missing)} missing: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd starts jobs only as root"
    return None


def _found(name: str) -> str | None:
    """Daemons are not always on the PATH of users."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Cluster:
    """The cluster as tests see it; made by `running`."""

    def __init__(self, folder: Path, keeper: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._keeper = keeper

    def slurm(self, *command: str) -> str:
        """The output of a command of Slurm's: `cluster.slurm("squeue", "--noheader")`."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE_S)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self, *, states: str = "pending,running,completing") -> dict[str, tuple[str, str]]:
        """State and node of every task, by its job id."""
        listed = self.slurm("squeue", "--noheader", "--array", f"--states={states}", "--format=%i|%T|%N")
        fields = [line.split("|") for line in listed.splitlines()]
        return {job: (state, node) for job, state, node in fields}

    def node_state(self, node: str) -> str:
        return self.slurm("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip()

    def drain(self, node: str) -> None:
        self.slurm("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")

    def pull_the_plug(self, node: str) -> None:
        """Everything on the node is dead at once, and the controller notices."""
        self._tell(f"stop {node}")
        self.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def stop_controller(self) -> None:
        """Nodes and their jobs go on, and nobody answers."""
        self._tell(f"stop {CONTROLLER}")

    def start_controller(self) -> None:
        self._tell(f"start {CONTROLLER}")

    def repair(self) -> None:
        """No jobs, every node idle: as after the start; but a controller that was away leaves traces."""
        for node in NODES:
            self._tell(f"start {node}")
        try:
            wait_for(self._is_as_new, "idle nodes without jobs")
        except TimeoutError as error:
            states = {node: self.node_state(node) for node in NODES}
            raise TimeoutError(f"{error}: {states}, {self.jobs()}\n{self.logs()}") from error

    def _is_as_new(self) -> bool:
        """Or what is missing is asked for."""
        try:
            jobs, states = self.jobs(), {node: self.node_state(node) for node in NODES}
            for job in jobs:
                self.slurm("scancel", job)
            for node in [node for node, state in states.items() if state.startswith(("drain", "down"))]:
                self.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        except RuntimeError:  # it does not answer yet, or what was asked for has happened by itself
            return False
        return not jobs and set(states.values()) == {"idle"}

    def _tell(self, command: str) -> None:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(f"{command}\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline().strip()
        if answer != "done":
            raise RuntimeError(f"the keeper of the cluster on {command!r}: {answer or 'no answer'}\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of every daemon."""
        tails = [f"{log.name}:\n" + "\n".join(log.read_text().splitlines()[-15:]) for log in self.folder.glob("*.log")]
        return "\n".join(tails)


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = _PATIENCE_S) -> None:
    """Until it is so; the limit is only there so that a broken test ends."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """A cluster of its own for whoever asks: two at the same time share nothing, not even a port."""
    folder = Path(tempfile.mkdtemp(prefix="rooflight-slurm-"))
    keeper = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests; the keeper ends after them
    )
    cluster = Cluster(folder, keeper)
    try:
        with _one_at_a_time():
            cluster._tell("begin")
            wait_for(lambda: _all_idle(cluster), "idle nodes")
        yield cluster
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{cluster.logs()}") from error
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=_PATIENCE_S)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Ports are chosen, then taken: nobody else on this machine may choose in between. Leaves no lock file."""
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _all_idle(cluster: Cluster) -> bool:
    try:
        return {cluster.node_state(node) for node in NODES} == {"idle"}
    except RuntimeError:  # the controller does not answer yet
        return False


class Keeper:
    """Starts the daemons as its own children, in the foreground, and ends with all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        # What daemons and jobs leave behind becomes this process's child, and so can be found.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def begin(self) -> None:
        self._write_configuration()
        folder = self._folder
        self._start(
            "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed",
        )  # fmt: skip
        wait_for((folder / "munge.socket").exists, "munged")
        for daemon in (CONTROLLER, *NODES):
            self.start(daemon)

    def start(self, node: str) -> None:
        """A node, or the controller; if it is not there."""
        daemon = self._daemons.get(node)
        if daemon is None or daemon.poll() is not None:
            which = (CONTROLLER, "-D") if node == CONTROLLER else ("slurmd", "-D", "-N", node)
            self._start(*which, "-f", f"{self._folder}/slurm.conf", known_as=node)

    def stop(self, node: str) -> None:
        """A node as if its plug were pulled; the controller in good order, or it would forget what it was doing."""
        daemon = self._daemons.pop(node)
        if node == CONTROLLER:
            daemon.terminate()
            daemon.wait(_PATIENCE_S)
            return
        daemon.send_signal(signal.SIGSTOP)  # or it could start one more
        _kill_all_below(daemon.pid)
        daemon.kill()
        daemon.wait()

    def end(self) -> None:
        _kill_all_below(os.getpid())
        with contextlib.suppress(ChildProcessError):  # all are buried
            while True:
                os.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write_configuration(self) -> None:
        folder = self._folder
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        controller, *ports = _free_ports(1 + len(NODES))
        host = socket.gethostname().split(".")[0]
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:{len(GPUS)}"
            for node, port in zip(NODES, ports, strict=True)
        ]
        for node in NODES:
            (folder / f"spool-{node}").mkdir()
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in GPUS))
        (folder / "slurm.conf").write_text(
            _CONF.format(folder=folder, host=host, port=controller, user=getpass.getuser(), nodes="\n".join(nodes),
                         partition=PARTITION, largest=MOST_IN_ARRAY + 1,
                         partitions="\n".join(f"PartitionName={name} Nodes={','.join(nodes)} MaxTime=INFINITE State=UP"
                                              for name, nodes in OF_NODES.items()))
        )  # fmt: skip

    def _start(self, program: str, *arguments: str, known_as: str = "") -> None:
        path = _found(program)
        assert path is not None
        self._daemons[known_as or program] = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SLURM_CONF": f"{self._folder}/slurm.conf"},
            preexec_fn=_as_a_daemon_of_ours,
        )


def _as_a_daemon_of_ours() -> None:
    """Dies with the keeper, even if that is killed; a node's jobs stay below their slurmd."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _kill_all_below(root: int) -> None:
    """Until there are none: one may start another while it is being killed."""
    while below := _below(root):
        for process in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def _below(root: int) -> list[int]:
    """Every living descendant of a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in brackets, may contain anything.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to outgoing connections, so that none of these takes one meanwhile."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as trial:
            try:
                trial.bind(("", port))
            except OSError:
                continue
            if port not in ports:
                ports.append(port)
    return ports


def main() -> None:
    """Commands from standard input, one a line: `begin`, `start NODE`, `stop NODE`; until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keeper = Keeper(Path(sys.argv[1]))
    verbs = {"begin": keeper.begin, "start": keeper.start, "stop": keeper.stop}
    try:
        for line in sys.stdin:
            verb, *arguments = line.split()
            try:
                verbs[verb](*arguments)  # type: ignore[operator]
                answer = "done"
            except (OSError, RuntimeError, TimeoutError) as error:
                answer = f"{type(error).__name__}: {error}"
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.write(f"{answer}\n")
                sys.stdout.flush()
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
