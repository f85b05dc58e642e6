"""Expressions: computed values and conditions, as text with one meaning for items and for columns."""

from exop.model.expressions.expression import Expression, read, read_condition, row_function
from exop.model.expressions.functions import Function
from exop.model.expressions.reader import Names

__all__ = ["Expression", "Function", "Names", "read", "read_condition", "row_function"]
