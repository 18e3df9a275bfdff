"""Benchmarks: the cost of wakeroll's parts on this machine, compared with the usual alternatives.

``python -m bench NAME`` measures, writes `bench/*.json`, and generates `docs/performance.md` from all of them;
``python -m bench --help`` lists the names. No test checks a duration: people read the figures, together with the load
of the machine.
"""
