// A client of Kafka's protocol in Go, with franz-go, at pixy or at Kafka: lines of the standard input become
// records of a topic; then a consumer group reads them, handles each, and commits.
//
//	kafka-go ADDRESS TOPIC GROUP
//
// Every record is handled at least once: what was not committed comes again. It goes on when brokers cannot
// be reached for a while. SIGTERM and Ctrl-C end it after the records at hand. With KAFKA_USER and KAFKA_PASSWORD it
// logs in (SCRAM-SHA-512).
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: kafka-go ADDRESS TOPIC GROUP")
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(stop, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(stop context.Context, address, topic, group string) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(address, ",")...),
		kgo.DefaultProduceTopic(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AllowAutoTopicCreation(),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
	}
	if user := os.Getenv("KAFKA_USER"); user != "" {
		login := scram.Auth{User: user, Pass: os.Getenv("KAFKA_PASSWORD")}
		options = append(options, kgo.SASL(login.AsSha512Mechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	if err := produce(stop, client); err != nil {
		return err
	}
	consume(stop, client)
	return nil
}

// Produces all lines of the standard input. The producer is idempotent: no line is written twice.
func produce(stop context.Context, client *kgo.Client) error {
	failed := make(chan error, 1)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		client.Produce(stop, kgo.StringRecord(lines.Text()), func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := errors.Join(lines.Err(), client.Flush(stop)); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// Handles records until told to stop.
func consume(stop context.Context, client *kgo.Client) {
	for {
		fetches := client.PollFetches(stop)
		if stop.Err() != nil {
			return
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("cannot read %s/%d, trying again: %v", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Printf("%d %d %s\n", record.Partition, record.Offset, record.Value) // the work
		})
		if err := client.CommitUncommittedOffsets(stop); err != nil {
			log.Printf("cannot commit, records may come again: %v", err)
		}
		client.AllowRebalance()
	}
}
