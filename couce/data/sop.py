"""Stanford Online Products (Song et al., CVPR 2016): 22,634 products in two lists."""

from pathlib import Path

from couce.data.base import Counts, LabelledImage
from couce.data.folders import Half
from couce.errors import CouceError

COUNTS = {"train": Counts(11_318, 59_551), "test": Counts(11_316, 60_502)}


def read(root: Path) -> list[LabelledImage]:
    """Reads ``Ebay_train.txt`` and ``Ebay_test.txt``.

    They may be in ``root`` itself or in ``Stanford_Online_Products/``.
    """
    for base in (root, root / "Stanford_Online_Products"):
        if (base / "Ebay_train.txt").is_file() and (base / "Ebay_test.txt").is_file():
            return _listed(base, "train") + _listed(base, "test")
    raise CouceError(
        f"there is no Stanford Online Products in {root}: expected Ebay_train.txt and Ebay_test.txt"
        " beside the folders of images; `couce data get sop` downloads it"
    )


def _listed(base: Path, half: Half) -> list[LabelledImage]:
    """The items of a list. Below its header, a line is: image id, class, super-class, path."""
    path = base / f"Ebay_{half}.txt"
    try:
        rows = [line.split() for line in path.read_text().splitlines()[1:] if line.strip()]
        return [LabelledImage(base / name, label, half) for _, label, _, name in rows]
    except ValueError:
        raise CouceError(f"{path} is not a list of Stanford Online Products") from None
