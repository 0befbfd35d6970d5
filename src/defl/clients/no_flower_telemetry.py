"""Flower reports its use to its makers unless told otherwise before it is imported.

Every module that imports flwr imports this one first. Importing `defl` or its other clients leaves
the environment as it is.
"""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
