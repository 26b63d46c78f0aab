"""The runs of a study, side by side. Finished ones are kept and not trained again."""

import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from couce.data import DATASETS
from couce.errors import CouceError
from couce.machine.cores import usable_cores
from couce.train.settings import meaning

Metrics = dict[str, float]


class StudyRun(NamedTuple):
    """One run: its place in the table (setting and method), and the arguments that start it."""

    over: tuple[str, ...]  # the varied settings, such as "confounding=0.5"
    method: str
    seed: int
    data: tuple[str, ...]  # arguments of `couce train`: the data set
    settings: tuple[str, ...]  # arguments of `couce train`: everything else
    # The recipes that the names in these arguments stand for, and hashes of the files.
    content: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the run's folder.

        Its hash changes with the arguments, and with what their names and files stand for.
        """
        what = json.dumps([self.data, self.settings, self.content])
        digest = hashlib.sha256(what.encode()).hexdigest()[:8]
        return "-".join([*self.over, self.method, f"seed{self.seed}", digest]).replace("/", "_")


def study_runs(
    data: Sequence[str],
    settings: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    over: Sequence[str],
) -> list[StudyRun]:
    """Every method with every seed, for every combination of the values in ``over``.

    ``over`` holds texts ``key=a,b,c``. The key is any setting, or ``confounding`` of the demo set.
    Seeds are the outer loop, so a study that is stopped early has whole tables of fewer seeds.

    >>> [c.name[:-9] for c in study_runs(["demo"], [], ["base", "couce"], 1, ["confounding=0,1"])]
    ['confounding=0-base-seed0', 'confounding=0-couce-seed0', \
'confounding=1-base-seed0', 'confounding=1-couce-seed0']
    """
    if len(set(methods)) < len(methods):
        raise CouceError(f"a method is named twice in {','.join(methods)}; name each one once")
    axes = []
    for axis in over:
        key, sign, values = axis.partition("=")
        if not sign or not values:
            raise CouceError(f"--over takes key=a,b, such as msrci.strongest=0.4,0.8, not {axis!r}")
        axes.append([(key, value) for value in values.split(",")])
    _refuse_twice(settings, [axis[0][0] for axis in axes])
    # The name of a set is not a path, even if a folder has that name: `couce demo` makes one.
    named = data[0] == "demo" or data[0] in DATASETS
    content = _content([*data[named:], *settings])
    found = []
    for seed, point, method in product(range(seeds), product(*axes), methods):
        of_data = [f"--{key}={value}" for key, value in point if key == "confounding"]
        assigned = [f"--set={key}={value}" for key, value in point if key != "confounding"]
        found.append(
            StudyRun(
                over=tuple(f"{key}={value}" for key, value in point),
                method=method,
                seed=seed,
                data=(*data, *of_data),
                settings=(*settings, f"--method={method}", f"--seed={seed}", *assigned),
                content=(*content, meaning(data[0], method)),
            )
        )
    return found


def _refuse_twice(settings: Sequence[str], over: Sequence[str]) -> None:
    """Refuses settings that are given twice: one of the two would silently win."""
    for own, instead in (("method", "--methods"), ("seed", "--seeds")):
        if own in over or any(word.partition("=")[0] == f"--{own}" for word in settings):
            raise CouceError(f"a study sets {own} itself; choose it with {instead}")
    words = [word.removeprefix("--set=") for word in settings]
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words}
    for key in over:
        if key in given:
            raise CouceError(f"{key} is given twice, by itself and with --over; leave one out")


def _content(arguments: Iterable[str]) -> tuple[str, ...]:
    """The hashes of files among the arguments, and the paths and file counts of folders."""
    found = []
    for argument in arguments:
        path = Path(argument.rpartition("=")[2])
        if path.is_file():
            found.append(hashlib.sha256(path.read_bytes()).hexdigest())
        elif path.is_dir():
            count = sum(len(files) for _, _, files in os.walk(path))
            found.append(f"{path.resolve()} {count}")
    return tuple(found)


def run_all(
    todo: Sequence[StudyRun], folder: Path, jobs: int
) -> Iterator[tuple[StudyRun, dict[str, Any]]]:
    """Yields each run with its ``result.json`` as soon as it ends. Finished runs are not repeated.

    Each run is a process of its own with its share of the cores. It writes to ``folder/NAME``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, usable_cores() // jobs)
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_run, run, folder / run.name, threads): run for run in todo}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(run: StudyRun, target: Path, threads: int) -> dict[str, Any]:
    result = target / "result.json"
    if not _readable(result):
        command = [sys.executable, "-m", "couce", "train", *run.data]
        if (target / "last.pt").exists():  # interrupted; its folder has its settings
            command += ["--resume", str(target)]
        else:
            command += [*run.settings, "--out", str(target)]
        log = target.with_name(f"{target.name}.log")
        with log.open("w") as file:
            done = subprocess.run(  # noqa: S603 (our own command, no shell)
                command,
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            last = (log.read_text().splitlines() or ["it wrote nothing"])[-1]
            raise CouceError(f"the run {run.name} failed: {last} (its whole output is in {log})")
    return json.loads(result.read_text())


def _readable(result: Path) -> bool:
    try:
        return isinstance(json.loads(result.read_text()), dict)
    except (OSError, ValueError):
        return False


class Spread(NamedTuple):
    mean: float
    deviation: float  # the sample deviation; 0 for a single value

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), deviation)


def summarise(
    results: Iterable[tuple[StudyRun, Metrics]], rows: Callable[[StudyRun], str]
) -> dict[str, dict[str, Spread]]:
    """Mean and spread of each metric over all runs to which ``rows`` gives the same name."""
    groups: dict[str, list[Metrics]] = {}
    for run, metrics in results:
        groups.setdefault(rows(run), []).append(metrics)
    return {
        row: {name: Spread.of([one[name] for one in members]) for name in members[0]}
        for row, members in groups.items()
    }
