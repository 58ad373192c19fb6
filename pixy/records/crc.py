"""CRC-32C (Castagnoli), the checksum of record batches and of everything that pixy writes."""

from crc32c import crc32c

__all__ = ["crc32c"]
