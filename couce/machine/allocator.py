"""The C library's allocator, told to keep what is freed for whoever asks next.

By default glibc gives large blocks back to the system at once, and the next one of that size is taken
anew, page by page, each cleared by the kernel. Where the same large blocks come and go, a step of training on
a CPU or one decoded image after another, that is up to half of all the time.
"""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_LARGEST_THRESHOLD = 32 * 2**20  # bytes; glibc takes no more
_NEVER = -1


def keep_freed_memory(at_most: int | None = None) -> None:
    """For this process, from now on: all of it, or so many bytes. Other C libraries have no such call."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if at_most is None:
            library.mallopt(_MMAP_MAX, 0)
            library.mallopt(_TRIM_THRESHOLD, _NEVER)
        else:
            library.mallopt(_TRIM_THRESHOLD, at_most)
            library.mallopt(_MMAP_THRESHOLD, min(at_most, _LARGEST_THRESHOLD))
