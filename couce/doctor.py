"""`couce doctor`: finds out which libraries are installed, and tries whether they work."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from couce import __version__
from couce.machine.cores import usable_cores

# Packages that match one pattern install the same module and overwrite each other's files.
_RIVALS = (
    r"onnxruntime(-(gpu|directml|openvino|training|rocm|silicon|qnn))?",
    r"faiss-(cpu|gpu).*",
)

_ONE_OF = "one of couce[cpu], couce[gpu] (CUDA 12), couce[gpu-cu13] (CUDA 13)"

# An ONNX model with one Identity node, to open a session with and ask where it runs. It is stored
# here because the onnx package may be missing. tests/test_doctor.py compares it with a new one.
IDENTITY_MODEL = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a00100d"
)


@dataclass
class Diagnosis:
    facts: list[tuple[str, str]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)  # optional packages to install
    problems: list[str] = field(default_factory=list)  # faults to repair


def examine() -> Diagnosis:
    """Examines everything. A missing or broken library is reported and raises nothing."""
    diagnosis = Diagnosis()
    diagnosis.facts.append(("couce", __version__))
    diagnosis.facts.append(("python", f"{platform.python_version()} on {platform.platform()}"))
    diagnosis.facts.append(("cores", str(usable_cores())))
    diagnosis.problems += conflicts(installed())
    for name, look in (("onnxruntime", _onnxruntime), ("faiss", _faiss), ("torch", _torch)):
        try:
            diagnosis.facts.append((name, look(diagnosis)))
        except ModuleNotFoundError as error:
            diagnosis.facts.append((name, "not installed"))
            if error.name != name:
                diagnosis.problems.append(
                    f"{name} is installed, but a package that it needs is not: {error}"
                )
            elif name == "torch":
                diagnosis.advice.append("for training and export: install couce[train]")
            else:
                diagnosis.problems.append(f"{name} is missing: install {_ONE_OF}")
        except Exception as error:  # a broken installation can raise any exception
            diagnosis.facts.append((name, "broken"))
            diagnosis.problems.append(f"{name} does not work: {error}")
    return diagnosis


def installed() -> dict[str, str]:
    """Installed distributions and their versions, by lower-case name with dashes."""
    return {
        dist.name.lower().replace("_", "-"): dist.version or ""
        for dist in metadata.distributions()
        if dist.name
    }


def conflicts(packages: Mapping[str, str]) -> list[str]:
    """One sentence for each conflict between the installed packages (name to version).

    >>> conflicts({"onnxruntime-gpu": "1.26.0", "faiss-gpu": "1.15.1"})
    []
    >>> len(conflicts({"onnxruntime-gpu": "1.28.0", "faiss-cpu": "1.15.1", "faiss-gpu": "1.15.1"}))
    2
    """
    found = []
    for pattern in _RIVALS:
        present = sorted(name for name in packages if re.fullmatch(pattern, name))
        if len(present) > 1:
            found.append(
                f"{' and '.join(present)} overwrite each other: uninstall them all, then install"
                f" {_ONE_OF}"
            )
    majors = _cuda_majors(packages)
    if len(set(majors.values())) > 1:
        listed = ", ".join(f"{name} is built for CUDA {major}" for name, major in majors.items())
        found.append(f"{listed}: install couce[gpu] (CUDA 12) or couce[gpu-cu13] alone")
    return found


def _cuda_majors(packages: Mapping[str, str]) -> dict[str, int]:
    majors = {}
    if "onnxruntime-gpu" in packages:
        version = re.match(r"1\.(\d+)", packages["onnxruntime-gpu"])
        majors["onnxruntime-gpu"] = 12 if version and int(version[1]) < 27 else 13
    if "faiss-gpu" in packages:
        majors["faiss-gpu"] = 12
    if "faiss-gpu-cuvs" in packages:
        majors["faiss-gpu-cuvs"] = 13
    return majors


def _onnxruntime(diagnosis: Diagnosis) -> str:
    import onnxruntime

    # get_available_providers() lists providers that are compiled in but may not work. Without CUDA,
    # a session for CUDA silently runs on the CPU. So a session is opened and asked.
    providers = [
        name
        for name in onnxruntime.get_available_providers()
        if name not in ("CPUExecutionProvider", "AzureExecutionProvider")
    ]
    working = [name for name in providers if name in _session_providers(onnxruntime, name)]
    session = _session_providers(onnxruntime, "CPUExecutionProvider")
    # Other providers, such as TensorRT, are always compiled in. That their libraries are missing
    # is not a problem.
    if "CUDAExecutionProvider" in set(providers) - set(working):
        diagnosis.problems.append(
            "onnxruntime is built for CUDA, but a session falls back to the CPU: the driver or the"
            " CUDA libraries are missing or have another version"
        )
    if not providers:
        diagnosis.advice.append(
            "for a GPU: install couce[gpu-cu13] (CUDA 13) or couce[gpu] (CUDA 12)"
        )
    return f"{onnxruntime.__version__}, runs on {', '.join([*working, *session])}"


def _session_providers(onnxruntime: Any, provider: str) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # providers may fail to load here, so no messages about it
    wanted = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
    session = onnxruntime.InferenceSession(IDENTITY_MODEL, options, providers=wanted)
    return session.get_providers()


def _faiss(diagnosis: Diagnosis) -> str:
    import faiss

    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if any(name.startswith("faiss-gpu") for name in installed()) and not gpus:
        diagnosis.advice.append("faiss is built for GPUs but finds none; it uses the CPU")
    return f"{faiss.__version__}, {gpus} GPUs"


def _torch(diagnosis: Diagnosis) -> str:
    import torch

    if torch.version.cuda and not torch.cuda.is_available():
        diagnosis.advice.append(
            "torch is built for CUDA but finds no GPU or driver; it uses the CPU"
        )
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return f"{torch.__version__} ({build}), trains on {', '.join(devices) or 'the CPU'}"
