// A worker in TypeScript: takes the messages of a topic one by one, handles and acknowledges each.
//
//     npm ci && node worker.ts ADDRESS TOPIC GROUP
//
// It goes on when the daemon restarts or cannot be reached. SIGTERM and Ctrl-C end it after the message
// at hand, or when the long poll is over. Every message is handled at least once: one whose
// acknowledgement is lost comes again. Node 22.18 and newer run TypeScript as it is.

import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { Client, credentials, loadPackageDefinition, status } from "@grpc/grpc-js";
import type { ServiceClientConstructor, ServiceError } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

interface Message {
  partition: number;
  offset: string; // 64 bits do not fit a number
  message: Buffer;
}

const CALL_MS = 30_000; // longer than consumer.long_polling_timeout
const DELAY_MIN_MS = 100;
const DELAY_MAX_MS = 5_000;
const FOR_GOOD = [
  status.INVALID_ARGUMENT, status.UNIMPLEMENTED, status.PERMISSION_DENIED, status.UNAUTHENTICATED,
];

/** The work. It should take less time than consumer.ack_timeout. */
async function handle(message: Message): Promise<void> {
  console.log(new TextDecoder("utf-8", { fatal: true }).decode(message.message));
}

function connect(address: string): Client {
  const here = import.meta.dirname;
  const definition = loadSync("kafkapixy.proto", {
    includeDirs: [here, join(here, "../..")], keepCase: true, longs: String, defaults: true,
  });
  const KafkaPixy = loadPackageDefinition(definition).KafkaPixy as ServiceClientConstructor;
  // grpc-js waits up to two minutes between attempts to connect if not told otherwise.
  return new KafkaPixy(address, credentials.createInsecure(), { "grpc.max_reconnect_backoff_ms": DELAY_MAX_MS });
}

function call<Answer>(pixy: any, method: string, request: object): Promise<Answer> {
  const deadline = Date.now() + CALL_MS;
  return new Promise((resolve, reject) => {
    pixy[method](request, { deadline }, (error: ServiceError | null, answer: Answer) =>
      error ? reject(error) : resolve(answer));
  });
}

/** Handles messages until told to stop. */
async function work(pixy: Client, topic: string, group: string, stop: AbortSignal): Promise<void> {
  let done: Message | undefined; // the message to acknowledge with the next request
  let delay = DELAY_MIN_MS;
  while (!stop.aborted) {
    const ack = done ? { ack_partition: done.partition, ack_offset: done.offset } : { no_ack: true };
    let message: Message;
    try {
      message = await call(pixy, "ConsumeNAck", { topic, group, ...ack });
    } catch (error) {
      const { code, details } = error as ServiceError;
      if (code === status.NOT_FOUND) { // no message came; the ack is taken
        done = undefined;
        delay = DELAY_MIN_MS;
        continue;
      }
      if (FOR_GOOD.includes(code)) throw error;
      // The ack may have been taken or not. The next request repeats it, which is harmless.
      console.error(`again in ${delay} ms: ${status[code]} ${details}`);
      await sleep(delay * (0.5 + Math.random() / 2), undefined, { signal: stop }).catch(() => {});
      delay = Math.min(2 * delay, DELAY_MAX_MS);
      continue;
    }
    done = message;
    delay = DELAY_MIN_MS;
    try {
      await handle(message);
    } catch (error) { // not acknowledged: comes again after consumer.ack_timeout
      done = undefined;
      console.error(`not handled: ${message.partition}/${message.offset}: ${error}`);
    }
  }
  if (done) await call(pixy, "Ack", { topic, group, partition: done.partition, offset: done.offset });
}

const [address, topic, group] = process.argv.slice(2);
const stop = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => stop.abort());
const pixy = connect(address);
await work(pixy, topic, group, stop.signal);
pixy.close();
