/** What the client needs of Kafka: partitions read without a consumer group, and records written in order. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Consumer, Producer, compatibilityPartitioner, murmur2 } from '@platformatic/kafka'

export const END = -1n
export const BEGINNING = -2n
const PAUSE_MS = 500
const REQUEST_MS = 10_000 // shorter than a session: a connection may hang
const PARTITION_BYTES = 1024 * 1024
const OFFSET_OUT_OF_RANGE = 1
const IS_TRANSACTIONAL = 1 << 4
const IS_CONTROL = 1 << 5

/** Print a line for people; messages alone go to standard output. */
export const report = (text) => console.error(text)

/** Reads partitions from positions `{topic, partition, next}`; `next` is the offset to read next. */
export class PartitionReader {
  #options
  #consumer

  constructor(bootstrap, clientId) {
    // The library requires a groupId. Kafka never sees it, because this consumer joins no group of Kafka's.
    const names = { clientId, groupId: clientId, bootstrapBrokers: bootstrap.split(',') }
    this.#options = { ...names, retries: 0, requestTimeout: REQUEST_MS }
    this.#consumer = new Consumer({ ...this.#options })
  }

  /** Return the partition of `topic` to which `key` belongs. */
  async partitionOf(topic, key) {
    const { topics } = await this.#consumer.metadata({ topics: [topic] })
    return (murmur2(Buffer.from(key)) & 0x7fffffff) % topics.get(topic).partitionsCount
  }

  /** Return the first offset at END, BEGINNING or an epoch time in ms; the end if no message is as new as that. */
  async offsetAt({ topic, partition }, timestamp) {
    const request = { topics: [topic], partitions: { [topic]: [partition] }, timestamp }
    const { offset } = (await this.#consumer.listOffsetsWithTimestamps(request)).get(topic).get(partition)
    return offset < 0n ? this.offsetAt({ topic, partition }, END) : Number(offset)
  }

  /**
   * Read each position once, and wait for at most `maxWaitTime` ms if there is nothing to read.
   *
   * Returns `{position, messages, next, end}` for each position that could be read: `next` is the offset behind the
   * messages, `end` the end of the partition. Errors are reported; the caller reads again.
   */
  async fetch(positions, maxWaitTime) {
    const found = []
    try {
      const { topics } = await this.#consumer.metadata({ topics: [...new Set(positions.map(({ topic }) => topic))] })
      const leaderOf = ({ topic, partition }) => topics.get(topic).partitions[partition].leader
      const leaders = [...new Set(positions.map(leaderOf))]
      const reads = leaders.map((node) => {
        const wanted = positions.filter((position) => leaderOf(position) === node)
        const request = wanted.map((position) => toFetch(topics.get(position.topic).id, position))
        // If one partition has an error the call fails; its error has the response with the other partitions.
        const partial = (error) => (error.response?.errorCode === 0 ? error.response : Promise.reject(error))
        return this.#consumer.fetch({ node, maxWaitTime, topics: request }).catch(partial)
      })
      for (const { responses } of await Promise.all(reads)) {
        for (const { topicId, partitions } of responses) {
          for (const partition of partitions) {
            const isIt = (one) => topics.get(one.topic).id === topicId && one.partition === partition.partitionIndex
            found.push([positions.find(isIt), partition])
          }
        }
      }
    } catch (error) {
      await this.recover(error.message)
    }
    for (const [position, { errorCode }] of found) {
      if (errorCode === OFFSET_OUT_OF_RANGE) await this.#beginAgain(position)
      else if (errorCode) await this.recover(`${position.topic}-${position.partition} has Kafka's error ${errorCode}`)
    }
    return found.filter(([, { errorCode }]) => !errorCode).map((one) => committed(...one))
  }

  close() {
    return this.#consumer.close(true)
  }

  /** After an error: begin with new connections, and with the partitions' present leaders. */
  async recover(error) {
    report(`cannot read: ${error}; will read again`)
    await this.#consumer.close(true).catch(() => {})
    this.#consumer = new Consumer({ ...this.#options })
    await sleep(PAUSE_MS)
  }

  /** The offset to read is deleted, or beyond the end of a topic made again: reading twice is better than losing. */
  async #beginAgain(position) {
    report(`${position.topic}-${position.partition} does not have offset ${position.next}; its first one is read`)
    try {
      position.next = await this.offsetAt(position, BEGINNING)
    } catch (error) {
      await this.recover(error.message)
    }
  }
}

function toFetch(topicId, { partition, next }) {
  const position = { partition, fetchOffset: BigInt(next), currentLeaderEpoch: -1, lastFetchedEpoch: -1 }
  return { topicId, partitions: [{ ...position, partitionMaxBytes: PARTITION_BYTES }] }
}

/** Leave out control records and aborted transactions: the library leaves out some of the latter only. */
function committed(position, { records = [], abortedTransactions, highWatermark }) {
  const { topic, partition } = position
  const begins = (abortedTransactions ?? []).toSorted((one, other) => Number(one.firstOffset - other.firstOffset))
  const aborted = new Set()
  const messages = []
  let { next } = position
  for (const { firstOffset, lastOffsetDelta, attributes, producerId, records: batch } of records) {
    while (begins.length && begins[0].firstOffset <= firstOffset) aborted.add(begins.shift().producerId)
    next = Number(firstOffset) + lastOffsetDelta + 1
    if (attributes & IS_CONTROL) aborted.delete(producerId)
    else if (!(attributes & IS_TRANSACTIONAL && aborted.has(producerId))) {
      for (const { offsetDelta, key, value } of batch) {
        const offset = Number(firstOffset) + offsetDelta
        if (offset >= position.next) messages.push({ topic, partition, offset, key, value })
      }
    }
  }
  return { position, messages, next, end: Number(highWatermark) }
}

/** Appends records in the order of the calls. Await each call: the library numbers one record at a time correctly. */
export class RecordWriter {
  #options
  #producer

  constructor(bootstrap, clientId) {
    // The library's default partitioner is another one for keys whose hash is negative.
    const order = { idempotent: true, partitioner: compatibilityPartitioner, requestTimeout: REQUEST_MS }
    this.#options = { clientId, bootstrapBrokers: bootstrap.split(','), ...order }
    this.#producer = new Producer({ ...this.#options })
  }

  /** Append a record; return when Kafka has acknowledged it, however long that takes. */
  async append(topic, key, event) {
    for (;;) {
      try {
        const message = { topic, key: Buffer.from(key), value: Buffer.from(JSON.stringify(event)) }
        return await this.#producer.send({ messages: [message] })
      } catch (error) {
        report(`cannot write to ${topic}: ${error.message}; will write again`)
        // A new producer: the old one might number the next record as one that Kafka has already.
        await this.#producer.close(true).catch(() => {})
        this.#producer = new Producer({ ...this.#options })
        await sleep(PAUSE_MS)
      }
    }
  }

  close() {
    return this.#producer.close(true)
  }
}
