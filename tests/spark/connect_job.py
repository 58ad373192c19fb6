"""A job through Spark Connect in a process of its own, run by `test_connect`: one process has one kind of session.

python -m tests.spark.connect_job ADDRESS TOPIC FOLDER
"""

import os
import sys

from pyspark.sql import SparkSession

from pixy.spark import PixyDataSource, use_java
from tests.spark.conftest import ROOT
from tests.spark.jvm import end_and_archive, jvm_options

__all__: list[str] = []


def main(address: str, topic: str, folder: str) -> None:
    """Write, read, register, and copy a stream; prints what was found."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", jvm_options(records=True))
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    options = {"pixy.address": address, "pixy.timeoutMs": "20000"}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("pixy").options(**options, topic=topic).mode("append").save()
    print("found", spark.read.format("pixy").options(**options, subscribe=topic).load().count())
    spark.dataSource.register(PixyDataSource)
    print("registered", spark.read.format("pixy").options(**options, subscribe=topic).load().count())
    stream = (
        spark.readStream.format("pixy").options(**options, subscribe=topic, startingOffsets="earliest").load()
    )
    writer = stream.select("value").writeStream.format("pixy").options(**options, topic=f"{topic}-copy")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("copied", spark.read.format("pixy").options(**options, subscribe=f"{topic}-copy").load().count())
    spark.stop()
    end_and_archive()


if __name__ == "__main__":
    main(*sys.argv[1:])
