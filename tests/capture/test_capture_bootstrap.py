"""What Python loads at its start in a captured program."""

import subprocess
import sys
from pathlib import Path

from distributed_grid import capture

HOOK = Path(capture.__file__).parent
GROUP = "ab" * 18


def python(code: str, *path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(str(part) for part in (HOOK, *path)), "PATH": "/usr/bin:/bin"} | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_nothing_but_a_watch_on_imports_is_loaded_until_ray_is() -> None:
    done = python(
        "import sys; print([m for m in sys.modules if 'ray' in m or 'grid' in m])", GRID_PLACEMENT_GROUP=GROUP
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_hook_stands_alone_and_its_name_is_not_taken() -> None:
    done = python(
        "import sys, ray; print(sorted(m for m in sys.modules if 'grid' in m)[:2], ray.__spec__.loader)",
        GRID_PLACEMENT_GROUP=GROUP,
    )

    assert done.stdout.startswith("['_grid_capture', '_grid_capture.captured']")
    assert "_WhenRayIsImported" not in done.stdout
    assert done.stderr == ""


def test_without_a_lease_nothing_is_hooked() -> None:
    done = python("import sys, ray; print([m for m in sys.modules if 'grid' in m])")

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_hook_that_fails_says_so_and_the_program_goes_on() -> None:
    done = python("import ray; print(ray.init.__name__)", GRID_PLACEMENT_GROUP="no group at all")

    assert done.stdout == "init\n"
    assert done.stderr.startswith("grid: NOT in the lease: the whole program: hook failed: ValueError")


def test_that_it_failed_reaches_the_process_that_started_the_program(tmp_path: Path) -> None:
    report = tmp_path / "report"

    done = python("import ray", GRID_PLACEMENT_GROUP="no group at all", GRID_RUN_REPORT=str(report))

    assert done.returncode == 0
    assert '"event": "escaped", "what": "the whole program"' in report.read_text()


def test_the_machine_s_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the machine has its own')")

    assert python("", tmp_path, GRID_PLACEMENT_GROUP=GROUP).stdout == "the machine has its own\n"


def test_libraries_of_ray_are_named_when_the_program_imports_them_not_when_ray_does() -> None:
    done = python(
        """
import ray
exec("import ray.job_submission", {"__name__": "ray.somewhere"})
for name in ("ray.job_submission", "ray.tune", "ray.tune"):
    try:
        __import__(name)
    except ImportError:
        pass
""",
        GRID_PLACEMENT_GROUP=GROUP,
    )

    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == ["Ray Tune is imported"]
