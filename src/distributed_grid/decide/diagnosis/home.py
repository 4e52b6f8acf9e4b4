"""`GRID_HOME`: whether state is safe there, from others and from a full or shared disk."""

from typing import Final

from distributed_grid.decide.diagnosis.finding import Finding, fail, ok, skip, warn
from distributed_grid.model.checkup_facts import HomeFacts

_GB: Final = 2**30
_DISK_WARN: Final = _GB
_DISK_FAIL: Final = _GB // 10

_SHARED_FILESYSTEMS: Final = frozenset(
    (
        *("nfs", "nfs3", "nfs4"),
        *("cifs", "smbfs", "smb2", "smb3", "ncpfs", "afs"),
        *("9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs"),
        *("gfs2", "ocfs2"),
    )
)


def folder(home: HomeFacts) -> Finding:
    if home.error:
        return fail("home", f"{home.path}: {home.error}", "Set GRID_HOME to a folder that you can write.")
    if home.damaged:
        return fail(
            "home",
            f"{home.path}: " + "; ".join(home.damaged),
            "Stop what still runs (grid cluster stop, or by hand), then remove the damaged file.",
        )
    if not home.exists:
        return ok("home", f"{home.path} is not there yet; it can be created")
    mode = f"{home.path} is writable, mode {home.mode:04o}"
    if home.mode & 0o022:
        return fail("home", f"{mode}: others can change grid's state", f"chmod 700 {home.path}")
    if home.mode & 0o077:
        return warn("home", f"{mode}: others can look into it", f"chmod 700 {home.path}")
    return ok("home", mode)


def filesystem(home: HomeFacts) -> Finding:
    check = "home filesystem"
    if not home.filesystem:
        return skip(check, f"it is not known what {home.path} is on")
    where = f"{home.filesystem} at {home.mount_point}"
    if is_shared(home.filesystem):
        return warn(
            check,
            f"{where} is shared between machines: a lock may not keep a second writer out, "
            "and fsync may not have written when it says so",
            "Set GRID_HOME to a folder on a local disk of the head node.",
        )
    return ok(check, f"{where} is local")


def is_shared(filesystem: str) -> bool:
    """Whether other machines may write there at the same time."""
    return filesystem in _SHARED_FILESYSTEMS or filesystem.startswith("fuse.")


def disk_space(home: HomeFacts) -> Finding:
    if home.free_bytes is None:
        return skip("disk space", f"it is not known how much is free for {home.path}")
    free = f"{home.free_bytes / _GB:.1f} GB free for {home.path}"
    if home.free_bytes >= _DISK_WARN:
        return ok("disk space", free)
    say = fail if home.free_bytes < _DISK_FAIL else warn
    return say(
        "disk space",
        f"{free}: without space nothing can be granted, since every change is written down first",
        f"Make room on {home.mount_point or home.path}, or set GRID_HOME to a folder elsewhere.",
    )
