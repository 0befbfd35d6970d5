"""Every rule gives the same bytes whatever the threads, BLAS kernel, CPU features or loops."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_digests.json").read_text(encoding="utf-8"))

# Different machines, as far as environment variables can imitate them.
MACHINES = {
    "as it is": (1, {}),
    "two threads": (2, {"OPENBLAS_NUM_THREADS": "2"}),
    "old BLAS kernel": (2, {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "1"}),
    "Nehalem": (1, {"OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "2"}),
    "Sandybridge": (1, {"OPENBLAS_CORETYPE": "Sandybridge"}),
    "Haswell": (2, {"OPENBLAS_CORETYPE": "Haswell"}),
    "Zen": (1, {"OPENBLAS_CORETYPE": "Zen", "OPENBLAS_NUM_THREADS": "2"}),
    "NumPy without SIMD dispatch": (1, {"NPY_DISABLE_CPU_FEATURES": "X86_V3"}),
    "compiled for any x86-64": (2, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_rule_gives_the_golden_bytes_on(machine: str, tmp_path: Path) -> None:
    threads, settings = MACHINES[machine]
    cache = {"NUMBA_CACHE_DIR": str(tmp_path)} if "NUMBA_CPU_NAME" in settings else {}
    child = subprocess.run(
        [sys.executable, HERE / "digests.py", str(threads)],
        env={**os.environ, **settings, **cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == {"numpy": GOLDEN, "numba": GOLDEN}
