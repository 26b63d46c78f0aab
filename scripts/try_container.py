"""Tries the Dockerfile where no container engine runs, and lists what it could not try.

The RUN lines of serve-cpu are run unchanged, with two exceptions: their paths are moved to a
temporary folder, and a new virtual environment takes the place of the image's Python. Then the
image's command serves a gallery. For the GPU images, pip only resolves the packages. Base images
and their libraries are not tried.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from dockerfile import ignored, parse

ROOT = Path(__file__).parent.parent
# Commands that would change this machine.
NOT_RUN = ("apt-get", "rm", "useradd", "install")
# The start of a path to one of the folders that are moved to the temporary folder.
IN_IMAGE = re.compile(r"(?<![\w./])/(?=(?:src|wheels|opt|data)\b)")


def check(fact: bool, words: str) -> None:
    print(f"    {'yes' if fact else 'NO'}: {words}", flush=True)
    if not fact:
        sys.exit("The Dockerfile does not do what is expected of it; see the line above.")


class Trial:
    """Builds stages of the Dockerfile in a temporary folder."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python = folder, python
        self.stages = parse((ROOT / "Dockerfile").read_text())
        self.env: dict[str, dict[str, str]] = {}
        self.work: dict[str, str] = {}  # the WORKDIR of a stage, relative to its folder
        self.not_run: list[str] = []

    def here(self, stage: str, text: str) -> str:
        """The text with the paths of an image moved to the folder of the stage."""
        return IN_IMAGE.sub(f"{self.folder / stage}/", text)

    def build(self, name: str, dry: bool = False) -> None:
        """Builds a stage and the stages that it needs. With ``dry``, packages are only resolved."""
        stage, root = self.stages[name], self.folder / name
        if root.exists():
            return
        if stage.base in self.stages:
            self.build(stage.base)
            # Both stages use the Python of the base.
            shutil.copytree(self.folder / stage.base, root, True, shutil.ignore_patterns("usr"))
            self.env[name], self.work[name] = dict(self.env[stage.base]), self.work[stage.base]
        else:
            self.not_run.append(f"[{name}] FROM {stage.base}: its Python and system libraries")
            subprocess.run([self.python, "-m", "venv", root / "usr/local"], check=True)
            # pip gets the settings of this machine's pip, such as its index and certificates.
            kept = re.compile(r"PIP_|SSL_|(https?|no)_proxy", re.IGNORECASE)
            self.env[name] = {key: value for key, value in os.environ.items() if kept.match(key)}
            self.work[name] = "."
            path = f"{root}/usr/local/bin:/usr/bin:/bin"
            self.env[name] |= {"PATH": path, "HOME": str(root), "PIP_QUIET": "1"}
        for instruction, text in stage.steps:
            if instruction == "ENV":
                pairs = (word.split("=", 1) for word in shlex.split(self.here(name, text)))
                path = self.env[name]["PATH"]
                self.env[name] |= {key: value.replace("$PATH", path) for key, value in pairs}
            elif instruction == "WORKDIR":
                self.work[name] = text.lstrip("/")
                (root / self.work[name]).mkdir(parents=True, exist_ok=True)
            elif instruction == "COPY":
                self.copy(text, root / self.work[name])
            elif instruction == "RUN":
                self.run(name, text, root / self.work[name], dry)

    def copy(self, text: str, work: Path) -> None:
        if text != ". .":
            raise ValueError(f"this script does not support COPY {text}")
        patterns = (ROOT / ".dockerignore").read_text()
        for path in ROOT.rglob("*"):
            name = path.relative_to(ROOT)
            if (path.is_symlink() or path.is_file()) and not ignored(name, patterns):
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, work / name, follow_symlinks=False)

    def run(self, name: str, text: str, work: Path, dry: bool) -> None:
        while text.startswith("--mount="):
            mount, text = text.split(maxsplit=1)
            values = dict(pair.split("=", 1) for pair in mount[8:].split(","))
            if values["type"] == "bind":
                held = self.here(values["from"], values["source"])
                self.build(values["from"], dry)
                Path(self.here(name, values["target"])).symlink_to(held)
            elif values["type"] != "cache":
                raise ValueError(f"this script does not support {mount}")
        for command in map(str.strip, text.split("&&")):
            first, second, *rest = shlex.split(command)
            if first in NOT_RUN or (dry and (first, second) != ("pip", "wheel")):
                self.not_run.append(f"[{name}] {command}")
                continue
            if dry:
                self.not_run.append(f"[{name}] {command}: packages only resolved, not downloaded")
                command = f'pip install --dry-run --quiet --report chosen.json "{rest[-1]}"'
            print(f"[{name}] {command}", flush=True)
            shell = ["/bin/sh", "-c", self.here(name, command)]
            subprocess.run(shell, cwd=work, env=self.env[name], check=True)
            if dry:
                chosen = json.loads((work / "chosen.json").read_text())["install"]
                found = {each["metadata"]["name"]: each["metadata"]["version"] for each in chosen}
                main = [f"{n} {found[n]}" for n in found if re.match("torch$|onnxr|faiss", n)]
                print(f"    {len(found)} packages, among them {', '.join(main)}")
                check(("torch" in found) == ("train" in name), "only the training image has torch")


def serve(trial: Trial, name: str, model: Path, gallery: Path, port: int) -> None:
    """Runs the image's command on a gallery: waits until it is ready, searches, and stops it."""
    stage, data = trial.stages[name], trial.folder / name / "data"
    shutil.copy(model, data / "model.onnx")
    shutil.copytree(gallery, data / "gallery")
    image = next(path for path in sorted(gallery.rglob("*")) if path.is_file()).read_bytes()
    entry, health = stage.words("ENTRYPOINT"), stage.words("HEALTHCHECK")
    command = [*entry, *stage.words("CMD")]
    if port != 8000:
        trial.not_run.append(f"[{name}] port 8000, in CMD and HEALTHCHECK: {port} instead")
        command, health[-1] = [*command, f"--port={port}"], health[-1].replace("8000", str(port))
    how: dict[str, Any] = {"cwd": data, "env": trial.env[name]}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, check=False, capture_output=True, text=True, **how)

    user = int(stage.only("USER"))
    # Only root can run a command as another user, and that user must be able to read the Python.
    try:
        dropped = {"user": user, "group": user, "extra_groups": [], **how}
        subprocess.run([*entry, "--version"], check=True, **dropped)
        for path in [data, *data.rglob("*")]:
            os.chown(path, user, user)
        how = dropped
    except (OSError, subprocess.SubprocessError):
        trial.not_run.append(
            f"[{name}] USER {user}: needs root and a Python that all users can read"
        )

    def search(key: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {key}"}
        connection.request("POST", "/search?k=1", image, headers)
        answer = connection.getresponse()
        return answer.status, json.load(answer)

    found = run("python", "-c", "import importlib.util as u; print(u.find_spec('torch'))").stdout
    check(found == "None\n", "torch cannot be imported")
    check("couce key new" in run(*command).stderr, "it does not serve without a key")
    key = run(*entry, "key", "new", "me", "--role", "admin").stdout.strip()
    check(run(*entry, "index", "build", "gallery").returncode == 0, "it indexes a gallery")
    check(run(*health).returncode != 0, "the health check fails before the server runs")
    print(f"[{name}] {shlex.join(command)}", flush=True)
    began = time.monotonic()
    with subprocess.Popen(command, **how) as server:
        try:
            while (failed := run(*health).returncode) and time.monotonic() - began < 120:
                time.sleep(0.2)
            check(not failed, f"the health check succeeds after {time.monotonic() - began:.1f} s")
            check(search("wrong")[0] == 401, "a search with a wrong key is refused")
            status, found = search(key)
            check(status == 200 and found["hits"][0]["score"] > 0.999, "an image finds itself")
            began = time.monotonic()
            server.send_signal(signal.Signals[stage.only("STOPSIGNAL")])
            code = server.wait(10)  # `docker stop` waits as long
            took = time.monotonic() - began
            check(code in (0, -signal.SIGTERM), f"stopped in {took:.1f} s, exit code {code}")
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="the Python to use in place of that of the images (default: this one)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="an ONNX model to serve, together with --gallery (default: `couce demo` makes both)",
    )
    parser.add_argument("--gallery", type=Path, help="a folder of images to index")
    parser.add_argument(
        "--port", type=int, default=8000, help="the port to serve at (default: 8000)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="couce-container-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        subprocess.run([given.python, "--version"], check=True)
        trial = Trial(folder, given.python)
        trial.build("serve-cpu")
        if not (given.model and given.gallery):
            demo = ["-m", "couce", "demo", "--epochs", "1", "--no-serve", "--out", f"{folder}/demo"]
            subprocess.run([sys.executable, *demo], cwd=ROOT, check=True)
            given.model, given.gallery = folder / "demo/model.onnx", folder / "demo/pictures/test"
        serve(trial, "serve-cpu", given.model, given.gallery, given.port)
        for name in ("serve-gpu", "train-gpu"):
            trial.build(name, dry=True)
        print("Not run:", *trial.not_run, sep="\n    ")


if __name__ == "__main__":
    main()
