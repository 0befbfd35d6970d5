"""DeFL: federated learning with no server and nobody to trust.

docs/ARCHITECTURE.md tells what each part is for; nothing is re-exported here.
"""

__version__ = "0.2.0"
