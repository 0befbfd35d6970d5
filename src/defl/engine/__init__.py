"""Many independent cells at once: on this machine's cores (processes) or on a Ray cluster.

A cell, or a scenario, is one task: bytes in, bytes out. A task names its function by a fixed name
(tasks.py); no code travels. Only the driver, the process that the user started, writes results.
"""
