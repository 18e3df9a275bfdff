"""Drill: the deployment moves to another Kafka cluster.

Before: stop the producers, let the consumers handle everything (`wakeroll lag`), and stop consumers and observers. Create
the topics of messages in the new cluster. Then this drill stops `wakeroll run`, starts it for the new cluster with the
state of its checkpoint, in a new era, and sets the committed offsets of each group to the first message of its topics in
the new cluster. Epochs, settings and groups are kept. The old cluster is not changed. The tables begin anew in
--to-home, because offsets of the new cluster are those of other records; the old ones stay an archive.
Afterwards: start observers, consumers and producers with the new bootstrap.
"""
