"""The bytes that consumer groups may hold, fetched and decompressed, and whose turn it is."""

from pixy.consume.memory.bounded_memory import BoundedMemory
from pixy.consume.memory.memory_turns import Demand, MemoryPlace
from pixy.consume.memory.pins import Pin, Pins, bounded_pins
from pixy.consume.memory.unpacking import HeldRecords, Unpack, Unpacking

__all__ = [
    "BoundedMemory",
    "Demand",
    "HeldRecords",
    "MemoryPlace",
    "Pin",
    "Pins",
    "Unpack",
    "Unpacking",
    "bounded_pins",
]
