"""Environment variables of a node and of the processes in which it computes."""

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
