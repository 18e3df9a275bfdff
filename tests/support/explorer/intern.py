"""Interned values: equal parts of states get one small number, so that a state is a tuple of numbers."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Pool(Generic[Value]):
    """Values by number; a value whose key is known keeps the number of the first one."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self._numbers: dict[Hashable, int] = {}

    def __getitem__(self, number: int) -> Value:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

    def add(self, key: Hashable, value: Value) -> int:
        """Return the number of the value with this key."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number
