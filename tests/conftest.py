"""Shared by all tests: the support folder on the path, and real clusters for those that need one."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a green run means the same thing everywhere. `make test` runs a quarter of
# those that `make test-slow` runs. To look for new ones: HYPOTHESIS_PROFILE=explore pytest -m hypothesis
# No test fails because the machine is busy.
_PATIENT: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
settings.register_profile("quick", derandomize=True, max_examples=25, **_PATIENT)
settings.register_profile("thorough", derandomize=True, max_examples=100, **_PATIENT)
settings.register_profile("explore", max_examples=1000, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Begun in the background, a process ignores Ctrl-C, and under nohup SIGHUP, and so does all that it starts; tests send
# both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Ray's workers yield to everything else by default. On a machine of two cores that carries several nodes, the test and
# all commands, that is for seconds.
os.environ.setdefault("RAY_worker_niceness", "0")

# Thousands of tests, their modules and Ray stay for the whole run; to look through them all as often as Python does by
# default costs an eighth of the time of the tests that compute.
gc.set_threshold(50_000, 20, 50)

sys.path.insert(0, str(Path(__file__).parent / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))  # for `bench`, which is no part of the package

from shared_clusters import ByCluster, ClusterShape, SharedClusters, arrange, shares, yield_to_clusters  # noqa: E402

_clusters = SharedClusters()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    arrange(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    yield_to_clusters(os.environ, session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    return ByCluster(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that starts a cluster of its own must not find another one running; and Ray starts none by itself."""
    if hook := sys.modules.get("ray._private.auto_init_hook"):
        hook.enable_auto_connect = False  # type: ignore[attr-defined]
    if not shares(item):
        _clusters.end()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """After a second try: which tests needed it, and how often they have on this machine. None of them is hidden."""
    if not config.getoption("lf", False) or config.cache is None:
        return
    counts: dict[str, int] = config.cache.get("grid/flaky", {})
    flaky = [report.nodeid for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
    for name in flaky:
        counts[name] = counts.get(name, 0) + 1
    config.cache.set("grid/flaky", counts)
    if flaky:
        terminalreporter.section("Flaky: passed only at the second try")
        for name in flaky:
            terminalreporter.line(f"{name}  (here {counts[name]} times so far)")


@pytest.hookimpl(trylast=True)  # after the fixtures of a test that was interrupted
def pytest_sessionfinish() -> None:
    _clusters.end()


@pytest.fixture(scope="module")
def grid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[object]":
    """A real embedded cluster with grid in it, and this process as a Ray driver of its own.

    A module may set `CONFIG` to another configuration than the packaged one, and `ENV` to what its processes find in
    their environment. The cluster goes on for other modules with the same, unless something went wrong here.
    """
    failures = request.session.testsfailed
    yield _clusters.get(ClusterShape.of(request.module), lambda: tmp_path_factory.mktemp("grid"))
    if request.session.testsfailed > failures:
        _clusters.end()


@pytest.fixture(autouse=True)
def _nothing_left_over(request: pytest.FixtureRequest) -> "Iterator[None]":
    """Each test on a shared cluster gives back what it took."""
    yield
    if "grid" in request.fixturenames:
        request.getfixturevalue("grid").release_everything()
