"""Embedding on a real Ray cluster that is started on this machine."""

from pathlib import Path

import numpy as np
import pytest

from couce.index import open_index

from .conftest import Couce, write_picture


@pytest.mark.slow
@pytest.mark.usefixtures("model")
def test_ray_builds_the_same_index(
    tmp_path: Path, couce: Couce, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setenv("RAY_ADDRESS", "")
    for number in range(600):
        write_picture(tmp_path / "gallery" / f"class-{number % 3}" / f"{number}.png", number % 590)
    write_picture(tmp_path / "gallery" / "class-1" / "it's\n🐦.png", 1000)
    (tmp_path / "gallery" / "class-0" / "broken.png").write_bytes(b"no picture")
    couce("build", "gallery", "--out", "here")
    said = couce("build", "gallery", "--out", "ray", "--engine", "ray")
    assert "602 images: 591 added" in said
    assert "broken.png: the image is not an image" in said
    with open_index("here") as one, open_index("ray") as other:
        for mine, theirs in zip(one.every_item(), other.every_item(), strict=True):
            assert (mine.id, mine.paths, mine.label, mine.size, mine.stamps) == (
                theirs.id,
                theirs.paths,
                theirs.label,
                theirs.size,
                theirs.stamps,
            )
        for a, b in zip(one.vectors(), other.vectors(), strict=True):
            np.testing.assert_allclose(a.vectors, b.vectors, atol=1e-5)
    assert "601 unchanged" in couce("build", "gallery", "--out", "ray", "--engine", "ray")
