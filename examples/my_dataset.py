"""A data set of one's own: files whose names begin with their class, as in wren_0001.jpg.

    couce train by-name --data photos/ --plugin examples/my_dataset.py

The first half of the classes, by name, is the training half, and the others are the test half.
"""

from pathlib import Path

from couce.data import DATASETS, LabelledImage, Source
from couce.data.folders import image_files


def read(root: Path) -> list[LabelledImage]:
    labels = {path: path.stem.partition("_")[0] for path in image_files(root)}
    names = sorted(set(labels.values()))
    learned = set(names[: len(names) // 2])
    return [
        LabelledImage(path, label, "train" if label in learned else "test")
        for path, label in labels.items()
    ]


# No published counts to compare with.
DATASETS["by-name"] = Source(read, counts={})
