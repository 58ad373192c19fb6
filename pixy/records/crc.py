"""CRC-32C (Castagnoli), the checksum of record batches and of all of pixy's own file formats.

`crc32c(data, value)` continues from the value of what comes before; the data is any buffer. The
library names the algorithm after its use in iSCSI (RFC 3720).
"""

from fastcrc.crc32 import iscsi

crc32c = iscsi
