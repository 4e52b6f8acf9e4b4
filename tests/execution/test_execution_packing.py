"""Pickling by value: for a moment, and without a trace."""

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import role_classes
from ray import cloudpickle
from role_classes import Teller

from distributed_grid.execution.on_node_imports import unpacked
from distributed_grid.execution.packing import packed, packed_whole

NAME = role_classes.__name__


def test_what_travels_is_the_class_itself() -> None:
    assert NAME not in cloudpickle.list_registry_pickle_by_value()

    packed = packed_whole(Teller)

    assert b"wait_for" in packed, "its methods"
    assert b"wait_for" not in cloudpickle.dumps(Teller)
    assert pickle.loads(packed).__name__ == "Teller"


def test_what_the_user_has_registered_stays_registered() -> None:
    cloudpickle.register_pickle_by_value(role_classes)
    try:
        packed_whole(Teller)

        assert NAME in cloudpickle.list_registry_pickle_by_value()
    finally:
        cloudpickle.unregister_pickle_by_value(role_classes)


def test_two_that_pack_at_once_do_not_undo_each_other() -> None:
    """The first is held in the middle of it until the second has begun."""
    inside, second_began = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            inside.set()
            second_began.wait(60)
            return int, ()

    def second() -> bytes:
        second_began.set()
        return packed_whole(Teller)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(packed_whole, Teller, Slow())
        assert inside.wait(60)
        both = [first, threads.submit(second)]

    assert all(b"wait_for" in one.result() for one in both)
    assert NAME not in cloudpickle.list_registry_pickle_by_value()


# -- modules that are found, or not, where an actor runs -----------------------------------------------------------


def test_the_folders_that_are_the_users_own_are_in_front_of_what_is_installed_or_behind_it(tmp_path: Path) -> None:
    for name in ("front", "here", "end"):
        (tmp_path / name).mkdir()
    program = """
import sys
sys.path += [sys.argv[1], sys.argv[1], "/nowhere"]
from distributed_grid.execution.packing import own_folders
before, after = own_folders()
print(before)
print([one for one in after if one == sys.argv[1] or "site-packages" in one or one == "/nowhere"])
"""
    env = os.environ | {"PYTHONPATH": str(tmp_path / "front")}
    shown = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "end")],
        env=env, cwd=tmp_path / "here", capture_output=True, text=True, check=True,
    )  # fmt: skip

    before, after = (eval(line) for line in shown.stdout.splitlines())
    assert before == [str(tmp_path / "here"), str(tmp_path / "front")]
    assert after == [str(tmp_path / "end")]


def a_module(path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that other nodes do not have."""
    file = path / "only_here.py"
    file.write_text(source)
    module: Any = ModuleType("only_here")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "only_here", module)
    exec(source, module.__dict__)
    return module


def arrived(cls: type, monkeypatch: pytest.MonkeyPatch) -> Any:
    sent = packed(cls, 3)
    monkeypatch.delitem(sys.modules, "only_here")
    return unpacked(sent)


def test_a_class_of_which_a_node_does_not_have_the_module_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = a_module(tmp_path, "class Small:\n    size = 7\n", monkeypatch)

    cls, config = arrived(module.Small, monkeypatch)

    assert (cls.size, config) == (7, 3)


def test_one_that_cannot_be_sent_either_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import threading\nLOCK = threading.Lock()\nclass Locked:\n    def hold(self):\n        return LOCK\n"
    module = a_module(tmp_path, source, monkeypatch)

    with pytest.raises(ImportError, match=r"only_here is not on this node.*cannot pickle '_thread.lock'.*working_dir"):
        arrived(module.Locked, monkeypatch)
