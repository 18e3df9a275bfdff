"""Data quality rules on the tables, run by Great Expectations for CI and for `wakeroll check`."""

import logging

# Great Expectations logs its own progress from its import on; only its errors are of interest here.
logging.getLogger("great_expectations").setLevel(logging.ERROR)
