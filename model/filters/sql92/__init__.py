"""SQL92 conditions on a message's properties: the language of `org.apache.rocketmq.filter` 5.5.0, quirks included.

A property is text, and the constant that it meets says how to read it: ``a > 10`` reads it as an int, ``a > 1.5`` as a
double, ``a = TRUE`` as a boolean.  Text that cannot be read so is an error, and an error is no match; a property that
is missing is null, and null is no match.  What surprises people:

- ``NOT`` binds tighter than ``=``: ``NOT a = 10`` is ``(NOT a) = 10``.
- A property alone, as in ``a`` or ``a OR b``, is false, whatever it says; ``NOT a`` is true if there is one.
- ``a <> b`` matches if only b is missing; ``NOT (a CONTAINS 'x')`` matches without a, ``a NOT CONTAINS 'x'`` does not.
- ``IN`` takes text alone, and ``0.0`` is refused as too small a number.
- Whatever follows a complete condition is not read: ``a = 1 b = 2`` is ``a = 1``.
"""

from model.filters.sql92.conditions import Condition, holds
from model.filters.sql92.parser import read

__all__ = ["Condition", "holds", "read"]
