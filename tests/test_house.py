"""The rules of the repository: imports between rooms, the content of the wheel, the versions."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import couce

ROOT = Path(__file__).parent.parent
ROOMS = ("train", "export", "index", "server")


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


# The modules in couce/ that may import torch at their top.
WITH_TORCH = ("backbones", "checkpoint", "losses", "machine.device", "method", "network")


def modules_without_torch() -> list[str]:
    """All modules that must work where torch is not installed."""
    found = []
    for room in ("couce", "index", "server"):
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if room == "couce" else ("couce", *parts))
            name = name.removesuffix(".__init__").removeprefix("couce.")
            if name == "__main__" or name.split(".")[0] in ("train", "export"):
                continue
            if not any(f"{name}.".startswith(f"{each}.") for each in WITH_TORCH):
                found.append(f"couce.{name}" if name != "couce" else name)
    return found


def test_serving_runs_without_torch() -> None:
    lines = ["import sys", "sys.modules['torch'] = None"]
    lines += [f"import {module}" for module in modules_without_torch()]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def packages_on_disk() -> set[str]:
    inner = {p.parent for p in (ROOT / "couce").rglob("__init__.py")}
    found = {
        ".".join(folder.relative_to(ROOT).parts)
        for folder in inner
        if folder.relative_to(ROOT).parts[1:2] not in [(room,) for room in ROOMS]
    }
    for room in ROOMS:
        found |= {
            ".".join(("couce", *p.parent.relative_to(ROOT).parts))
            for p in (ROOT / room).rglob("__init__.py")
        }
    return found


def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    # Built from a copy, because setuptools would add the files of an earlier build in build/.
    source = tmp_path / "source"
    source.mkdir()
    for path in ROOT.iterdir():
        if path.name in ("couce", *ROOMS):
            shutil.copytree(path, source / path.name, symlinks=True)
        elif path.is_file():
            shutil.copy(path, source)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        folder = f"{wheel.name.split('-py3')[0]}.dist-info"
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
        assert "couce = couce.cli:main" in archive.read(f"{folder}/entry_points.txt").decode()
    expected = {"couce/py.typed"}
    expected |= {f"couce/server/page/{path.name}" for path in (ROOT / "server/page").iterdir()}
    for room in ("couce", *ROOMS):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            if parts[0] == "couce" and parts[1] in ROOMS:
                continue  # the symbolic link to a room
            expected.add("/".join(parts if parts[0] == "couce" else ("couce", *parts)))
    assert held == expected


def test_packages_are_listed() -> None:
    tool = project()["tool"]
    assert set(tool["setuptools"]["packages"]) == packages_on_disk()  # type: ignore[index]


@pytest.mark.parametrize("room", ROOMS)
def test_links_point_at_the_rooms(room: str) -> None:
    link = ROOT / "couce" / room
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{room}"


def test_one_version() -> None:
    assert project()["project"]["version"] == couce.__version__  # type: ignore[index]
    assert f"## {couce.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_extras_do_not_conflict() -> None:
    extras = project()["project"]["optional-dependencies"]  # type: ignore[index]
    assert {"cpu", "gpu", "gpu-cu13", "train", "analysis", "masks", "milvus", "ray", "dev"} == set(
        extras
    )
    engines = [extras[name] for name in ("cpu", "gpu", "gpu-cu13")]
    others = [
        line for name in extras if name not in ("cpu", "gpu", "gpu-cu13") for line in extras[name]
    ]
    core = project()["project"]["dependencies"]  # type: ignore[index]
    assert all(len(engine) == 2 for engine in engines)
    assert not [line for line in [*others, *core] if line.startswith(("onnxruntime", "faiss"))]


def test_the_last_line_of_a_run_names_what_was_skipped(tmp_path: Path) -> None:
    """As it is without a browser, which the tests of the page need."""
    page = str(ROOT / "tests/server/page/test_search.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", page],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    said = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"ATTENTION, SKIPPED: \d+ x needs the browser chromium", said), said
