"""All mutants of groups and their clients, and those of them that no world shows."""

from mutants import client, handover, membership, operator

MUTANTS = (*handover.MUTANTS, *membership.MUTANTS, *operator.MUTANTS, *client.MUTANTS)

UNSEEN = {
    "client obeys an older epoch": "redundant: a shard numbers what it decides, which tells what is outdated already",
}
"""Mutants that no world has found so far, and why: the code is redundant there, or the worlds are too kind."""
