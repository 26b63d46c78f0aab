"""Makes the allocator of the C library keep freed memory for the next allocation.

By default glibc returns large blocks to the system when they are freed. The next block of that
size comes from the system again, page by page, and the kernel clears each page. Where large blocks
of the same size come and go, as in training on a CPU or in decoding images, this takes up to half
of the time.
"""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_LARGEST_THRESHOLD = 32 * 2**20  # bytes; glibc accepts no larger value
_NEVER = -1


def keep_freed_memory(at_most: int | None = None) -> None:
    """Keeps all freed memory of this process from now on, or ``at_most`` so many bytes.

    Other C libraries than glibc do not have this setting, and nothing happens.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if at_most is None:
            library.mallopt(_MMAP_MAX, 0)
            library.mallopt(_TRIM_THRESHOLD, _NEVER)
        else:
            library.mallopt(_TRIM_THRESHOLD, at_most)
            library.mallopt(_MMAP_THRESHOLD, min(at_most, _LARGEST_THRESHOLD))
