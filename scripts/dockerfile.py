"""Parses the Dockerfile and .dockerignore of this repository.

Only the syntax that these two files use is known. Anything else is an error.
"""

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

KNOWN = {
    *("FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


@dataclass
class Stage:
    name: str
    base: str  # a base image, or the name of another stage
    steps: list[tuple[str, str]] = field(default_factory=list)  # instructions and their arguments

    def only(self, instruction: str) -> str:
        """The argument of an instruction that the stage has exactly once."""
        (text,) = (text for name, text in self.steps if name == instruction)
        return text

    def words(self, instruction: str) -> list[str]:
        """The words of an ENTRYPOINT, CMD or HEALTHCHECK in JSON form."""
        return json.loads(re.sub(r"^(--\S+ )*CMD ", "", self.only(instruction)))


def parse(dockerfile: str) -> dict[str, Stage]:
    """The stages by name, in order.

    >>> parse('FROM python:3.12 AS one\\nRUN a && \\\\\\n    b\\nCMD ["c"]')["one"].steps
    [('RUN', 'a && b'), ('CMD', '["c"]')]
    """
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        instruction, text = line.split(maxsplit=1)
        if instruction not in KNOWN:
            raise ValueError(f"the instruction {instruction} is not supported here: {line}")
        if instruction == "FROM":
            base, _, name = text.split()
            stages[name] = stage = Stage(name, base)
        else:
            stage.steps.append((instruction, text))
    return stages


def ignored(path: Path, dockerignore: str) -> bool:
    """Whether the relative ``path`` is excluded from a build. The last matching pattern decides.

    >>> ignored(Path("a/b.pt"), "*\\n!a\\n**/*.pt"), ignored(Path("a/b"), "*\\n!a\\n**/*.pt")
    (True, False)
    """
    out = False
    for line in dockerignore.splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        if "/" in pattern:
            raise ValueError(f"the pattern {line} is not supported here")
        parts = path.parts if "**/" in line else path.parts[:1]
        if any(fnmatchcase(part, pattern) for part in parts):
            out = not line.startswith("!")
    return out
