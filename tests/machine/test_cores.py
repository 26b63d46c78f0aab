import os
from pathlib import Path

import pytest

from couce.machine.cores import usable_cores


def machine(
    folder: Path, membership: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> int:
    """The number of cores that is found on a machine of 64 cores with these control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(membership)
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores(folder / "proc", folder / "groups")


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        # The limit may be set in any parent group.
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        # The path is one of the host, which is not mounted here.
        ("0::/docker/1f\n", {"cpu.max": "400000 100000\n"}, 4),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"}, 64),
        (
            "5:memory:/\n4:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("0::/\n", {"cpu.max": "cake\n"}, 64),
        ("0::/\n", {}, 64),
    ],
)
def test_the_tightest_limit_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    membership: str,
    files: dict[str, str],
    cores: int,
) -> None:
    assert machine(tmp_path, membership, files, monkeypatch) == cores


def test_affinity_counts_where_there_are_no_groups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == len(os.sched_getaffinity(0))
