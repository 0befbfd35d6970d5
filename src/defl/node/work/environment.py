"""Environment variables of a node and of the processes in which it computes.

A node's environment may hold secrets: the proxy's password, tokens of the service. So the training
code, and the packages that it imports, get the variables that are listed here, and those that the
operator names in node.toml (`client_environment`). docs/CLIENTS.md has the same list.
"""

import re
from collections.abc import Iterable, Mapping

# One thread for BLAS, unless the user wants more: starting threads takes a quarter of a process's
# start, and the nodes of one machine would compete.
THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
ONE_THREAD = dict.fromkeys(THREAD_SETTINGS, "1")

# A child needs the memory that it frees after one round again in the next. The C library's
# allocator therefore keeps arrays of up to 32 MiB (its maximum) and half a GiB in total, which
# spares the system from clearing the same pages again and again.
KEPT_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20),
}

_PASSED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|HOSTNAME|LANG|LANGUAGE|TZ|TERM|TMPDIR|TMP|TEMP"
    "|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV"
    "|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    "|NO_PROXY|no_proxy|TOKENIZERS_PARALLELISM"
)
_PASSED_BEGINNINGS = re.compile(
    "LC_|XDG_|PYTHON|DEFL_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_|NUMEXPR_|VECLIB_|NUMBA_|MALLOC_"
    "|CUDA_|CUDNN_|CUBLAS_|NVIDIA_|NCCL_|GLOO_|HIP_|HSA_|ROCR_|ROCM_|TORCH|PYTORCH_|TRITON_"
    "|HF_|TRANSFORMERS_|TF_|XLA_|JAX_|KERAS_|SKLEARN_|MPL|FLWR_|COV_|COVERAGE_"
)
# Only without a password, which would stand before an @.
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})
# Of the names that begin like those above: HF_TOKEN, for instance, has to be named.
_SECRET = re.compile("TOKEN|PASSW|SECRET|CREDENTIAL|_KEY$")
# What an operator may name: a variable, or with a * all that begin like this.
NAMED_FORM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")


def passed(environment: Mapping[str, str], named: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables for a process that computes; the operator `named` some of them."""
    patterns = tuple(named)
    return {
        name: value
        for name, value in environment.items()
        if _is_passed(name, value) or any(_fits(name, pattern) for pattern in patterns)
    }


def unset_names(named: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Return the variables that the operator named and that are not set, perhaps misspelled."""
    return [name for name in named if not name.endswith("*") and name not in environment]


def _is_passed(name: str, value: str) -> bool:
    if name.upper() in _PROXIES:
        return "@" not in value
    if _PASSED.fullmatch(name):
        return True
    return bool(_PASSED_BEGINNINGS.match(name)) and not _SECRET.search(name.upper())


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
