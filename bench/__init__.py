"""Benchmarks: the cost of wakeroll's parts on this machine, compared with the usual alternatives.

``python -m bench`` measures, writes `results.json`, and generates `docs/performance.md` from it.
``python -m bench.path_latency`` measures the parts that need a broker and the jobs. No test checks a duration: people
read the figures, together with the load of the machine.
"""
