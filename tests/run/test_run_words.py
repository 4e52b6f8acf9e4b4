"""What the words behind `grid run --` mean."""

from pathlib import Path

import pytest

from distributed_grid.errors import InvalidRequest
from distributed_grid.run.driver import command_of, label_of, line_of, python


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "data.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train.py", "--lr", "1"], ["PY", "train.py", "--lr", "1"]),
        (["-m", "pkg.train", "x"], ["PY", "-m", "pkg.train", "x"]),
        (["-c", "print(1)"], ["PY", "-c", "print(1)"]),
        (["bash", "train.sh"], ["bash", "train.sh"]),
        (["python3", "elsewhere.py"], ["python3", "elsewhere.py"]),
    ],
)
def test_scripts_and_modules_are_pythons_and_the_rest_is_as_it_is(words: list[str], command: list[str]) -> None:
    assert command_of(words, {}, "PY") == command


@pytest.mark.parametrize(
    "words", [[], ["-m"], ["nowhere.py"], ["no-such-command"], ["echo hello"], ["--cpu", "4"], ["./data.txt"]]
)
def test_what_cannot_be_run_is_said_before_anything_is_asked_for(words: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        command_of(words, {}, "PY")


def test_the_python_is_that_of_the_environment_which_is_active(in_a_folder: Path) -> None:
    own = in_a_folder / "bin" / "python"
    own.parent.mkdir()
    own.touch(0o755)
    assert python({"VIRTUAL_ENV": str(in_a_folder)}, "PY") == str(own)
    assert python({"VIRTUAL_ENV": "/gone"}, "PY") == "PY"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["a/train.py", "--key", "s3cret"], "train.py"),
        (["-m", "pkg", "s3cret"], "-m pkg"),
        (["-c", "s3cret"], "-c ..."),
        (["python", "-c", "s3cret"], "python -c ..."),
        (["/usr/bin/python3.11", "a/train.py", "s3cret"], "python3.11 train.py"),
        (["python", "-m", "pkg", "s3cret"], "python -m pkg"),
        (["python", "-m"], "python -m"),
        (["python", "--s3cret"], "python"),
        (["bash", "train.py"], "bash"),
    ],
)
def test_what_others_see_has_no_arguments(words: list[str], label: str) -> None:
    assert label_of(words) == label


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["python", "-c", "print(1)"], "python -c 'print(1)'"),
        (["train.py", "--api-key", "s3cret", "--lr", "1"], "train.py --api-key '***' --lr 1"),
        (["env", "HF_TOKEN=s3cret", "train"], "env 'HF_TOKEN=***' train"),
        (["-c", "a = 1\nb = 2"], "-c 'a = 1 b = 2'"),
        (["echo", "x" * 1000], f"echo {'x' * 492}..."),
    ],
)
def test_its_own_user_sees_the_command_line_without_secrets(words: list[str], line: str) -> None:
    assert line_of(words) == line
