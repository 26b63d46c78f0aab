"""Counts page faults, that is, the pages that the kernel has to clear. No times are measured."""

import platform
import subprocess
import sys

import pytest

_TAKE = """
import resource
def faults(size):
    block = b"x" * size  # writes to every page
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del block
    for _ in range(10):
        block = b"x" * size
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults({size}) * resource.getpagesize() / (10 * {size}))
"""
KEEP = "from couce.machine.allocator import keep_freed_memory; keep_freed_memory({})"
TRAIN = "from couce.train.processes import Processes; Processes().device('cpu')"


def share_from_the_system(setup: str, size: int) -> float:
    program = setup + _TAKE.format(size=size)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
@pytest.mark.parametrize(
    ("setup", "megabytes", "anew"),
    [
        ("", 64, True),  # the default of glibc
        (KEEP.format(""), 64, False),
        (TRAIN, 64, False),
        (KEEP.format(128 * 2**20), 16, False),
        (KEEP.format(128 * 2**20), 256, True),  # more than the limit
    ],
)
def test_freed_memory_is_kept(setup: str, megabytes: int, anew: bool) -> None:
    share = share_from_the_system(setup, megabytes * 2**20)
    assert share > 0.9 if anew else share < 0.1
