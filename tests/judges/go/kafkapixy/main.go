// A client of kafkapixy.proto on grpc-go: calls every RPC once or more, and prints what it gets, one line for each.
//
//	kafkapixy -address HOST:PORT -topic TOPIC [-deadline] [-ca FILE]
//
// With -deadline every call has a deadline of its own, half a minute from its start; without, none has.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"sort"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "pixy/judges/kafkapixypb"
)

const (
	group      = "judges"
	largeBytes = 900_000
	atOnce     = 1000
)

var (
	address   = flag.String("address", "", "HOST:PORT of the daemon")
	topic     = flag.String("topic", "", "a topic that nobody has used")
	deadlines = flag.Bool("deadline", false, "give every call a deadline")
	ca        = flag.String("ca", "", "certificate authority of the daemon; none: no TLS")
)

// The context of one call.
func start() (context.Context, context.CancelFunc) {
	if *deadlines {
		return context.WithTimeout(context.Background(), 30*time.Second)
	}
	return context.WithCancel(context.Background())
}

// Calls an RPC and prints its answer, or the status that it ended with.
func call[Request, Answer any](
	name string,
	rpc func(context.Context, Request, ...grpc.CallOption) (Answer, error),
	request Request,
	show func(Answer) string,
) {
	ctx, cancel := start()
	defer cancel()
	answer, err := rpc(ctx, request)
	if err != nil {
		fmt.Printf("%s: %v %s\n", name, code(err), status.Convert(err).Message())
		return
	}
	fmt.Printf("%s: %s\n", name, show(answer))
}

// The name of a status as the proto writes it.
func code(err error) string {
	names := map[codes.Code]string{
		codes.InvalidArgument: "INVALID_ARGUMENT", codes.NotFound: "NOT_FOUND", codes.DeadlineExceeded: "DEADLINE_EXCEEDED",
	}
	if name, ok := names[status.Code(err)]; ok {
		return name
	}
	return status.Code(err).String()
}

func produced(answer *pb.ProdRs) string {
	return fmt.Sprintf("partition %d offset %d", answer.Partition, answer.Offset)
}

func consumed(answer *pb.ConsRs) string {
	key := "key " + string(answer.KeyValue)
	if answer.KeyUndefined {
		key = "no key"
	}
	message := string(answer.Message)
	if len(message) > 100 {
		message = fmt.Sprintf("%d bytes", len(message))
	}
	line := fmt.Sprintf("partition %d offset %d, %s, message %s", answer.Partition, answer.Offset, key, message)
	for _, header := range answer.Headers {
		line += fmt.Sprintf(", header %s=%s", header.Key, header.Value)
	}
	return line
}

func ok[Answer any](Answer) string { return "ok" }

func main() {
	flag.Parse()
	transport := insecure.NewCredentials()
	if *ca != "" {
		var err error
		if transport, err = credentials.NewClientTLSFromFile(*ca, "localhost"); err != nil {
			log.Fatal(err)
		}
	}
	connection, err := grpc.NewClient("passthrough:///"+*address, grpc.WithTransportCredentials(transport))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewKafkaPixyClient(connection)
	produce(client)
	consume(client)
	describe(client)
	fail(client)
	produceAtOnce(client)
}

func produce(client pb.KafkaPixyClient) {
	headers := []*pb.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte("2")}}
	call("Produce", client.Produce,
		&pb.ProdRq{Topic: *topic, KeyValue: []byte("k"), Message: []byte("first"), Headers: headers}, produced)
	call("Produce without a key", client.Produce,
		&pb.ProdRq{Topic: *topic, KeyUndefined: true, Message: []byte("second")}, produced)
	call("Produce asynchronously", client.Produce,
		&pb.ProdRq{Topic: *topic, KeyUndefined: true, Message: []byte("third"), AsyncMode: true}, produced)
	call("Produce much", client.Produce,
		&pb.ProdRq{Topic: *topic, KeyUndefined: true, Message: bytes.Repeat([]byte("x"), largeBytes)}, produced)
}

func consume(client pb.KafkaPixyClient) {
	call("ConsumeNAck", client.ConsumeNAck, &pb.ConsNAckRq{Topic: *topic, Group: group, NoAck: true}, consumed)
	call("ConsumeNAck that acks", client.ConsumeNAck, &pb.ConsNAckRq{Topic: *topic, Group: group}, consumed)
	call("Ack", client.Ack, &pb.AckRq{Topic: *topic, Group: group, Offset: 1}, ok)
	call("ConsumeNAck that acks itself", client.ConsumeNAck,
		&pb.ConsNAckRq{Topic: *topic, Group: group, AutoAck: true}, consumed)
	call("ConsumeNAck of much", client.ConsumeNAck,
		&pb.ConsNAckRq{Topic: *topic, Group: group, AutoAck: true}, consumed)
	call("ListConsumers", client.ListConsumers, &pb.ListConsumersRq{Topic: *topic}, func(answer *pb.ListConsumersRs) string {
		var lines []string
		for name, consumers := range answer.Groups {
			for id, partitions := range consumers.Consumers {
				lines = append(lines, fmt.Sprintf("group %s client %s partitions %v", name, id, partitions.Partitions))
			}
		}
		sort.Strings(lines)
		return strings.Join(lines, "; ")
	})
}

func describe(client pb.KafkaPixyClient) {
	moved := []*pb.PartitionOffset{{Partition: 0, Offset: 1}}
	call("SetOffsets", client.SetOffsets, &pb.SetOffsetsRq{Topic: *topic, Group: group, Offsets: moved}, ok)
	call("GetOffsets", client.GetOffsets, &pb.GetOffsetsRq{Topic: *topic, Group: group}, func(answer *pb.GetOffsetsRs) string {
		of := answer.Offsets[0]
		return fmt.Sprintf("%d partitions, partition %d begin %d end %d count %d offset %d lag %d",
			len(answer.Offsets), of.Partition, of.Begin, of.End, of.Count, of.Offset, of.Lag)
	})
	call("GetTopicMetadata", client.GetTopicMetadata,
		&pb.GetTopicMetadataRq{Topic: *topic, WithPartitions: true}, described)
	call("ListTopics", client.ListTopics, &pb.ListTopicRq{WithPartitions: true}, func(answer *pb.ListTopicRs) string {
		return described(answer.Topics[*topic])
	})
}

func described(answer *pb.GetTopicMetadataRs) string {
	of := answer.Partitions[0]
	return fmt.Sprintf("%d partitions, partition %d leader %d replicas %v isr %v",
		len(answer.Partitions), of.Partition, of.Leader, of.Replicas, of.Isr)
}

func fail(client pb.KafkaPixyClient) {
	call("Produce to nowhere", client.Produce, &pb.ProdRq{Cluster: "nowhere", Topic: *topic}, produced)
	call("Ack of nothing", client.Ack, &pb.AckRq{Topic: *topic + "-unknown", Group: group}, ok)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err := client.ConsumeNAck(ctx, &pb.ConsNAckRq{Topic: *topic + "-empty", Group: group, NoAck: true})
	fmt.Printf("ConsumeNAck in too little time: %v\n", code(err))
}

func produceAtOnce(client pb.KafkaPixyClient) {
	var mutex sync.Mutex
	var running sync.WaitGroup
	offsets := map[int64]bool{}
	for range atOnce {
		running.Add(1)
		go func() {
			defer running.Done()
			ctx, cancel := start()
			defer cancel()
			answer, err := client.Produce(ctx, &pb.ProdRq{Topic: *topic, KeyUndefined: true, Message: []byte("one of many")})
			if err != nil {
				log.Fatal(err)
			}
			mutex.Lock()
			defer mutex.Unlock()
			offsets[answer.Offset] = true
		}()
	}
	running.Wait()
	fmt.Printf("Produce at once: %d offsets\n", len(offsets))
}
