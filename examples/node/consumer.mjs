/**
 * Print the messages of a topic, one JSON object per line, as a member of a wakeroll group.
 *
 *     node examples/node/consumer.mjs GROUP TOPIC --bootstrap localhost:9092
 */
import { randomUUID } from 'node:crypto'
import { parseArgs } from 'node:util'
import { Client } from './client.mjs'
import { report } from './kafka.mjs'

const USAGE = `usage: node consumer.mjs GROUP TOPIC --bootstrap HOST:PORT [options]
  --prefix NAME         prefix of the control plane's topics (default: wakeroll)
  --client-id ID        name of this member (default: a new one at each start)
  --from first|last     where a queue without a committed offset starts (default: last)`

const OPTIONS = {
  bootstrap: { type: 'string' },
  prefix: { type: 'string', default: 'wakeroll' },
  'client-id': { type: 'string' },
  from: { type: 'string', default: 'last' },
}
const LEAVE_MS = 30_000

function readArguments() {
  try {
    const { positionals, values } = parseArgs({ options: OPTIONS, allowPositionals: true })
    const isComplete = positionals.length === 2 && values.bootstrap && ['first', 'last'].includes(values.from)
    if (!isComplete) throw new Error(USAGE)
    return { groupId: positionals[0], topics: [positionals[1]], ...values }
  } catch (error) {
    report(error.message)
    process.exit(2)
  }
}

function print({ topic, partition, offset, value }) {
  const line = JSON.stringify({ topic, partition, offset, value: value?.toString() ?? null })
  return new Promise((written) => process.stdout.write(`${line}\n`, written))
}

const { 'client-id': clientId = `node-${randomUUID().slice(0, 8)}`, from: consumeFrom, ...settings } = readArguments()
const client = new Client({ ...settings, clientId, consumeFrom })
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, () => {
    client.leave()
    // Without Kafka it cannot unregister: the group takes its queues back at the end of its session.
    setTimeout(() => process.exit(1), LEAVE_MS).unref()
  })
}
try {
  await client.run(print)
  process.exit(0)
} catch (error) {
  report(`${clientId}: ${error.message}`)
  process.exit(1)
}
