"""SQL92 conditions on a message's properties: the language of `org.apache.rocketmq.filter` 5.5.0, quirks included.

A property is text, and the constant in the comparison determines its conversion: ``a > 10`` converts it to an int, ``a
> 1.5`` to a double, ``a = TRUE`` to a boolean. A failed conversion is an error, and with an error the message does not
match. A missing property is null, which does not match either. Surprising results:

- ``NOT`` binds tighter than ``=``: ``NOT a = 10`` is ``(NOT a) = 10``.
- A property alone, as in ``a`` or ``a OR b``, is false for every value; ``NOT a`` is true if the property exists.
- ``a <> b`` matches if only b is missing; ``NOT (a CONTAINS 'x')`` matches if a is missing, ``a NOT CONTAINS 'x'`` not.
- ``IN`` accepts text only, and ``0.0`` is rejected as a number that is too small.
- Text after a complete condition is ignored: ``a = 1 b = 2`` is ``a = 1``.
"""

from wakeroll_model.filters.sql92.conditions import Condition, holds
from wakeroll_model.filters.sql92.parser import read

__all__ = ["Condition", "holds", "read"]
