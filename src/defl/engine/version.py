"""Which code this process runs, in one line that two machines can compare."""

import hashlib
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import defl

SOURCE = Path(defl.__file__).parent
SUFFIXES = {".py", ".csv", ".npz"}  # code, the paper's figures, the small data set
LIBRARIES = ("numpy", "torch")  # other versions may round differently


@cache  # what this process has loaded, also when files change later
def code_version() -> str:
    """Changes with any source file, with Python and with the libraries that compute."""
    python = f"python {sys.version_info.major}.{sys.version_info.minor}"
    versions = [f"{name} {_version(name)}" for name in LIBRARIES]
    return ", ".join((f"defl {defl.__version__}+{source_digest(SOURCE)}", python, *versions))


def source_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            content = path.read_bytes()
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "missing"
