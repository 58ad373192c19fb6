"""A demonstration of spark_pipeline.py: a daemon on a free port, generated readings, the query
stopped and restarted.

    python examples/demo_spark.py

Prints the results, and compares them with a batch job over all readings. Exits with 1 if they
differ. Needs the extra `spark`.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from demo import DemoFailed, daemon
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_pipeline import start

from pixy.spark import use_java

READINGS = 100_000
ROUNDS = 3
SENSORS = 4
SECONDS_MAX = 120
ROOT = Path(__file__).parents[1]
SUM = "`from` timestamp, sensor string, count bigint, sum bigint"


def session() -> SparkSession:
    """A small local session."""
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("pixy-demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def generate(spark: SparkSession, address: str, number: int) -> None:
    """Generate a third of the readings: twenty seconds of event time, unordered within a second."""
    each = READINGS // ROUNDS
    seconds = F.lit(number * 20) + (F.col("id") * 20 / each).cast("int")
    reading = F.struct(
        F.timestamp_seconds(F.lit(1_767_225_600) + seconds).alias("at"),
        F.concat(F.lit("s"), F.col("id") % SENSORS).alias("sensor"),
        (F.col("id") * 7919 % 100).alias("reading"),
    )
    rows = spark.range(each).select(reading.alias("it")).select("it.sensor", F.to_json("it").alias("value"))
    rows.withColumnRenamed("sensor", "key").write.format("pixy").option("pixy.address", address).option(
        "topic", "readings"
    ).mode("append").save()


def close_windows(spark: SparkSession, address: str) -> None:
    """Write a reading an hour later, which closes all windows before it."""
    late = spark.sql("""SELECT '{"at": "2026-01-01T01:00:00Z", "sensor": "clock", "reading": 0}' AS value""")
    late.write.format("pixy").option("pixy.address", address).option("topic", "readings").mode(
        "append"
    ).save()


def load(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """All records of a topic, as a batch."""
    return spark.read.format("pixy").option("pixy.address", address).option("subscribe", topic).load()


def came_out(spark: SparkSession, address: str) -> DataFrame:
    """The records of the topic `sums`."""
    parsed = load(spark, address, "sums").select(F.from_json(F.col("value").cast("string"), SUM).alias("it"))
    return parsed.select("it.*").orderBy("from", "sensor")


def expected(spark: SparkSession, address: str) -> DataFrame:
    """The expected records, by a batch job over all readings."""
    form = "at timestamp, sensor string, reading bigint"
    parsed = load(spark, address, "readings").select(
        F.from_json(F.col("value").cast("string"), form).alias("it")
    )
    windows = (
        parsed.select("it.*")
        .where("sensor != 'clock'")
        .groupBy(F.window("at", "10 seconds").alias("time"), "sensor")
    )
    sums = windows.agg(F.count("*").alias("count"), F.sum("reading").alias("sum"))
    return sums.select(F.col("time.start").alias("from"), "sensor", "count", "sum").orderBy("from", "sensor")


def show(folder: Path, address: str) -> None:
    """The whole demonstration."""
    spark = session()
    began = time.monotonic()
    for number in range(ROUNDS):
        generate(spark, address, number)
        if number == ROUNDS - 1:
            close_windows(spark, address)
        query = start(spark, address, str(folder / "checkpoint"), until_end=True)
        if not query.awaitTermination(SECONDS_MAX):
            raise DemoFailed("the query did not end")
        rows = sum(each["numInputRows"] for each in query.recentProgress)
        print(f"run {number + 1} of the query: {rows} readings in, then it was stopped", flush=True)
    print(f"\nThe topic sums, after {time.monotonic() - began:.0f} s:")
    found = came_out(spark, address)
    found.show(100, truncate=False)
    rows_found, rows_expected = found.collect(), expected(spark, address).collect()
    spark.stop()
    if rows_found != rows_expected:
        raise DemoFailed(f"a batch job over all readings says something else: {rows_expected}")
    print(
        f"{len(rows_found)} windows, each once, of {sum(row['count'] for row in rows_found)} readings: as a batch job over all of them says"
    )


def main() -> int:
    """Run the demonstration; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="pixy-demo-") as name:
        folder = Path(name)
        try:
            with daemon(folder) as address:
                show(folder, address)
        except DemoFailed as error:
            print(f"demo failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
