"""Limits of containers, from the kernel's files as they are found in the wild."""

import pytest

from distributed_grid.monitoring.on_node_probe.cgroups import Cgroups, CpuLimit, MemoryLimit
from distributed_grid.monitoring.on_node_probe.host import busy_seconds

MACHINE = 64 * 2**30
GIB = 2**30

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory ro,relatime master:15 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def cgroups(files: dict[str, str], mounts: str, groups: str) -> Cgroups:
    known = {"/proc/self/mountinfo": mounts, "/proc/7/cgroup": groups} | files
    return Cgroups(known.get, 7)


def test_a_container_of_version_2_sees_its_limits_at_the_top() -> None:
    found = cgroups(
        {
            "/sys/fs/cgroup/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 2000000\n",
            "/sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "/sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
            "/sys/fs/cgroup/memory.stat": f"anon {GIB}\nactive_file {GIB // 2}\ninactive_file {GIB // 4}\n"
            f"slab_reclaimable {GIB // 4}\nshmem {GIB}\n",
            "/sys/fs/cgroup/memory.swap.max": f"{GIB}\n",
            "/sys/fs/cgroup/memory.swap.current": "4096\n",
        },
        V2_MOUNT,
        "0::/\n",
    )

    assert found.cpu_limit() == CpuLimit(1.5, 2.5, "/sys/fs/cgroup")
    assert found.memory_limit(MACHINE) == MemoryLimit(4 * GIB, 2 * GIB, GIB, 4096)


def test_the_tightest_limit_above_a_process_counts_with_the_use_of_its_level() -> None:
    top, pod, own = "/sys/fs/cgroup", "/sys/fs/cgroup/pod", "/sys/fs/cgroup/pod/raylet"
    found = cgroups(
        {
            f"{own}/cpu.max": "max 100000\n",
            f"{pod}/cpu.max": "200000 100000\n",
            f"{pod}/cpu.stat": "usage_usec 9000000\n",
            f"{own}/memory.max": f"{8 * GIB}\n",
            f"{pod}/memory.max": f"{6 * GIB}\n",
            f"{pod}/memory.current": f"{5 * GIB}\n",
            f"{top}/memory.stat": "anon 1\n",
        },
        V2_MOUNT,
        "0::/pod/raylet\n",
    )

    assert found.cpu_limit() == CpuLimit(2.0, 9.0, pod)
    assert found.memory_limit(MACHINE) == MemoryLimit(6 * GIB, 5 * GIB, None, None)


@pytest.mark.parametrize(("root", "group"), [("/docker/abc", "/docker/abc"), ("/", "/"), ("/docker/abc", "/elsewhere")])
def test_a_container_of_version_1_sees_its_limits_at_the_mount(root: str, group: str) -> None:
    cpu, memory = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"
    found = cgroups(
        {
            f"{cpu}/cpu.cfs_quota_us": "50000\n",
            f"{cpu}/cpu.cfs_period_us": "100000\n",
            f"{cpu}/cpuacct.usage": "7000000000\n",
            f"{memory}/memory.limit_in_bytes": f"{2 * GIB}\n",
            f"{memory}/memory.usage_in_bytes": f"{GIB}\n",
            f"{memory}/memory.stat": f"active_file 1\ntotal_active_file {GIB // 8}\ntotal_inactive_file {GIB // 8}\n",
            f"{memory}/memory.memsw.limit_in_bytes": f"{3 * GIB}\n",
            f"{memory}/memory.memsw.usage_in_bytes": f"{GIB + 4096}\n",
        },
        V1_MOUNTS.format(root=root),
        f"9:memory:{group}\n3:cpu,cpuacct:{group}\n1:name=systemd:/\n0::/\n",
    )

    assert found.cpu_limit() == CpuLimit(0.5, 7.0, cpu)
    assert found.memory_limit(MACHINE) == MemoryLimit(2 * GIB, GIB * 3 // 4, GIB, 4096)


def test_trees_of_version_1_that_are_mounted_apart_belong_together() -> None:
    mounts = (
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
    )
    found = cgroups(
        {
            "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000\n",
            "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/cpuacct/job/cpuacct.usage": "1000000000\n",
            "/sys/fs/cgroup/cpuacct/job/deep/cpuacct.usage": "5\n",
        },
        mounts,
        "2:cpuacct:/job/deep\n1:cpu:/job/deep\n",
    )

    assert found.cpu_limit() == CpuLimit(4.0, 1.0, "/sys/fs/cgroup/cpu/job")


@pytest.mark.parametrize(
    ("mounts", "groups"), [(V2_MOUNT, "0::/user.slice\n"), (V1_MOUNTS.format(root="/"), "9:memory:/\n0::/\n"), ("", "")]
)
def test_without_limits_the_machine_is_all_there_is(mounts: str, groups: str) -> None:
    found = cgroups(
        {
            "/sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/user.slice/memory.max": "max\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        },
        mounts,
        groups,
    )

    assert found.cpu_limit() is None
    assert found.memory_limit(MACHINE) is None


STAT = """\
cpu  1000 100 300 9000 500 20 30 77 400 0
cpu0 600 50 100 4000 250 10 10 40 200 0
cpu1 400 50 200 5000 250 10 20 37 200 0
intr 12345 0 9
ctxt 99
"""


def test_busy_is_what_the_cpus_did_themselves() -> None:
    assert busy_seconds(STAT, {0, 1}, 100) == 14.5


def test_only_the_cpus_that_may_be_used_count() -> None:
    assert busy_seconds(STAT, {1}, 100) == 6.8


def test_cpus_with_other_numbers_than_shown_count_together() -> None:
    assert busy_seconds(STAT, {17}, 100) == 14.5
