import subprocess
import sys

import pytest

import couce
from couce.errors import CouceError


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "couce", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version() -> None:
    assert run("--version").stdout == f"couce {couce.__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    """Heavy imports would make --help slow. Times vary too much between runs to be tested."""
    code = (
        "import sys; sys.argv = ['couce', '--help']\n"
        "from couce.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'rich', 'pydantic', 'fastapi', 'faiss', 'onnxruntime'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Commands:" in done.stdout
    assert "heavy: []" in done.stdout


def test_doctor_reports_what_works() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    assert "CPUExecutionProvider" in lines["onnxruntime"]
    assert "GPUs" in lines["faiss"]
    assert "trains on" in lines["torch"]
    assert done.stdout.splitlines()[-1] == "No problems found. Next: couce demo"


def test_unknown_command_says_so_with_exit_code_2() -> None:
    done = run("tarin")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No such command 'tarin'" in done.stderr


def test_an_error_of_the_user_is_one_line_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise CouceError("the gallery is empty; add images to it")

    monkeypatch.setattr("couce.cli.app", fail)
    from couce.cli import main

    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "couce: the gallery is empty; add images to it\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--out", "/dev/null"], "couce: /dev/null"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--epochs", "0"], "--epochs"),
        (["demo", "--epocs", "1"], "--epocs"),
    ],
)
def test_wrong_calls_are_sentences(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['couce', 'demo']\n"
        "from couce.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    sentence = "this command needs torch, which is not installed; run pip install 'couce[train]'"
    assert done.stderr == f"couce: {sentence}\n"
