# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many examples Hypothesis tries: few and always the same ones in `make unit`, many and new ones in `make soak`.

A failure of `make soak` prints the decorator that repeats it (print_blob), because no database is kept.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

# Hypothesis keeps tables of characters, beside pytest's own cache.
set_hypothesis_home_dir(Path(__file__).parents[3] / ".pytest_cache/hypothesis")
# A reader that takes long is the business of the tests of growth, and not of these.
ALWAYS = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("unit", max_examples=40, derandomize=True, **ALWAYS)
settings.register_profile("soak", max_examples=2000, print_blob=True, **ALWAYS)
settings.load_profile(os.environ.get("FUZZ_PROFILE", "unit"))
