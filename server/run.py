"""Runs the application in uvicorn, in one process or several. `couce serve` calls this."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from couce.errors import CouceError
from couce.server.app import create_app
from couce.server.auth import refuse_open_door
from couce.server.http.protocol import Protocol
from couce.server.serving import Serving
from couce.server.settings import ServerSettings

log = logging.getLogger("couce.server")

_SETTINGS = "COUCE_SERVER_SETTINGS"  # the variable that passes the settings to worker processes
_BACKLOG = 2048
_UVICORN: dict[str, Any] = {
    "http": Protocol,
    "ws": "none",
    "lifespan": "on",
    "log_config": None,
    "access_log": False,
    "proxy_headers": False,  # nothing depends on the client's address
    "server_header": False,
    # Longer than proxies keep a connection, so that no proxy sends a request into a closing one.
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": 30,  # seconds for requests that were accepted
}


def serve(settings: ServerSettings, show: Callable[[str], None]) -> None:
    """Serves until it is told to stop.

    Then it finishes the requests that it accepted and refuses new ones.
    """
    _log_to_stderr()
    listening = _listen(settings.host, settings.port)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listening.getsockname()[1]}"
    greeting = (
        f"Serving at {address} (stop with Ctrl+C). Next: open it in a browser, or"
        f" curl -F image=@bird.jpg {address}/search"
    )
    with suppress(KeyboardInterrupt):
        if settings.workers > 1:
            _serve_many(settings, listening, lambda: show(greeting))
        else:
            _serve_one(settings, listening, lambda: show(greeting))


def _serve_one(
    settings: ServerSettings, listening: socket.socket, ready: Callable[[], None]
) -> None:
    faults: list[Exception] = []
    app = create_app(settings, ready, faults.append)
    try:
        uvicorn.Server(uvicorn.Config(app, **_UVICORN)).run(sockets=[listening])
    except SystemExit:  # uvicorn exits if the application does not start
        if faults:
            raise faults[0] from None
        raise


def _serve_many(
    settings: ServerSettings, listening: socket.socket, ready: Callable[[], None]
) -> None:
    refuse_open_door(settings)
    # Errors are found here first. uvicorn would start a process that fails again and again.
    Serving.open(settings).close()
    counters = tempfile.mkdtemp(prefix="couce-counters-")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = counters
    os.environ[_SETTINGS] = settings.model_dump_json()
    config = uvicorn.Config(
        f"{__name__}:app_from_environment", factory=True, workers=settings.workers, **_UVICORN
    )
    try:
        ready()
        Multiprocess(config, [listening]).run()
    finally:
        shutil.rmtree(counters, ignore_errors=True)


def app_from_environment() -> FastAPI:
    """The application in a worker process that uvicorn started."""
    _log_to_stderr()
    threading.Thread(target=_follow, name="follow", daemon=True).start()
    return create_app(
        ServerSettings.model_validate_json(os.environ[_SETTINGS]),
        failed=lambda error: log.error(json.dumps({"event": "not started", "reason": str(error)})),
    )


def _follow() -> None:
    """Ends this process when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    It is opened before the model is loaded, so that a port that is in use is reported at once.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CouceError(
            f"the server cannot listen on {host}:{port} ({reason}); choose another address with"
            " --host and --port"
        ) from None
    listening.set_inheritable(True)
    return listening


def _log_to_stderr() -> None:
    """Logs one line of JSON for each request, and silences uvicorn's own lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    # python_multipart logs every broken form.
    for name in ("uvicorn", "uvicorn.error", "python_multipart"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
