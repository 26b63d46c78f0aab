from pathlib import Path

import pytest

from couce.data.folders import image_files, labelled_files
from couce.errors import CouceError


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_class_folders_become_labels(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "a/deep/2.PNG", "b/3.webp", "4.gif", "a/notes.txt", ".hidden/5.jpg")
    found = {path.name: label for path, label in labelled_files([tmp_path, tmp_path / "4.gif"])}
    assert found == {"1.jpg": "a", "2.PNG": "a", "3.webp": "b", "4.gif": None}
    assert len(labelled_files([tmp_path, tmp_path / "4.gif"])) == 5


def test_halves_are_no_classes(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "test/b/2.jpg")
    assert [label for _, label in labelled_files([tmp_path])] == ["b", "a"]
    # One of these names alone may well be a class.
    assert [label for _, label in labelled_files([tmp_path / "train"])] == ["a"]


def test_nothing_to_be_found(tmp_path: Path) -> None:
    with pytest.raises(CouceError, match="there are no images in"):
        labelled_files([tmp_path])
    with pytest.raises(CouceError, match="there is no file or folder"):
        labelled_files([tmp_path / "absent"])
    assert image_files(tmp_path) == []
