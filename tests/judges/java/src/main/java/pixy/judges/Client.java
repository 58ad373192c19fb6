package pixy.judges;

import com.google.protobuf.ByteString;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.StreamObserver;
import java.io.File;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiFunction;
import java.util.function.Function;
import mailgun.kafkapixy.AckRq;
import mailgun.kafkapixy.ConsNAckRq;
import mailgun.kafkapixy.ConsRs;
import mailgun.kafkapixy.GetOffsetsRq;
import mailgun.kafkapixy.GetOffsetsRs;
import mailgun.kafkapixy.GetTopicMetadataRq;
import mailgun.kafkapixy.GetTopicMetadataRs;
import mailgun.kafkapixy.KafkaPixyGrpc;
import mailgun.kafkapixy.KafkaPixyGrpc.KafkaPixyBlockingStub;
import mailgun.kafkapixy.KafkaPixyGrpc.KafkaPixyStub;
import mailgun.kafkapixy.ListConsumersRq;
import mailgun.kafkapixy.ListConsumersRs;
import mailgun.kafkapixy.ListTopicRq;
import mailgun.kafkapixy.PartitionMetadata;
import mailgun.kafkapixy.PartitionOffset;
import mailgun.kafkapixy.ProdRq;
import mailgun.kafkapixy.ProdRs;
import mailgun.kafkapixy.RecordHeader;
import mailgun.kafkapixy.SetOffsetsRq;

/**
 * A client of kafkapixy.proto on grpc-java: calls every RPC once or more, and prints what it gets, one line for each.
 *
 * <p>Arguments: HOST:PORT, a topic that nobody has used, "deadline" to give every call one, and the file of the daemon's certificate
 * authority or "" for no TLS.
 */
public final class Client {
  private static final String GROUP = "judges";
  private static final int LARGE_BYTES = 900_000;
  private static final int AT_ONCE = 1000;

  private final ManagedChannel channel;
  private final String topic;
  private final boolean deadlines;

  private Client(ManagedChannel channel, String topic, boolean deadlines) {
    this.channel = channel;
    this.topic = topic;
    this.deadlines = deadlines;
  }

  public static void main(String[] arguments) throws Exception {
    ChannelCredentials transport =
        arguments[3].isEmpty()
            ? InsecureChannelCredentials.create()
            : TlsChannelCredentials.newBuilder().trustManager(new File(arguments[3])).build();
    ManagedChannel channel =
        Grpc.newChannelBuilder(arguments[0], transport).overrideAuthority("localhost").build();
    Client client = new Client(channel, arguments[1], arguments[2].equals("deadline"));
    client.produce();
    client.consume();
    client.describe();
    client.fail();
    client.produceAtOnce();
    channel.shutdown().awaitTermination(10, TimeUnit.SECONDS);
  }

  private KafkaPixyBlockingStub stub() {
    KafkaPixyBlockingStub stub = KafkaPixyGrpc.newBlockingStub(channel);
    return deadlines ? stub.withDeadlineAfter(30, TimeUnit.SECONDS) : stub;
  }

  private <Q, A> void call(
      String name, BiFunction<KafkaPixyBlockingStub, Q, A> rpc, Q request, Function<A, String> show) {
    try {
      System.out.println(name + ": " + show.apply(rpc.apply(stub(), request)));
    } catch (StatusRuntimeException e) {
      System.out.println(name + ": " + e.getStatus().getCode() + " " + e.getStatus().getDescription());
    }
  }

  private ProdRq.Builder message(String message) {
    return ProdRq.newBuilder().setTopic(topic).setKeyUndefined(true).setMessage(ByteString.copyFromUtf8(message));
  }

  private static RecordHeader header(String key, String value) {
    return RecordHeader.newBuilder().setKey(key).setValue(ByteString.copyFromUtf8(value)).build();
  }

  private void produce() {
    ProdRq first =
        message("first")
            .setKeyUndefined(false)
            .setKeyValue(ByteString.copyFromUtf8("k"))
            .addHeaders(header("a", "1"))
            .addHeaders(header("b", "2"))
            .build();
    call("Produce", KafkaPixyBlockingStub::produce, first, Client::produced);
    call("Produce without a key", KafkaPixyBlockingStub::produce, message("second").build(), Client::produced);
    ProdRq third = message("third").setAsyncMode(true).build();
    call("Produce asynchronously", KafkaPixyBlockingStub::produce, third, Client::produced);
    ProdRq much = message("x".repeat(LARGE_BYTES)).build();
    call("Produce much", KafkaPixyBlockingStub::produce, much, Client::produced);
  }

  private void consume() {
    ConsNAckRq request = ConsNAckRq.newBuilder().setTopic(topic).setGroup(GROUP).build();
    ConsNAckRq noAck = request.toBuilder().setNoAck(true).build();
    ConsNAckRq autoAck = request.toBuilder().setAutoAck(true).build();
    call("ConsumeNAck", KafkaPixyBlockingStub::consumeNAck, noAck, Client::consumed);
    call("ConsumeNAck that acks", KafkaPixyBlockingStub::consumeNAck, request, Client::consumed);
    AckRq ack = AckRq.newBuilder().setTopic(topic).setGroup(GROUP).setOffset(1).build();
    call("Ack", KafkaPixyBlockingStub::ack, ack, answer -> "ok");
    call("ConsumeNAck that acks itself", KafkaPixyBlockingStub::consumeNAck, autoAck, Client::consumed);
    call("ConsumeNAck of much", KafkaPixyBlockingStub::consumeNAck, autoAck, Client::consumed);
    ListConsumersRq consumers = ListConsumersRq.newBuilder().setTopic(topic).build();
    call("ListConsumers", KafkaPixyBlockingStub::listConsumers, consumers, Client::listed);
  }

  private void describe() {
    PartitionOffset moved = PartitionOffset.newBuilder().setPartition(0).setOffset(1).build();
    SetOffsetsRq set = SetOffsetsRq.newBuilder().setTopic(topic).setGroup(GROUP).addOffsets(moved).build();
    call("SetOffsets", KafkaPixyBlockingStub::setOffsets, set, answer -> "ok");
    GetOffsetsRq get = GetOffsetsRq.newBuilder().setTopic(topic).setGroup(GROUP).build();
    call("GetOffsets", KafkaPixyBlockingStub::getOffsets, get, Client::offsets);
    GetTopicMetadataRq metadata = GetTopicMetadataRq.newBuilder().setTopic(topic).setWithPartitions(true).build();
    call("GetTopicMetadata", KafkaPixyBlockingStub::getTopicMetadata, metadata, Client::described);
    ListTopicRq all = ListTopicRq.newBuilder().setWithPartitions(true).build();
    call("ListTopics", KafkaPixyBlockingStub::listTopics, all, answer -> described(answer.getTopicsMap().get(topic)));
  }

  private void fail() {
    ProdRq nowhere = ProdRq.newBuilder().setCluster("nowhere").setTopic(topic).build();
    call("Produce to nowhere", KafkaPixyBlockingStub::produce, nowhere, Client::produced);
    AckRq nothing = AckRq.newBuilder().setTopic(topic + "-unknown").setGroup(GROUP).build();
    call("Ack of nothing", KafkaPixyBlockingStub::ack, nothing, answer -> "ok");
    ConsNAckRq empty = ConsNAckRq.newBuilder().setTopic(topic + "-empty").setGroup(GROUP).setNoAck(true).build();
    try {
      KafkaPixyGrpc.newBlockingStub(channel).withDeadlineAfter(200, TimeUnit.MILLISECONDS).consumeNAck(empty);
      System.out.println("ConsumeNAck in too little time: ok");
    } catch (StatusRuntimeException e) {
      System.out.println("ConsumeNAck in too little time: " + e.getStatus().getCode());
    }
  }

  private void produceAtOnce() throws Exception {
    Set<Long> offsets = ConcurrentHashMap.newKeySet();
    AtomicReference<Throwable> failure = new AtomicReference<>();
    CountDownLatch running = new CountDownLatch(AT_ONCE);
    for (int number = 0; number < AT_ONCE; number++) {
      KafkaPixyStub stub = KafkaPixyGrpc.newStub(channel);
      KafkaPixyStub timed = deadlines ? stub.withDeadlineAfter(30, TimeUnit.SECONDS) : stub;
      timed.produce(
          message("one of many").build(),
          new StreamObserver<ProdRs>() {
            @Override
            public void onNext(ProdRs answer) {
              offsets.add(answer.getOffset());
            }

            @Override
            public void onError(Throwable error) {
              failure.set(error);
              running.countDown();
            }

            @Override
            public void onCompleted() {
              running.countDown();
            }
          });
    }
    running.await();
    if (failure.get() != null) {
      throw new IllegalStateException(failure.get());
    }
    System.out.println("Produce at once: " + offsets.size() + " offsets");
  }

  private static String produced(ProdRs answer) {
    return "partition " + answer.getPartition() + " offset " + answer.getOffset();
  }

  private static String consumed(ConsRs answer) {
    String key = answer.getKeyUndefined() ? "no key" : "key " + answer.getKeyValue().toStringUtf8();
    ByteString message = answer.getMessage();
    String shown = message.size() > 100 ? message.size() + " bytes" : message.toStringUtf8();
    StringBuilder line = new StringBuilder();
    line.append("partition ").append(answer.getPartition()).append(" offset ").append(answer.getOffset());
    line.append(", ").append(key).append(", message ").append(shown);
    for (RecordHeader header : answer.getHeadersList()) {
      line.append(", header ").append(header.getKey()).append("=").append(header.getValue().toStringUtf8());
    }
    return line.toString();
  }

  private static String listed(ListConsumersRs answer) {
    List<String> lines = new ArrayList<>();
    answer
        .getGroupsMap()
        .forEach(
            (group, consumers) ->
                consumers
                    .getConsumersMap()
                    .forEach(
                        (id, partitions) ->
                            lines.add(
                                "group " + group + " client " + id + " partitions " + list(partitions.getPartitionsList()))));
    Collections.sort(lines);
    return String.join("; ", lines);
  }

  private static String offsets(GetOffsetsRs answer) {
    PartitionOffset of = answer.getOffsets(0);
    return String.format(
        "%d partitions, partition %d begin %d end %d count %d offset %d lag %d",
        answer.getOffsetsCount(), of.getPartition(), of.getBegin(), of.getEnd(), of.getCount(), of.getOffset(), of.getLag());
  }

  private static String described(GetTopicMetadataRs answer) {
    PartitionMetadata of = answer.getPartitions(0);
    return String.format(
        "%d partitions, partition %d leader %d replicas %s isr %s",
        answer.getPartitionsCount(), of.getPartition(), of.getLeader(), list(of.getReplicasList()), list(of.getIsrList()));
  }

  /** Numbers as Go prints them. */
  private static String list(List<Integer> numbers) {
    return numbers.toString().replace(",", "");
  }
}
