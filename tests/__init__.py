"""The tests, as a package: so `tests.support` is found before any package of this name that somebody has installed."""
