"""CRC-32C (Castagnoli), the checksum of record batches and of all of pixy's own file formats."""

from crc32c import crc32c

__all__ = ["crc32c"]
