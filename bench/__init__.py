"""What the parts of wakeroll cost on this machine, beside what a user would pick instead.

``python -m bench`` measures, writes `results.json`, and makes `docs/performance.md` from it.
``python -m bench.path_latency`` does the same for what needs a broker and the jobs.  No test asks for a time: a figure
is read by people, with its load.
"""
