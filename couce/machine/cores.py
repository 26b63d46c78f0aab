"""How many cores this process may use: its affinity, and what its control group leaves it."""

import os
from pathlib import Path


def usable_cores(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """At least 1. A container's share of two cores on a large machine counts as two."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota = _quota(proc, groups)
    return cores if quota is None else max(1, min(cores, round(quota)))


def _quota(proc: Path, groups: Path) -> float | None:
    """The cores' worth of time that the control groups above this process allow, if they limit it."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # no Linux
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
        # Inside a container the path may be the host's: what is mounted is then its own group.
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
