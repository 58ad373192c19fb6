"""A worker in Python: takes the messages of a topic one by one, handles and acknowledges each.

    python examples/worker.py ADDRESS TOPIC GROUP

It goes on when the daemon restarts or cannot be reached. SIGTERM and Ctrl-C end it after the
message at hand, or when the long poll is over. Every message is handled at least once: one whose
acknowledgement is lost comes again.
"""

import random
import signal
import sys
import threading

import grpc

from pixy.proto import kafkapixy_pb2 as pb
from pixy.proto.kafkapixy_pb2_grpc import KafkaPixyStub

CALL_S = 30.0  # longer than consumer.long_polling_timeout
DELAY_MIN_S, DELAY_MAX_S = 0.1, 5.0
FOR_GOOD = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
}


def handle(message: pb.ConsRs) -> None:
    """The work. It should take less time than consumer.ack_timeout."""
    print(message.message.decode(), flush=True)


def work(pixy: KafkaPixyStub, topic: str, group: str, stop: threading.Event) -> None:
    """Handle messages until told to stop."""
    done = None  # the message to acknowledge with the next request
    delay = DELAY_MIN_S
    while not stop.is_set():
        request = pb.ConsNAckRq(topic=topic, group=group, no_ack=True)
        if done is not None:
            request = pb.ConsNAckRq(
                topic=topic, group=group, ack_partition=done.partition, ack_offset=done.offset
            )
        try:
            message = pixy.ConsumeNAck(request, timeout=CALL_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:  # no message came; the ack is taken
                done, delay = None, DELAY_MIN_S
                continue
            if error.code() in FOR_GOOD:
                raise
            # The ack may have been taken or not. The next request repeats it, which is harmless.
            print(f"again in {delay:.1f} s: {error.code().name} {error.details()}", file=sys.stderr)
            stop.wait(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, DELAY_MAX_S)
            continue
        done, delay = message, DELAY_MIN_S
        try:
            handle(message)
        except Exception as error:  # not acknowledged: comes again after consumer.ack_timeout
            done = None
            print(f"not handled: {message.partition}/{message.offset}: {error}", file=sys.stderr)
    if done is not None:
        pixy.Ack(
            pb.AckRq(topic=topic, group=group, partition=done.partition, offset=done.offset), timeout=CALL_S
        )


def main() -> None:
    """Run the worker until a signal comes."""
    address, topic, group = sys.argv[1:]
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # grpcio waits up to two minutes between attempts to connect if not told otherwise.
    options = [("grpc.max_reconnect_backoff_ms", int(1000 * DELAY_MAX_S))]
    with grpc.insecure_channel(address, options) as channel:
        work(KafkaPixyStub(channel), topic, group, stop)


if __name__ == "__main__":
    main()
