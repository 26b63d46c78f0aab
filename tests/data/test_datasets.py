"""All accepted forms of the known data sets, as empty files with the published counts."""

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from couce.data import DATASETS, Counts, check_counts, open_dataset
from couce.errors import CouceError


def spread(images: int, classes: int) -> list[int]:
    """The number of images of each class, as equal as possible."""
    return [images // classes + (c < images % classes) for c in range(classes)]


CUB = spread(5864, 100) + spread(5924, 100)
CARS = spread(8054, 98) + spread(8131, 98)


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def cub_official(root: Path, below: str) -> None:
    base = root / below
    base.mkdir(parents=True, exist_ok=True)
    images, labels, number = [], [], 0
    for c, count in enumerate(CUB, 1):
        for i in range(count):
            number += 1
            images.append(f"{number} {c:03}.Bird {c}/{i}.jpg")
            labels.append(f"{number} {c}")
    (base / "images.txt").write_text("\n".join(images) + "\n")
    (base / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (base / "classes.txt").write_text("\n".join(f"{c} {c:03}.Bird {c}" for c in range(1, 201)))


def cub_folders(root: Path, halves: tuple[str, ...], numbered: bool) -> None:
    for c, count in enumerate(CUB, 1):
        name = f"{c:03}.Bird" if numbered else f"bird {c:03}"
        for i in range(count):
            touch(root / halves[i % len(halves)] / name / f"{i}.jpg")


@pytest.mark.parametrize(
    "form",
    [
        lambda root: cub_official(root, ""),
        lambda root: cub_official(root, "CUB_200_2011"),
        lambda root: cub_folders(root, ("",), numbered=True),
        lambda root: cub_folders(root, ("images",), numbered=True),
        lambda root: cub_folders(root, ("train", "test"), numbered=True),
        lambda root: cub_folders(root, ("",), numbered=False),
    ],
    ids=["official", "official below", "folders", "images/", "train/ and test/", "by name"],
)
def test_cub(form: object, tmp_path: Path) -> None:
    form(tmp_path)  # type: ignore[operator]
    data = open_dataset("cub", tmp_path)
    assert data.train.counts == Counts(100, 5864)
    assert data.test.counts == Counts(100, 5924)
    assert max(data.train.names) < min(data.test.names)
    check_counts(data)


def cars_official(root: Path) -> None:
    number, rows = 0, []
    for c, count in enumerate(CARS, 1):
        for _ in range(count):
            number += 1
            rows.append((f"car_ims/{number:06}.jpg", c, number % 2))
    fields = [("relative_im_path", object), ("class", object), ("test", object)]
    savemat(root / "cars_annos.mat", {"annotations": np.array(rows, dtype=fields)})


def cars_later(root: Path) -> None:
    halves: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for c, count in enumerate(CARS, 1):
        for i in range(count):
            rows = halves["train" if i % 2 else "test"]
            rows.append((f"{len(rows) + 1:05}.jpg", c))
    fields = [("fname", object), ("class", object)]
    (root / "devkit").mkdir()
    for name, rows in (
        ("devkit/cars_train_annos", halves["train"]),
        ("cars_test_annos_withlabels", halves["test"]),
    ):
        savemat(root / f"{name}.mat", {"annotations": np.array(rows, dtype=fields)})


def cars_folders(root: Path, official_numbers: bool) -> None:
    """Official numbers go with names in another order than that of the classes, as in reality."""
    number = 0
    for c, count in enumerate(CARS, 1):
        name = f"model {(c * 59) % 196:03}" if official_numbers else f"model {c:03}"
        for i in range(count):
            number += 1
            half = "train" if i % 2 else "test"
            touch(root / half / name / f"{number if official_numbers else i:05}.jpg")


@pytest.mark.parametrize(
    "form",
    [
        cars_official,
        cars_later,
        lambda root: cars_folders(root, official_numbers=True),
        lambda root: cars_folders(root, official_numbers=False),
    ],
    ids=["official", "train and test annotations", "folders by number", "folders by name"],
)
def test_cars(form: object, tmp_path: Path) -> None:
    form(tmp_path)  # type: ignore[operator]
    data = open_dataset("cars", tmp_path)
    assert data.train.counts == Counts(98, 8054)
    assert data.test.counts == Counts(98, 8131)
    check_counts(data)


@pytest.mark.parametrize("below", ["", "Stanford_Online_Products"])
def test_sop(below: str, tmp_path: Path) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    first = 1
    for half, images, classes in (("train", 59_551, 11_318), ("test", 60_502, 11_316)):
        lines = ["image_id class_id super_class_id path"]
        for c, count in enumerate(spread(images, classes), first):
            lines += [f"1 {c} 1 bicycle_final/{c}_{i}.JPG" for i in range(count)]
        first += classes
        (tmp_path / below / f"Ebay_{half}.txt").write_text("\n".join(lines) + "\n")
    data = open_dataset("sop", tmp_path)
    assert data.train.counts == Counts(11_318, 59_551)
    assert data.test.counts == Counts(11_316, 60_502)
    check_counts(data)


def test_any_tree(tmp_path: Path) -> None:
    for c in range(6):
        for i in range(3):
            touch(tmp_path / f"class {c}" / "deep" / f"deeper {i}" / f"{i}.PNG")
    touch(tmp_path / "class 0" / "notes.txt")
    touch(tmp_path / "class 0" / ".hidden.png")
    data = open_dataset(str(tmp_path))
    assert data.train.counts == data.test.counts == Counts(3, 9)
    assert data.train.names == ("class 0", "class 1", "class 2")
    assert open_dataset(str(tmp_path), train_classes=4).train.counts == Counts(4, 12)
    with pytest.raises(CouceError, match="6 classes, so 6 of them cannot be the training half"):
        open_dataset(str(tmp_path), train_classes=6)


def test_halves_of_its_own(tmp_path: Path) -> None:
    for half, name in (("train", "a"), ("train", "b"), ("test", "c")):
        touch(tmp_path / half / name / "1.jpg")
    data = open_dataset(str(tmp_path))
    assert (data.train.names, data.test.names) == (("a", "b"), ("c",))


@pytest.mark.parametrize("halves", [True, False])
def test_csv(halves: bool, tmp_path: Path) -> None:
    rows = [
        f"img/{c}{i}.jpg,{c}{',train' if c < 'c' else ',test'}" for c in "abcd" for i in range(2)
    ]
    title = "path,label,half" if halves else "path,label"
    rows = rows if halves else [row.rsplit(",", 1)[0] for row in rows]
    (tmp_path / "list.csv").write_text("\n".join([title, *rows]))
    data = open_dataset(str(tmp_path / "list.csv"))
    assert (data.train.names, data.test.names) == (("a", "b"), ("c", "d"))
    assert data.train.paths[0] == tmp_path / "img" / "a0.jpg"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "columns path and label"),
        ("file,class\na,b", "columns path and label"),
        ("path,label,half\na.jpg,b,both", "line 2: half must be train or test, not 'both'"),
    ],
)
def test_wrong_csv(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(content)
    with pytest.raises(CouceError, match=message):
        open_dataset(str(tmp_path / "list.csv"))


@pytest.mark.parametrize("name", DATASETS)
def test_an_empty_folder_says_what_was_expected(name: str, tmp_path: Path) -> None:
    with pytest.raises(CouceError, match="expected"):
        open_dataset(name, tmp_path)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        CouceError, match=r"'cubb' \(did you mean 'cub'\?\); known: cub, cars, sop, demo"
    ):
        open_dataset("cubb")


def test_missing_images_are_refused(tmp_path: Path) -> None:
    cub_folders(tmp_path, ("",), numbered=True)
    next((tmp_path / "150.Bird").iterdir()).unlink()
    data = open_dataset("cub", tmp_path)
    with pytest.raises(CouceError, match=r"test half .* 5923 images, but 100 classes, 5924 images"):
        check_counts(data)


@pytest.mark.parametrize("name", ["images.txt", "image_class_labels.txt"])
def test_a_broken_list_is_named(name: str, tmp_path: Path) -> None:
    cub_official(tmp_path, "")
    (tmp_path / name).write_text("1\n2\n")
    with pytest.raises(CouceError, match=name):
        open_dataset("cub", tmp_path)
