"""The filters of subscriptions, with exactly the results of RocketMQ 5.5.0.

>>> subscription = parse("paid || shipped")
>>> matches(subscription, tags_code("paid"), "paid", None), matches(subscription, tags_code("lost"), "lost", None)
(True, False)
>>> matches(parse("amount > 10 AND region = 'EU'", "SQL92"), None, None, {"amount": "12", "region": "EU"})
True
"""

from wakeroll_model.filters.filter_error import FilterError
from wakeroll_model.filters.matching import matches
from wakeroll_model.filters.subscription import ParsedSubscription, parse
from wakeroll_model.filters.tags import tags_code

__all__ = ["FilterError", "ParsedSubscription", "matches", "parse", "tags_code"]
