"""A killed writer loses no change that it acknowledged, and leaves no change half done."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from couce.index import NewItem, open_index
from couce.index.local.index import LocalIndex

from .crash_writer import vector

WRITER = Path(__file__).with_name("crash_writer.py")
State = dict[str, tuple[int, int]]  # for each id, the key of its change and its place in it


def replayed(state: State, change: dict[str, object]) -> State:
    """The state after a change: the reference."""
    after = dict(state)
    key, ids = change["key"], change["ids"]
    assert isinstance(key, int)
    assert isinstance(ids, list)
    for place, name in enumerate(ids):
        if change["change"] == "add":
            after[name] = (key, place)
        else:
            after.pop(name, None)
    return after


def possible(state: State, lines: list[dict[str, object]]) -> list[State]:
    """The states that the log allows: with all acknowledged changes, and perhaps a last one."""
    opened: dict[str, object] | None = None
    for line in lines:
        if line["event"] == "try":
            opened = line
        elif line["event"] == "done" and opened is not None:
            assert opened["key"] == line["key"]
            state, opened = replayed(state, opened), None
    return [state] if opened is None else [state, replayed(state, opened)]


def held(folder: Path) -> State:
    """The state of the index. Every vector is compared with that of its change."""
    found: State = {}
    with open_index(folder) as index:
        for block in index.vectors():
            for name, row, item in zip(
                block.ids, block.vectors, index.get_many(block.ids), strict=True
            ):
                assert item is not None
                key = item.metadata["key"]
                assert item.label == str(key)
                (place,) = [
                    p for p in range(10) if np.allclose(vector(key + 1000 * p), row, atol=1e-6)
                ]
                found[name] = (key, place)
        assert len(index) == len(found)
    return found


def assert_search_equals_a_fresh_rebuild(folder: Path, fresh: Path) -> None:
    queries = np.stack([vector(10**9 + n) for n in range(3)])
    with open_index(folder) as index, LocalIndex(fresh, "write", background=False) as rebuilt:
        rows = {i: v for b in index.vectors() for i, v in zip(b.ids, b.vectors, strict=True)}
        if not rows:
            assert index.search(queries, 5) == [[], [], []]
            return
        rebuilt.add(NewItem(row, id=name) for name, row in rows.items())
        rebuilt.compact()
        for mine, other in zip(
            index.search(queries, 100), rebuilt.search(queries, 100), strict=True
        ):
            assert {hit.id for hit in mine} == {hit.id for hit in other} == rows.keys()
            scores = {hit.id: hit.score for hit in other}
            assert all(abs(hit.score - scores[hit.id]) < 1e-5 for hit in mine)


def crash(tmp_path: Path, kills: int, seed: int) -> None:
    folder, log = tmp_path / "index", tmp_path / "log"
    rng = random.Random(seed)
    state: State = {}
    changes = 0
    for kill in range(kills):
        log.unlink(missing_ok=True)
        command = [sys.executable, str(WRITER), str(folder), str(log), str(seed * 1000 + kill)]
        writer = subprocess.Popen(command, stderr=subprocess.PIPE)
        while not log.exists() or not log.stat().st_size:
            assert writer.poll() is None, writer.communicate()[1].decode()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.25))
        assert writer.poll() is None, writer.communicate()[1].decode()
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        allowed = possible(state, lines)
        changes += sum(line["event"] == "done" for line in lines)
        found = held(folder)
        assert found in allowed, (kill, set(found.items()) ^ set(allowed[-1].items()))
        state = found
        assert_search_equals_a_fresh_rebuild(folder, tmp_path / f"fresh-{kill}")
    assert changes > kills
    with LocalIndex(folder, "write", background=False) as index:
        assert index.faults() == []
        assert held(folder) == state
    assert_search_equals_a_fresh_rebuild(folder, tmp_path / "fresh")
    print(f"{kills} kills, {changes} acknowledged changes, {len(state)} items at the end")


def test_killed_a_few_times(tmp_path: Path) -> None:
    crash(tmp_path, kills=8, seed=1)


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path: Path) -> None:
    crash(tmp_path, kills=120, seed=2)
