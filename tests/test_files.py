from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from couce.files import replace_file


def test_several_threads_may_replace_the_same_file(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def write(number: int) -> None:
        replace_file(target, lambda part: part.write_text(f"{number}" * 1000))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, [1, 2, 3, 4] * 50))
    assert target.read_text() in {f"{number}" * 1000 for number in (1, 2, 3, 4)}
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
