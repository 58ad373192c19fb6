"""Messages of producer ids and transactions, in their first version, which every release of Kafka
supports.
"""

from pixy.kafka_protocol.api import Api
from pixy.kafka_protocol.fields import BOOLEAN, INT16, INT32, INT64, STRING, Array, Struct

_PARTITION_ERRORS = Array(
    ("topic", STRING), ("partitions", Array(("partition", INT32), ("error_code", INT16)))
)
_PRODUCER = (("producer_id", INT64), ("producer_epoch", INT16))
_CODE_ONLY = Struct(("throttle_time_ms", INT32), ("error_code", INT16))

INIT_PRODUCER_ID = Api(
    "InitProducerId",
    22,
    0,
    Struct(("transactional_id", STRING), ("transaction_timeout_ms", INT32)),
    Struct(("throttle_time_ms", INT32), ("error_code", INT16), *_PRODUCER),
    flexible=False,
)

ADD_PARTITIONS_TO_TXN = Api(
    "AddPartitionsToTxn",
    24,
    0,
    Struct(
        ("transactional_id", STRING),
        *_PRODUCER,
        ("topics", Array(("topic", STRING), ("partitions", Array(INT32)))),
    ),
    Struct(("throttle_time_ms", INT32), ("errors", _PARTITION_ERRORS)),
    flexible=False,
)

ADD_OFFSETS_TO_TXN = Api(
    "AddOffsetsToTxn",
    25,
    0,
    Struct(("transactional_id", STRING), *_PRODUCER, ("group", STRING)),
    _CODE_ONLY,
    flexible=False,
)

END_TXN = Api(
    "EndTxn",
    26,
    0,
    Struct(("transactional_id", STRING), *_PRODUCER, ("committed", BOOLEAN)),
    _CODE_ONLY,
    flexible=False,
)

TXN_OFFSET_COMMIT = Api(
    "TxnOffsetCommit",
    28,
    0,
    Struct(
        ("transactional_id", STRING),
        ("group", STRING),
        *_PRODUCER,
        (
            "topics",
            Array(
                ("topic", STRING),
                ("partitions", Array(("partition", INT32), ("offset", INT64), ("metadata", STRING))),
            ),
        ),
    ),
    Struct(("throttle_time_ms", INT32), ("errors", _PARTITION_ERRORS)),
    flexible=False,
)
