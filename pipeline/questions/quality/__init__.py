"""What must hold of the tables, asked by Great Expectations: the gate of CI, and the command `wakeroll check`."""

import logging

# It says much about itself, from the moment that it is imported on; what it finds, we say.
logging.getLogger("great_expectations").setLevel(logging.ERROR)
