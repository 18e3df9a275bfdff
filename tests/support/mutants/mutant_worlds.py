"""Worlds for mutants: shorter than others, and with the faults that a broken rule shows by."""

SMALL = {"chaos_ms": 120_000, "orderly": False, "eager": False, "broadcasting": False}
COMING = {**SMALL, "handling_ms": 300, "only": ("leave", "crash", "route", "wish", "cut")}
"""Clients come and go, in good order and otherwise."""
ORDERED = {**SMALL, "orderly": True, "revoke_ms": 3_000, "only": ("slow", "slow", "crash", "restart", "leave", "wish")}
SLOW = {**SMALL, "revoke_ms": 3_000, "only": ("slow", "slow", "behind", "deaf", "leave", "crash", "route")}
AWAY = {**SMALL, "only": ("zombie", "cut", "deaf", "behind", "crash", "pause")}
"""Clients are silent."""
LIVES = {**SMALL, "only": ("restart", "farewell", "abort", "twin", "crash", "leave")}
"""Clients have one life after the other."""
FIGHTS = {**SMALL, "only": ("fight", "fight", "fight", "twin", "deaf")}
CLOCK = {**SMALL, "session_ms": 10_000, "only": ("step", "step", "dark", "no ticks", "cut")}
LATE = {**SMALL, "settle_ms": 0, "only": ("late", "late", "late", "behind", "route", "route", "wish", "leave", "deaf")}
"""What clients hear is old."""
ECHO = {**SMALL, "settle_ms": 0, "only": ("echo", "echo", "echo", "kill", "route", "leave", "crash", "wish")}
"""What clients hear, they have heard before."""
SKIPPED = {**SMALL, "only": ("skip", "skip", "skip", "route", "leave", "crash")}
CONFIGURED = {**SMALL, "session_ms": 45_000, "only": ("configure", "configure", "cut", "cut", "deaf", "skip", "zombie")}
RESET = {**SMALL, "handling_ms": 300, "only": ("reset", "reset", "reset", "reset", "leave", "route", "crash")}
"""Offsets are set while commits are under way."""
OVERTAKEN = {
    "chaos_ms": 120_000,
    "is_raised": True,
    "settle_ms": 0,
    "session_ms": 10_000,
    "consume_from": "last",
    "only": ("outage",) * 6 + ("route",) * 6 + ("wish",) * 4,
}
"""Coordinators are away, and decide about queues before they read what clients have committed meanwhile."""
DELETED = {
    **SMALL,
    "is_raised": True,
    "handling_ms": 300,
    "only": ("delete",) * 6 + ("leave", "route", "crash", "wish"),
}
"""Offsets of topics are deleted, when nobody reads them and when somebody does."""
FULL = {**SMALL, "only": ("full", "full", "leave", "crash", "restart", "other mode")}
KICKED = {
    **SMALL,
    "is_raised": True,
    "handling_ms": 300,
    "only": ("kick",) * 12 + ("slow", "cut", "zombie", "twin", "restart", "leave", "route"),
}
"""An operator kicks clients."""
RESTED = {**SMALL, "is_raised": True, "only": ("rest",) * 8 + ("skip", "lost", "lost", "new inbox", "deaf", "cut")}
"""An operator pauses groups, and assignments get lost."""
CUT = {**SMALL, "is_raised": True, "slices": True, "only": ("slices",) * 10 + ("leave", "crash", "wish", "route")}
"""Partitions are cut into slices, again and again."""
CUT_AND_RESET = {**CUT, "only": ("slices",) * 8 + ("reset",) * 8 + ("leave", "slow")}
CUT_AND_FAR = {**CUT, "only": ("slices",) * 16 + ("far commit",) * 8 + ("leave", "slow")}
"""The same, and a client has committed beyond the end."""
CUT_OFTEN = {
    **CUT,
    "handling_ms": 300,
    "session_ms": 10_000,
    "only": ("slices",) * 24 + ("leave", "wish", "wish", "slow"),
}
CUT_AND_LOST = {
    **CUT,
    "chaos_ms": 240_000,
    "eager": True,
    "only": ("slices",) * 14 + ("loss",) * 8 + ("slow", "slow", "leave", "cut"),
}
LOCKS = {**SMALL, "only": ("lock", "lock", "lock", "lock", "leave", "crash", "route", "twin")}
STRATEGIES = {**SMALL, "only": ("strategy", "strategy", "strategy", "prefer", "leave", "route")}
ROUTES = {**SMALL, "only": ("route", "route", "gone", "storm", "room", "leave")}
FORGED = {**SMALL, "only": ("forged", "forged", "forged", "forged", "leave", "crash", "wish")}
EVERYBODY = {
    **SMALL,
    "broadcasting": True,
    "only": ("route", "route", "gone", "reset", "reset", "leave", "crash", "wish", "restart"),
}
"""The group audit broadcasts."""
JUNK = {**SMALL, "only": ("junk",)}
OUTAGES = {
    **SMALL,
    "chaos_ms": 240_000,
    "session_ms": 10_000,
    "is_raised": True,
    "only": ("outage",) * 8 + ("wish", "wish", "leave", "route", "crash"),
}
"""The coordinators are away for longer than two sessions, in the middle of hand-overs."""
LOST = {**SMALL, "chaos_ms": 240_000, "only": ("loss",) * 6 + ("leave", "crash", "cut", "pause", "route", "skip")}
"""The coordinator loses its state."""
PATTERNS = {
    **SMALL,
    "is_raised": True,
    "patterns": True,
    "only": ("wish",) * 4 + ("gone",) * 3 + ("made again", "route", "leave", "restart"),
}
"""Clients subscribe by patterns, and change them; topics vanish and appear."""
