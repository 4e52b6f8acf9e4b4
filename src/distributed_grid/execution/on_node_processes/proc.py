"""The kernel's files about processes, read one by one: a process may end in between."""

import contextlib
import os
import time
from typing import Final, NamedTuple

TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_KERNEL_THREAD: Final = 0x00200000
_NETWORK: Final = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "gluster",
    "9p",
    "virtiofs",
    "afs",
    "fuse.",
)


class Stat(NamedTuple):
    pid: int
    name: str
    state: str
    parent: int
    born: int
    """Ticks after the boot."""
    ticks: int
    """CPU time so far."""
    memory: int
    is_kernel: bool

    @property
    def created_at(self) -> float:
        return self.born / TICKS


def read(path: str) -> str:
    """The text of a small file; empty if it does not exist or is not readable."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read().decode(errors="surrogateescape")
    return ""


def link(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)  # text, not a path: it may say socket:[123]
    return ""


def stat_of(pid: int) -> Stat | None:
    text = read(f"/proc/{pid}/stat")
    if not text:
        return None
    begin, end = text.index("("), text.rindex(")")
    fields = text[end + 2 :].split()
    return Stat(
        pid=pid,
        name=text[begin + 1 : end],
        state=fields[0],
        parent=int(fields[1]),
        born=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
        memory=int(fields[21]) * _PAGE,
        is_kernel=bool(int(fields[6]) & _KERNEL_THREAD),
    )


def everything() -> dict[int, Stat]:
    """All processes of this machine, or of this container."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: stat for pid in pids if (stat := stat_of(pid)) is not None}


def waited_s(pid: int) -> float:
    """How long its threads were ready to run but had no core; zero where the kernel does not count this."""
    total = 0
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    for thread in threads:
        fields = read(f"/proc/{pid}/task/{thread}/schedstat").split()
        total += int(fields[1]) if len(fields) > 1 else 0
    return total / 1e9


def same(pid: int, created_at: float) -> Stat | None:
    """The process with this id and creation time; None if it has ended, even if its id was reused."""
    found = stat_of(pid)
    return found if found is not None and abs(found.created_at - created_at) < 0.5 / TICKS else None


def children_in(stats: dict[int, Stat]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    return children


def tree(root: int, stats: dict[int, Stat], children: dict[int, list[int]] | None = None) -> list[Stat]:
    """A process and its descendants, parents first. `children`: from `children_in`, for repeated calls."""
    children = children_in(stats) if children is None else children
    found, left = [], [root]
    while left:
        pid = left.pop(0)
        if pid in stats:
            found.append(stats[pid])
            left += [child for child in children.get(pid, ()) if child != pid]
    return found


RAY_NODE: Final = ("raylet", "gcs_server")


def family_of(root: int, stats: dict[int, Stat], children: dict[int, list[int]] | None = None) -> list[Stat]:
    """A process and its descendants, except Ray nodes: what runs below a raylet belongs to that node."""
    children = children_in(stats) if children is None else children
    found, left = [], [root]
    while left:
        pid = left.pop(0)
        if pid in stats and (pid == root or stats[pid].name not in RAY_NODE):
            found.append(stats[pid])
            left += [child for child in children.get(pid, ()) if child != pid]
    return found


def command_of(pid: int) -> list[str]:
    text = read(f"/proc/{pid}/cmdline")
    return text.removesuffix("\0").split("\0") if text else []


def environment_of(pid: int) -> dict[str, str]:
    """The variables that the process was started with."""
    pairs = (entry.partition("=") for entry in read(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, is_one, value in pairs if is_one and name}


def uid_of(pid: int) -> int:
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    return -1


def user_name(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def machine() -> str:
    """Identifies a view of processes and files: the kernel's boot id and this process's mount namespace."""
    return f"{read('/proc/sys/kernel/random/boot_id').strip()} {link('/proc/self/ns/mnt')}"


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def own_raylet() -> int:
    pid = os.environ.get("RAY_RAYLET_PID", "")
    return int(pid) if pid.isdigit() and os.path.exists(f"/proc/{pid}") else os.getppid()


def network_mounts() -> list[str]:
    """The mount points of file systems that other machines may also mount."""
    lines = (line.split() for line in read("/proc/self/mounts").splitlines())
    return [fields[1] for fields in lines if len(fields) > 2 and fields[2].startswith(_NETWORK)]


def mount_points() -> list[str]:
    return [line.split()[1] for line in read("/proc/self/mounts").splitlines() if len(line.split()) > 2]


def file_facts(path: str, mounts: dict[str, bool]) -> dict[str, object] | None:
    """`mounts`: mount point -> whether it is a network's."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    is_folder = os.path.isdir(path)
    return {
        "path": path,
        "is_folder": is_folder,
        "size": 0 if is_folder else found.st_size,
        "inode": found.st_ino,
        "is_network": _is_network(os.path.realpath(path), mounts),
        "may_write": os.access(path, os.W_OK),
        "may_execute": os.access(path, os.X_OK),
    }


def mounts_here() -> dict[str, bool]:
    network = set(network_mounts())
    return {point: point in network for point in mount_points()}


def _is_network(path: str, mounts: dict[str, bool]) -> bool:
    """Decided by the nearest mount point above the path."""
    while path not in mounts and path not in ("/", ""):
        path = os.path.dirname(path)
    return mounts.get(path, False)
