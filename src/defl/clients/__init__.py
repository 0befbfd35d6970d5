"""What a user writes against; the only room for torch, scikit-learn and flwr."""

import os

# Flower reads this when it is imported and would report its use to its makers.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
