"""The rules of the house: who imports whom, what the wheel holds, that versions and docs agree."""

import ast
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

MAY_IMPORT = {"train": set(), "export": set(), "index": set(), "server": {"index"}}


def project() -> dict[str, object]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        for other in set(ROOMS) - {room} - MAY_IMPORT[room]:
            wrong = {name for name in imports(path) if f"{name}.".startswith(f"couce.{other}.")}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_the_shared_room_imports_no_other_but_in_commands() -> None:
    for path in (ROOT / "couce").rglob("*.py"):
        relative = path.relative_to(ROOT / "couce")
        if relative.parts[0] in (*ROOMS, "cli"):
            continue
        rooms = {
            name
            for name in imports(path)
            if name.split(".")[1:2] and name.split(".")[1] in ROOMS and name.startswith("couce.")
        }
        assert not rooms, f"couce/{relative} imports {rooms}"


def modules_of_serving() -> list[str]:
    """All of index/ and server/, and what of the shared room they may use."""
    names = (
        *("cli", "client", "config", "cores", "doctor", "durable", "embedder", "engines", "errors"),
        *("files", "metrics", "model_info", "onnx_scan", "preprocess"),
    )
    shared = ["couce", *(f"couce.{name}" for name in names)]
    rooms = [
        ".".join(("couce", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for room in ("index", "server")
        for path in (ROOT / room).rglob("*.py")
    ]
    return [*shared, *rooms]


def test_serving_runs_without_torch() -> None:
    lines = ["import sys", "sys.modules['torch'] = None"]
    lines += [f"import {module}" for module in modules_of_serving()]
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
    # From a copy: setuptools would put what an earlier build left in build/ into the wheel.
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
                continue  # the link of a room
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


def test_the_extras_keep_rivals_apart() -> None:
    extras = project()["project"]["optional-dependencies"]  # type: ignore[index]
    assert {"cpu", "gpu", "gpu-cu13", "train", "analysis", "milvus", "ray", "dev"} == set(extras)
    engines = [extras[name] for name in ("cpu", "gpu", "gpu-cu13")]
    others = [
        line for name in extras if name not in ("cpu", "gpu", "gpu-cu13") for line in extras[name]
    ]
    core = project()["project"]["dependencies"]  # type: ignore[index]
    assert all(len(engine) == 2 for engine in engines)
    assert not [line for line in [*others, *core] if line.startswith(("onnxruntime", "faiss"))]
