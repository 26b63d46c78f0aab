"""The page of analyses: self-contained, escaped, and made of the sections in the folders."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from couce.errors import CouceError
from couce.report.section import FORMAT, Section, Table, write_report

EVIL = '<script>alert("x")</script> & "quoted"'


def section(name: str = "one") -> Section:
    return Section(
        name=name,
        title=EVIL,
        about=f"First.\n\n{EVIL}",
        tables=[Table(title=EVIL, columns=(EVIL, "n"), rows=((EVIL, "1"),))],
        pictures=[(Image.new("RGB", (4, 4), "red"), EVIL), (Image.new("RGB", (4, 4)), "")],
        values={"array": np.arange(3), "nan": float("nan"), "one": np.float32(0.5), "p": Path("a")},
    )


class Page(HTMLParser):
    """All tags of a page, and all attributes that could load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for key, value in attrs if key in ("src", "href", "data")]


def test_a_section_and_its_page(tmp_path: Path) -> None:
    written = section().write(tmp_path)
    names = [path.name for path in written]
    assert names == ["one.png", "one-2.png", "one.json", "report.html"]
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    stored = json.loads((tmp_path / "one.json").read_text())
    assert stored["values"] == {"array": [0, 1, 2], "nan": None, "one": 0.5, "p": "a"}
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.tags.count("img") == 2
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text
    assert "color-scheme: light dark" in text
    assert text.count("&lt;script&gt;alert(&quot;x&quot;)") >= 6


def test_pages_join_folders_and_ignore_other_files(tmp_path: Path) -> None:
    section("one").write(tmp_path / "a")
    section("two").write(tmp_path / "a")
    section("one").write(tmp_path / "b")
    (tmp_path / "b" / "other.json").write_text('{"format": "something else"}')
    page = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "all" / "page.html")
    assert page.read_text().count("<section") == 3
    assert Page((tmp_path / "a" / "report.html").read_text()).tags.count("section") == 2


def test_the_same_section_is_the_same_files(tmp_path: Path) -> None:
    first = {path.name: path.read_bytes() for path in section().write(tmp_path / "a")}
    again = {path.name: path.read_bytes() for path in section().write(tmp_path / "b")}
    assert first == again


def test_errors_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(CouceError, match="there is no folder"):
        write_report([tmp_path / "absent"], tmp_path / "page.html")
    with pytest.raises(CouceError, match="there are no results of analyses in"):
        write_report([tmp_path], tmp_path / "page.html")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(CouceError, match="is not JSON"):
        write_report([tmp_path], tmp_path / "page.html")
    (tmp_path / "bad.json").write_text(json.dumps({"format": FORMAT, "title": 3}))
    with pytest.raises(CouceError, match="is a damaged section"):
        write_report([tmp_path], tmp_path / "page.html")


def test_a_page_shows_no_file_of_another_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    section().write(tmp_path / "a")
    path = tmp_path / "a" / "one.json"
    stored = json.loads(path.read_text())
    stored["pictures"][0]["file"] = "../secret.png"
    path.write_text(json.dumps(stored))
    with pytest.raises(CouceError, match="is not in"):
        write_report([tmp_path / "a"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
