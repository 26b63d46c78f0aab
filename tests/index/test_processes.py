"""Several processes that use one index, read-only folders and full disks."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from couce.errors import CouceError
from couce.index import open_index
from couce.index.local.index import LocalIndex

from .conftest import numbered, unit

MOUNT = "/bin/mount"

READER = """
import sys, time
from couce.index import open_index
import numpy as np
with open_index(sys.argv[1]) as index:
    print("ready", flush=True)
    seen, end = 0, time.time() + 60
    while time.time() < end:
        (hits,) = index.search(np.ones((1, 16)), 1000)
        assert len(hits) % 10 == 0, len(hits)  # the writer adds ten at a time
        assert len(hits) >= seen
        assert all(hit.item.metadata["n"] == int(hit.id[1:]) for hit in hits)
        seen = len(hits)
        if seen == 200:
            print("saw all", flush=True)
            sys.exit(0)
sys.exit(f"saw {seen} only")
"""


def test_one_writer_and_several_readers(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    rows = unit(200)
    with LocalIndex(folder, "write", background=False) as writer:
        writer.add(numbered(rows[:10]))
        command = [sys.executable, "-c", READER, str(folder)]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        for start in range(10, 200, 10):
            writer.add(numbered(rows[start : start + 10], start))
            if start % 60 == 0:
                writer.compact()
        for reader in readers:
            assert reader.communicate(timeout=60)[0] == "saw all\n"
            assert reader.returncode == 0


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    code = "from couce.index import open_index; import sys; open_index(sys.argv[1], 'write')"
    with open_index(folder, "write") as index:
        with pytest.raises(CouceError, match=f"process {os.getpid()} is writing to"):
            open_index(folder, "write")
        done = subprocess.run(
            [sys.executable, "-m", "couce", "index", "remove", "x", "--index", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert f"process {os.getpid()} is writing to {folder}" in done.stderr
        assert "Traceback" not in done.stderr
        index.add(numbered(unit(1)))
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can read; pytest's own folders are private."""
    folder = Path(tempfile.mkdtemp(prefix="couce-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


SEARCH = """
import json, logging, os, sys
import faiss
import numpy as np
from couce.errors import CouceError
from couce.index import open_index
if os.getuid() == 0:  # root may write anywhere
    os.setgid(65534)
    os.setuid(65534)
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("couce").addHandler(handler)
with open_index(sys.argv[1]) as index:
    found = [hit.id for hit in index.search(np.ones((1, 16)), 100)[0]]
    try:
        open_index(sys.argv[1], "write")
        fault = ""
    except (CouceError, OSError) as error:
        fault = str(error)
print(json.dumps({"found": len(found), "said": said, "fault": fault}))
"""


def as_nobody(folder: Path) -> dict[str, object]:
    command = [sys.executable, "-c", SEARCH, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_read_only_folder_can_be_searched(public: Path) -> None:
    folder = public / "index"
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(unit(20)))
        index.compact()
        index.add(numbered(unit(30)[20:], 20))
        folder.chmod(0o555)
        found = as_nobody(folder)  # while the writer still has it open
        assert (found["found"], found["said"]) == (30, [])
        folder.chmod(0o755)
    folder.chmod(0o555)
    found = as_nobody(folder)
    assert (found["found"], found["said"]) == (30, [])
    assert "ermission denied" in str(found["fault"])
    folder.chmod(0o755)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files acts like a full disk for SQLite and FAISS."""
    folder = tmp_path / "index"
    rows = unit(20_000)
    with LocalIndex(folder, "write", background=False) as index:
        index.add(numbered(rows[:2000]))
        index.compact()
        size = max(path.stat().st_size for path in folder.iterdir())
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200_000, hard))
        try:
            with pytest.raises(CouceError, match=r"catalog\.db") as caught:
                index.add(numbered(rows[2000:], 2000))
            assert "\n" not in str(caught.value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert len(index) == 2000
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        try:
            with pytest.raises(CouceError, match=r"could not be written") as caught:
                index.compact()
            assert "\n" not in str(caught.value)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert len(index.search(rows[:1], 5000)[0]) == 2000
        assert not list(folder.glob("*.part"))
        index.add(numbered(rows[2000:3000], 2000))
        assert len(index.search(rows[:1], 5000)[0]) == 3000
    with LocalIndex(folder, "write", background=False) as index:
        assert index.faults() == []
        assert len(index) == 3000


def mountable() -> bool:
    """Whether this process may mount a file system, which then is a disk that is really full."""
    with tempfile.TemporaryDirectory() as folder:
        command = [MOUNT, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        if (
            shutil.which("mount") is None
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            return False
        subprocess.run(["/bin/umount", folder], check=True)
        return True


def room(folder: Path) -> int:
    """The free bytes of a disk, without a little space that SQLite needs even for reading."""
    found = os.statvfs(folder)
    return max(0, found.f_bavail * found.f_frsize - 40_960)


@pytest.mark.skipif(not mountable(), reason="needs the right to mount")
def test_a_really_full_disk(tmp_path: Path) -> None:
    subprocess.run([MOUNT, "-t", "tmpfs", "-o", "size=3m", "tmpfs", tmp_path], check=True)
    try:
        folder, rows = tmp_path / "index", unit(20_000)
        with LocalIndex(folder, "write", background=False) as index:
            kept, fault = 0, ""
            for start in range(0, 20_000, 500):
                try:
                    index.add(numbered(rows[start : start + 500], start))
                except CouceError as error:
                    fault = str(error)
                    break
                kept = start + 500
            assert "disk" in fault
            assert 0 < kept == len(index)
            (tmp_path / "more").write_bytes(bytes(room(tmp_path)))
            with pytest.raises(CouceError, match="could not be written"):
                index.compact()
            assert len(index.search(rows[:1], 20_000)[0]) == kept
        with open_index(folder) as reader:
            assert len(reader.search(rows[:1], 20_000)[0]) == kept
    finally:
        subprocess.run(["/bin/umount", tmp_path], check=True)
