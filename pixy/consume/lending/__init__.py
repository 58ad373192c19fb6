"""Offers of partitions that another node owns, for clients here, and the other way round."""

from pixy.consume.lending.borrower import Borrower
from pixy.consume.lending.lender import Lender
from pixy.consume.lending.lending import RecordPosition

__all__ = [
    "Borrower",
    "Lender",
    "RecordPosition",
]
