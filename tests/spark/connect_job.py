"""Spark Connect jobs in a process of their own, run by `test_connect`: a process can have only one
kind of session.

python -m tests.spark.connect_job ADDRESS TOPIC FOLDER [ARCHIVE]

With an archive, the server's Python processes have all packages except pixy, which comes from the
archive.
"""

import os
import sys
import sysconfig
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pixy.spark import PixyDataSource, use_java
from tests.spark.conftest import ROOT
from tests.spark.jvm import end_and_archive, jvm_options

__all__: list[str] = []


class Job:
    """Steps of both jobs."""

    def __init__(self, spark: SparkSession, address: str, topic: str) -> None:
        self.spark = spark
        self.options = {"pixy.address": address, "pixy.timeoutMs": "120000"}
        self.topic = topic

    def write(self) -> None:
        """Write a hundred rows."""
        rows = self.spark.range(100).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("pixy").options(**self.options, topic=self.topic).mode("append").save()

    def read(self, topic: str) -> DataFrame:
        """All rows of a topic."""
        return self.spark.read.format("pixy").options(**self.options, subscribe=topic).load()

    def copy(self, folder: str) -> DataFrame:
        """All rows copied by a stream."""
        source = self.spark.readStream.format("pixy").options(**self.options, subscribe=self.topic)
        stream = source.option("startingOffsets", "earliest").load().select("value")
        writer = stream.writeStream.format("pixy").options(**self.options, topic=f"{self.topic}-copy")
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        return self.read(f"{self.topic}-copy")

    def copy_each(self, folder: str) -> DataFrame:
        """All rows copied by `foreachBatch`, whose first batch runs twice."""
        options, target = self.options, f"{self.topic}-each"

        def write(frame: DataFrame, batch: int) -> None:
            named = {"sinkId": "each", "queryId": "copies", "batchId": str(batch)}
            rows = frame.select("value").write.format("pixy").options(**options, **named, topic=target)
            rows.mode("append").save()

        source = self.spark.readStream.format("pixy").options(**options, subscribe=self.topic)
        writer = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(write)
        for _ in range(2):
            query = writer.option("checkpointLocation", f"{folder}/each").trigger(availableNow=True).start()
            query.awaitTermination()
            for file in ("0", ".0.crc"):
                Path(folder, "each", "commits", file).unlink(missing_ok=True)
        return self.read(target)


def run_installed(job: Job, folder: str) -> None:
    """Write, read, register, and copy a stream; print the results."""
    job.write()
    print("found", job.read(job.topic).count())
    job.spark.dataSource.register(PixyDataSource)
    print("registered", job.read(job.topic).count())
    print("copied", job.copy(folder).count())
    print("copied each", job.copy_each(folder).count())


def run_shipped(job: Job, archive: str) -> None:
    """Run batches with the package as an artifact; print the results without and with it."""
    try:
        job.write()
    except PySparkException as error:
        print("found none:", error.getCondition())
    job.spark.addArtifacts(archive, pyfile=True)
    job.spark.dataSource.register(PixyDataSource)
    job.write()
    print("registered", job.read(job.topic).count())


def main(address: str, topic: str, folder: str, archive: str = "") -> None:
    """Start a server on this machine and run a job on it."""
    use_java()
    if archive:
        # The interpreter behind the virtual environment adds the packages in the directory, but not
        # those named by its .pth files.
        os.environ["PYSPARK_PYTHON"] = str(Path(sys.executable).resolve())
        os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")
        os.chdir(folder)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["SPARK_TESTING"] = "1"  # otherwise PySpark expects its server at port 15002 only
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.connect.grpc.binding.port", "0")
    builder = builder.config("spark.driver.extraJavaOptions", jvm_options(records=True))
    spark = builder.config("spark.python.unix.domain.socket.enabled", "true").getOrCreate()
    job = Job(spark, address, topic)
    if archive:
        run_shipped(job, archive)
    else:
        run_installed(job, folder)
    spark.stop()
    end_and_archive()


if __name__ == "__main__":
    main(*sys.argv[1:])
