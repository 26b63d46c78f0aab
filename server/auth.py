"""Keys with their roles and rates, and when a request needs one.

A key is 256 random bits, so it is safe to store its plain sha256. The plain sha256 of a password
would not be safe, because passwords can be guessed.
"""

import fcntl
import hashlib
import hmac
import json
import math
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field, ValidationError

from couce.config import Settings
from couce.errors import CouceError, StorageError
from couce.files import replace_file
from couce.server.http.problems import Problem
from couce.server.prometheus import Prometheus
from couce.server.settings import ServerSettings

NAME = "keys.json"
Role = Literal["read", "admin"]


class Key(Settings):
    name: str = Field(min_length=1, max_length=64)
    role: Role
    sha256: str
    rate: float | None = Field(None, gt=0)  # requests a second
    made: float  # seconds since 1970


class _File(Settings):
    entries: tuple[Key, ...] = ()


class Keys:
    """The keys of a file. The file is read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: tuple[Key, ...] = ()
        self.all()

    @classmethod
    def in_folder(cls, state: Path) -> "Keys":
        return cls(state / NAME)

    def all(self) -> tuple[Key, ...]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._keys = None, ()
            return ()
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            try:
                self._keys = _File.model_validate_json(self.path.read_bytes()).entries
            except ValidationError:
                raise StorageError(
                    f"{self.path} is damaged; put it back from a copy, or delete it and make new"
                    " keys"
                ) from None
            self._stamp = stamp
        return self._keys

    def find(self, token: str) -> Key | None:
        """The key with this token, or None.

        Every key is compared, in constant time, so that the time taken reveals nothing.
        """
        digest = _digest(token)
        found = None
        for key in self.all():
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found

    def make(self, name: str, role: str, rate: float | None = None) -> str:
        """Makes a key and returns its token. Only the hash of the token is stored."""
        token = f"couce_{secrets.token_urlsafe(32)}"
        key = Key.parse(
            {
                "name": name,
                "role": role,
                "sha256": _digest(token),
                "rate": rate,
                "made": time.time(),
            }
        )
        with self._changing() as keys:
            if any(each.name == name for each in keys):
                raise CouceError(
                    f"there is a key named {name!r} already; revoke it, or choose another name"
                )
            self._write((*keys, key))
        return token

    def revoke(self, name: str) -> None:
        with self._changing() as keys:
            left = tuple(key for key in keys if key.name != name)
            if len(left) == len(keys):
                raise CouceError(f"there is no key named {name!r}; `couce key list` shows all keys")
            self._write(left)

    @contextmanager
    def _changing(self) -> Iterator[tuple[Key, ...]]:
        """Locks the file and yields its keys.

        Without the lock, a change at the same time could bring back a revoked key.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.all()

    def _write(self, keys: tuple[Key, ...]) -> None:
        text = json.dumps(_File(entries=keys).model_dump(), indent=2) + "\n"

        def write(part: Path) -> None:
            part.touch(0o600)
            part.write_text(text)

        replace_file(self.path, write)


class Rates:
    """A token bucket for each key: ``rate`` requests a second, and as many at once."""

    def __init__(self) -> None:
        # For each name of a key: how many requests were left, and when.
        self._buckets: dict[str, tuple[float, float]] = {}

    def wait(self, key: Key, share: int, now: float) -> float:
        """Seconds until this key may send a request.

        0 means that it may send one now; the request is then counted. ``share``: the number of
        processes among which the rate is divided.
        """
        if key.rate is None:
            return 0.0
        rate = key.rate / share
        full = max(1.0, rate)
        left, when = self._buckets.get(key.name, (full, now))
        left = min(full, left + (now - when) * rate)
        if left < 1:
            return (1 - left) / rate
        self._buckets[key.name] = (left - 1, now)
        return 0.0


def refuse_open_door(settings: ServerSettings) -> None:
    """Refuses to start a server that needs keys while there is none."""
    needed = settings.keys == "required" or (settings.keys == "auto" and not settings.local)
    if needed and not Keys.in_folder(settings.state_folder).all():
        raise CouceError(
            f"a server at {settings.host} needs keys, and there is none; make one with"
            f" `couce key new NAME --role admin --state {settings.state_folder}`, or serve everyone"
            " with --keys off"
        )


class Auth:
    """Decides whether requests need a key, and what each of them may do."""

    def __init__(self, settings: ServerSettings, prometheus: Prometheus) -> None:
        self._settings, self._prometheus = settings, prometheus
        self._keys = Keys.in_folder(settings.state_folder)
        self._rates = Rates()

    @property
    def needed(self) -> bool:
        """Whether a request needs a key."""
        if self._settings.keys == "auto":
            # If the last key was revoked, the file still exists, and keys are still needed.
            return not self._settings.local or self._keys.path.exists()
        return self._settings.keys == "required"

    def key_of(self, token: str | None) -> Key | None:
        """The key of a request, or None if none is needed.

        A missing or unknown key, and one that sends too many requests, is refused.
        """
        if not self.needed:
            return None
        if not token:
            raise Problem(
                "unauthorized",
                "this server needs a key; send it as the header Authorization: Bearer KEY",
            )
        key = self._keys.find(token)
        if key is None:
            raise Problem(
                "unauthorized", "this key is unknown; ask the server's owner for a new one"
            )
        seconds = self._rates.wait(key, self._settings.workers, time.monotonic())
        if seconds:
            self._prometheus.rejections.labels("rate_limited").inc()
            raise Problem(
                "rate_limited",
                f"the key {key.name!r} may send {key.rate:g} requests a second; try again in a"
                " moment",
                {"Retry-After": str(math.ceil(seconds))},
            )
        return key


_bearer = HTTPBearer(
    auto_error=False,
    description="A key from `couce key new`. The server's setting `keys` says whether one is"
    " needed.",
)
_Token = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def may_read(request: Request, token: _Token) -> Key | None:
    key = request.app.state.service.auth.key_of(token.credentials if token else None)
    request.state.key = key.name if key else None
    return key


async def may_administer(request: Request, token: _Token) -> None:
    key = await may_read(request, token)
    if key is not None and key.role != "admin":
        raise Problem(
            "forbidden", f"the key {key.name!r} may only read; use a key with the role admin"
        )


async def may_change(request: Request, token: _Token) -> None:
    await may_administer(request, token)
    if request.app.state.service.settings.read_only:
        raise Problem(
            "forbidden",
            "the gallery cannot be changed, because this server was started with --read-only",
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
