"""No test asks the network: `transformers` reads this when it is imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
