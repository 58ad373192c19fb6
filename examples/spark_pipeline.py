"""A PySpark job to start from: sums sensor readings by event time, exactly once, from one topic of
pixy to another.

    spark-submit examples/spark_pipeline.py ADDRESS CHECKPOINT_FOLDER

Reads `{"at": "2026-01-01T00:00:00Z", "sensor": "s1", "reading": 12}` from the topic `readings`.
Writes one record per sensor and window of ten seconds to the topic `sums` when the window closes:
30 seconds behind the latest reading, which is the allowed lateness. Restart it whenever it was
stopped or killed: it resumes where it stopped.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

READING = "at timestamp, sensor string, reading bigint"


def sums(records: DataFrame) -> DataFrame:
    """Transform records of the topic `readings` to records of the topic `sums`."""
    readings = records.select(F.from_json(F.col("value").cast("string"), READING).alias("it")).select("it.*")
    by_window = (
        readings.withWatermark("at", "30 seconds")
        .groupBy(F.window("at", "10 seconds").alias("time"), "sensor")
        .agg(F.count("*").alias("count"), F.sum("reading").alias("sum"))
    )
    result = F.struct(F.col("time.start").alias("from"), "sensor", "count", "sum")
    return by_window.select(F.col("sensor").alias("key"), F.to_json(result).alias("value"))


def start(spark: SparkSession, address: str, checkpoint: str, *, until_end: bool = False) -> StreamingQuery:
    """Start the query, without end or up to the end of the existing records.

    Args:
        address: `host:port` of pixy.
        checkpoint: directory of the query's checkpoint; one per query.
    """
    records = (
        spark.readStream.format("pixy")
        .option("pixy.address", address)
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .load()
    )
    writer = (
        sums(records)
        .writeStream.format("pixy")
        .option("pixy.address", address)
        .option("topic", "sums")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    return writer.trigger(availableNow=True).start() if until_end else writer.start()


def main(address: str, checkpoint: str) -> None:
    """Run until stopped."""
    spark = SparkSession.builder.appName("sums").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    start(spark, address, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:3])
