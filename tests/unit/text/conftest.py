"""No test uses the network: `transformers` reads this variable when it is imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
