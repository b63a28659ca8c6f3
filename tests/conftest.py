"""What every test runs under."""

import os

from hypothesis import settings

# Nothing here may look for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

# The machine may be busy, and no test is about time.
settings.register_profile("decodekit", deadline=None)
settings.load_profile("decodekit")
