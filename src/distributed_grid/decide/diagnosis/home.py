"""Checks of `GRID_HOME`: whether state and secrets are safe there, and files that wait for a decision."""

from collections.abc import Iterable
from shlex import quote
from typing import Final

from distributed_grid.model.checkup_facts import HomeFacts, KeptFile, SecretFile, SecretKind
from distributed_grid.model.findings import Code, Finding, fail, ok, skip, warn
from distributed_grid.model.times import span

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
        return fail(Code.HOME, f"{home.path}: {home.error}", "Set GRID_HOME to a folder that you can write.")
    if home.damaged:
        return fail(
            Code.HOME,
            f"{home.path}: " + "; ".join(home.damaged),
            "Stop what still runs (grid cluster stop, or by hand), then remove the damaged file.",
        )
    if not home.exists:
        return ok(Code.HOME, f"{home.path} is not there yet; it can be created")
    mode = f"{home.path} is writable, mode {home.mode:04o}"
    if home.mode & 0o022:
        return fail(Code.HOME, f"{mode}: other users can change grid's state", f"chmod 700 {home.path}")
    if home.mode & 0o077:
        return warn(Code.HOME, f"{mode}: other users can read it", f"chmod 700 {home.path}")
    return ok(Code.HOME, mode)


def filesystem(home: HomeFacts) -> Finding:
    check = Code.HOME_FILESYSTEM
    if not home.filesystem:
        return skip(check, f"the file system of {home.path} is unknown")
    where = f"{home.filesystem} at {home.mount_point}"
    if is_shared(home.filesystem):
        return warn(
            check,
            f"{where} is shared between machines: a lock may not keep a second writer out, "
            "and fsync may report a write too early",
            "Set GRID_HOME to a folder on a local disk of the head node.",
        )
    return ok(check, f"{where} is local")


def is_shared(filesystem: str) -> bool:
    """Whether other machines may write there at the same time."""
    return filesystem in _SHARED_FILESYSTEMS or filesystem.startswith("fuse.")


def disk_space(home: HomeFacts) -> Finding:
    if home.free_bytes is None:
        return skip(Code.DISK_SPACE, f"the free space for {home.path} is unknown")
    free = f"{home.free_bytes / _GB:.1f} GB free for {home.path}"
    if home.free_bytes >= _DISK_WARN:
        return ok(Code.DISK_SPACE, free)
    say = fail if home.free_bytes < _DISK_FAIL else warn
    return say(
        Code.DISK_SPACE,
        f"{free}: without space nothing can be granted, since every change is written down first",
        f"Make room on {home.mount_point or home.path}, or set GRID_HOME to a folder elsewhere.",
    )


_WHO_READS_IT = {
    SecretKind.OWN_TOKEN: "can do everything that grid can",
    SecretKind.USERS_TOKENS: "learns the users and their rights, but no token",
    SecretKind.LOGIN: "can act as you at the controller where you are logged in",
    SecretKind.USER_TOKEN: "can do what its user may",
    SecretKind.TLS_KEY: "can impersonate the controller",
}
_NEW_ONE = {
    SecretKind.OWN_TOKEN: "remove it and start grid again, which makes a new one",
    SecretKind.LOGIN: "have its token revoked (grid token revoke ID), and log in with a new one",
    SecretKind.USER_TOKEN: "revoke it (grid token revoke ID), and make a new one",
    SecretKind.TLS_KEY: "replace the key and its certificate",
}


def secrets(home: HomeFacts) -> Finding:
    check = Code.SECRETS
    if not home.secrets:
        return skip(check, f"{home.path} has no tokens or keys yet; the controller makes a token at its first start")
    open_to_others = [file for file in home.secrets if file.mode & 0o077]
    of_others = [file for file in home.secrets if file.owner != home.owner]
    if not open_to_others and not of_others:
        modes = ", ".join(f"{file.name} ({file.mode:04o})" for file in home.secrets)
        return ok(check, f"only {home.owner or 'their owner'} can read them: {modes}")
    seen = [
        f"{file.name} has mode {file.mode:04o}: anyone who reads it {_WHO_READS_IT[file.kind]}"
        for file in open_to_others
    ]
    seen += [f"{file.name} belongs to {file.owner}, and {home.path} to {home.owner}" for file in of_others]
    to_do = []
    if of_others:
        to_do.append(f"sudo chown {quote(home.owner)} {_paths(home, of_others)}")
    if open_to_others:
        to_do.append(f"chmod 600 {_paths(home, open_to_others)}")
    return fail(check, "; ".join(seen), " && ".join(to_do) + _if_it_was_read({*open_to_others, *of_others}))


def _if_it_was_read(files: Iterable[SecretFile]) -> str:
    """A corrected mode does not help against a reader that already has the secret."""
    renew = [f"{file.name}: {_NEW_ONE[file.kind]}" for file in sorted(files, key=_name) if file.kind in _NEW_ONE]
    return f"   (if others can log in here, they may know them: {'; '.join(renew)})" if renew else ""


def kept_aside(home: HomeFacts) -> Finding:
    """Nothing uses these files. Grid never removes them by itself: that is a person's decision."""
    check = Code.KEPT_ASIDE
    if not home.kept:
        return ok(check, f"nothing in {home.path}: no boosts of other clusters, no damaged files")
    others = [file for file in home.kept if file.cluster]
    to_do = []
    if waiting := [file for file in others if file.boosts]:
        names = ", ".join(dict.fromkeys(repr(file.cluster) for file in waiting))
        to_do.append(
            f"Boosts of {names} come back when it is started in this GRID_HOME; to take them over here, stop grid and "
            f"start it with --adopt; to forget them: rm -f {_paths(home, waiting)}"
        )
    if useless := [file for file in home.kept if not file.boosts]:
        to_do.append(f"When it is no longer needed: rm -f {_paths(home, useless)}")
    return warn(check, "; ".join(map(_what_it_is, home.kept)), ". ".join(to_do))


def _what_it_is(file: KeptFile) -> str:
    age = f"{file.name}, {span(file.age_s)} old"
    if not file.cluster:
        return f"{age}: a damaged or foreign {file.kept_from}, from before grid wrote a good one"
    if not file.boosts:
        return f"{age}: boosts of the cluster {file.cluster!r}, all over"
    return f"{age}: {_count(file.boosts)} of the cluster {file.cluster!r}, not applied here"


def _count(boosts: int) -> str:
    return "1 unexpired boost" if boosts == 1 else f"{boosts} unexpired boosts"


def _paths(home: HomeFacts, files: Iterable[SecretFile] | Iterable[KeptFile]) -> str:
    """The paths, quoted for a shell. A file of another cluster has its previous version beside it."""
    names = [name for file in files for name in (file.name, f"{file.name}.previous")[: 1 + _is_of_a_cluster(file)]]
    return " ".join(quote(f"{home.path}/{name}") for name in names)


def _is_of_a_cluster(file: SecretFile | KeptFile) -> bool:
    return isinstance(file, KeptFile) and bool(file.cluster)


def _name(file: SecretFile) -> str:
    return file.name
