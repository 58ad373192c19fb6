// A worker in Go: takes the messages of a topic one by one, handles and acknowledges each.
//
//	worker ADDRESS TOPIC GROUP
//
// It goes on when the daemon restarts or cannot be reached. SIGTERM and Ctrl-C end it after the message
// at hand, or when the long poll is over. Every message is handled at least once: one whose
// acknowledgement is lost comes again.
//
// The stubs are generated with protoc and the tools of go.mod:
//
//	cp ../../kafkapixy.proto . && GOBIN=$PWD/bin go install tool && PATH=$PWD/bin:$PATH go generate && go build
package main

//go:generate mkdir -p kafkapixypb
//go:generate protoc -I . --go_out=kafkapixypb --go-grpc_out=kafkapixypb --go_opt=paths=source_relative --go-grpc_opt=paths=source_relative --go_opt=Mkafkapixy.proto=worker/kafkapixypb --go-grpc_opt=Mkafkapixy.proto=worker/kafkapixypb kafkapixy.proto

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "worker/kafkapixypb"
)

const (
	callMax  = 30 * time.Second // longer than consumer.long_polling_timeout
	delayMin = 100 * time.Millisecond
	delayMax = 5 * time.Second
)

// The work. It should take less time than consumer.ack_timeout.
func handle(message *pb.ConsRs) error {
	if !utf8.Valid(message.Message) {
		return errors.New("not UTF-8")
	}
	_, err := fmt.Printf("%s\n", message.Message)
	return err
}

// Handles messages until told to stop.
func work(pixy pb.KafkaPixyClient, topic, group string, stop context.Context) error {
	var done *pb.ConsRs // the message to acknowledge with the next request
	delay := delayMin
	for stop.Err() == nil {
		request := &pb.ConsNAckRq{Topic: topic, Group: group, NoAck: true}
		if done != nil {
			request = &pb.ConsNAckRq{Topic: topic, Group: group, AckPartition: done.Partition, AckOffset: done.Offset}
		}
		// Not of stop: the call ends by itself, and a message that comes with its end is handled.
		ctx, cancel := context.WithTimeout(context.Background(), callMax)
		message, err := pixy.ConsumeNAck(ctx, request)
		cancel()
		switch status.Code(err) {
		case codes.OK:
			done, delay = message, delayMin
			if err := handle(message); err != nil { // not acknowledged: comes again after consumer.ack_timeout
				done = nil
				log.Printf("not handled: %d/%d: %v", message.Partition, message.Offset, err)
			}
		case codes.NotFound: // no message came; the ack is taken
			done, delay = nil, delayMin
		case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
			return err
		default:
			// The ack may have been taken or not. The next request repeats it, which is harmless.
			log.Printf("again in %v: %v", delay, err)
			select {
			case <-stop.Done():
			case <-time.After(delay/2 + rand.N(delay/2)):
			}
			delay = min(2*delay, delayMax)
		}
	}
	if done == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), callMax)
	defer cancel()
	_, err := pixy.Ack(ctx, &pb.AckRq{Topic: topic, Group: group, Partition: done.Partition, Offset: done.Offset})
	return err
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: worker ADDRESS TOPIC GROUP")
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	// grpc-go waits up to two minutes between attempts to connect if not told otherwise.
	reconnect := backoff.Config{BaseDelay: delayMin, Multiplier: 2, Jitter: 0.2, MaxDelay: delayMax}
	connection, err := grpc.NewClient(
		os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: delayMax}),
	)
	if err == nil {
		err = work(pb.NewKafkaPixyClient(connection), os.Args[2], os.Args[3], stop)
	}
	if err != nil {
		log.Fatal(err)
	}
}
