from pathlib import Path

import pytest

from couce.data import open_dataset
from couce.data.folders import class_folders, has_halves, image_files, labelled_files
from couce.errors import CouceError
from couce.index.building.scan import scan


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
    # With only one of these names, it is a class.
    assert [label for _, label in labelled_files([tmp_path / "train"])] == ["a"]


def test_without_images_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CouceError, match="there are no images in"):
        labelled_files([tmp_path])
    with pytest.raises(CouceError, match="there is no file or folder"):
        labelled_files([tmp_path / "absent"])
    assert image_files(tmp_path) == []


@pytest.mark.parametrize("names", [("bus", "car", "train"), ("test", "train", "tram")])
def test_a_class_may_be_called_train(names: tuple[str, ...], tmp_path: Path) -> None:
    """Training, evaluation, audit and gallery use the same rule."""
    touch(tmp_path, *(f"{name}/{n}.jpg" for name in names for n in range(2)))
    assert not has_halves(tmp_path)
    assert set(class_folders(tmp_path)) == set(names)
    assert {label for _, label in labelled_files([tmp_path])} == set(names)
    assert {entry.label for entry in scan(tmp_path)} == set(names)
    found = open_dataset(str(tmp_path), train_classes=2)
    assert {*found.train.names, *found.test.names} == set(names)


def test_all_rooms_read_halves_in_the_same_way(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "train/train/2.jpg", "test/b/3.jpg", "other/4.jpg")
    assert has_halves(tmp_path)
    assert set(class_folders(tmp_path)) == {"a", "b", "other", "train"}
    assert {entry.label for entry in scan(tmp_path)} == {"a", "b", "other", "train"}
    found = open_dataset(str(tmp_path))
    assert (found.train.names, found.test.names) == (("a", "train"), ("b",))


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.jpg", "photos/a/2.jpg")
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "a" / "again").symlink_to(tmp_path / "photos")
    found = [
        path.relative_to(tmp_path / "photos").parts for path in image_files(tmp_path / "photos")
    ]
    assert found == [("a", "2.jpg"), ("b", "1.jpg")]
