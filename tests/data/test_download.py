"""Downloads from a local server: they are resumed, verified and unpacked into their folder."""

import hashlib
import io
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from couce.data import download
from couce.data.download import Archive, get, unpack
from couce.errors import CouceError


class Server(ThreadingHTTPServer):
    """Serves one file. With ``ranges``, it supports requests for a part of the file."""

    content = b""
    ranges = True
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if wanted and start >= len(self.server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(self.server.content) - start))
        self.end_headers()
        self.wfile.write(self.server.content[start:])

    def log_message(self, *_: object) -> None:
        pass


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.content, server.asked = zipped(**{"set/a.txt": "a" * 5000}), []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/set.zip"
        md5 = hashlib.md5(server.content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(download.ARCHIVES, "cub", Archive(address, md5))
        yield server
        server.shutdown()


def test_a_set_is_downloaded_checked_and_unpacked(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    get("cub", tmp_path, lambda done, total: seen.append((done, total)))
    assert (tmp_path / "set" / "a.txt").read_text() == "a" * 5000
    assert seen[-1] == (len(server.content), len(server.content))
    get("cub", tmp_path, lambda *_: None)
    assert len(server.asked) == 1  # the second call downloads nothing


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_continues_where_it_stopped(
    server: Server, ranges: bool, tmp_path: Path
) -> None:
    server.ranges = ranges
    (tmp_path / "set.zip.part").write_bytes(server.content[:40])
    get("cub", tmp_path, lambda *_: None)
    assert server.asked == ["bytes=40-"]
    assert (tmp_path / "set" / "a.txt").exists()


def test_a_complete_part_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").write_bytes(server.content)
    get("cub", tmp_path, lambda *_: None)
    assert (tmp_path / "set" / "a.txt").exists()


@pytest.mark.usefixtures("server")
def test_a_damaged_download_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "set.zip.part").write_bytes(b"x" * 40)
    with pytest.raises(CouceError, match="arrived damaged"):
        get("cub", tmp_path, lambda *_: None)
    assert list(tmp_path.iterdir()) == []


def test_the_error_without_a_server_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(download.ARCHIVES, "cub", Archive("http://127.0.0.1:9/set.zip", ""))
    with pytest.raises(CouceError, match=r"could not download .* run the command again to"):
        get("cub", tmp_path, lambda *_: None)


def test_the_error_for_cars_says_where_to_put_the_files(tmp_path: Path) -> None:
    with pytest.raises(CouceError, match=r"no longer offer it; .* into "):
        get("cars", tmp_path, lambda *_: None)
    with pytest.raises(CouceError, match="known: cub, sop"):
        get("imagenet", tmp_path, lambda *_: None)


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt"])
def test_no_member_leaves_the_folder(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "a.zip").write_bytes(zipped(**{"good.txt": "", name: "evil"}))
    with pytest.raises(CouceError, match="would be written outside"):
        unpack(tmp_path / "a.zip", target)
    assert list(target.iterdir()) == []

    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = 4
        archive.addfile(info, io.BytesIO(b"evil"))
    if name.startswith("/"):  # tarfile makes an absolute path relative to the folder
        unpack(tmp_path / "a.tgz", target)
        assert (target / "evil.txt").exists()
    else:
        with pytest.raises(CouceError, match="cannot be unpacked"):
            unpack(tmp_path / "a.tgz", target)
    assert not (tmp_path / "evil.txt").exists()
    assert not Path("/evil.txt").exists()


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "../.."
        archive.addfile(info)
    with pytest.raises(CouceError, match="cannot be unpacked"):
        unpack(tmp_path / "a.tgz", tmp_path / "target")


def test_check_lists_what_is_broken(tmp_path: Path) -> None:
    from couce.data.demo import write_demo

    folder = write_demo(tmp_path / "demo", per_class=1)
    command = [sys.executable, "-m", "couce", "data", "check", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "32 classes, 32 images" in done.stdout
    victim = next(folder.rglob("*.png"))
    victim.write_bytes(victim.read_bytes()[:50])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"fault: {victim} is" in done.stdout.replace("\n", "")
