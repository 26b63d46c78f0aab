"""How many cores this process may use, by its affinity and by the limits of its control groups."""

import os
from pathlib import Path


def usable_cores(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The number of cores, at least 1. A container limited to two cores of many has two."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota = _quota(proc, groups)
    return cores if quota is None else max(1, min(cores, round(quota)))


def _quota(proc: Path, groups: Path) -> float | None:
    """How many cores the control groups of this process allow; None if they set no limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # this is not Linux
        return None
    limits: list[float | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one tree, "max 100000" or "200000 100000"
            tree, read = groups, _quota_2
        elif "cpu" in controllers.split(","):  # version 1: a tree for each controller
            tree, read = groups / "cpu", _quota_1
        else:
            continue
        group = tree / path.strip("/")
        # Inside a container the path may be one of the host. Then the root of the mounted tree is
        # the container's own group, and it is one of the parents that are read here.
        limits += [read(level) for level in [group, *group.parents] if level.is_relative_to(tree)]
    return min((limit for limit in limits if limit is not None), default=None)


def _quota_2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        return quota / int((group / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError):
        return None
