/**
 * A member of a wakeroll group: it calls a function with the messages of the queues that are assigned to it.
 *
 * It does not know slices, and never tells `slice_by`. So the coordinator assigns it no topic that its group has cut.
 */
import { setImmediate as otherTasks, setTimeout as sleep } from 'node:timers/promises'
import { Instance, nowMs } from './instance.mjs'
import { BEGINNING, END, PartitionReader, RecordWriter, report } from './kafka.mjs'

const LOOK_MS = 20
const COMMIT_MS = 1_000
const FETCH_MS = 100
const REFUSED_MS = 30_000

export class Duplicate extends Error {}

export class Client {
  #settings
  #inboxReader
  #reader
  #writer
  #leaving = false
  #newest = new Map()

  /** `settings`: groupId, clientId, topics, bootstrap, prefix, consumeFrom ("first" or "last"). */
  constructor(settings) {
    this.#settings = settings
    const { bootstrap, clientId } = settings
    this.#inboxReader = new PartitionReader(bootstrap, clientId)
    this.#reader = new PartitionReader(bootstrap, clientId)
    this.#writer = new RecordWriter(bootstrap, clientId)
  }

  /** Finish the message in hand, commit and unregister; then `run` returns. */
  leave() {
    this.#leaving = true
  }

  /**
   * Take part in the group until `leave`: call `handle(message)` with one message after the other.
   *
   * A message counts as processed when the promise of its call is fulfilled. Throws `Duplicate` if another live process
   * uses the client_id.
   */
  async run(handle) {
    const { groupId, clientId, topics, consumeFrom } = this.#settings
    let previous = null
    for (;;) {
      const inbox = await this.#findInbox() // and its end, before the first heartbeat
      if (this.#leaving) break
      if (previous) await this.#append(previous.unregister())
      const instance = new Instance(groupId, clientId, topics, consumeFrom)
      // All three end after the message in hand, so that the next instance begins with none.
      await Promise.all([this.#listen(instance, inbox), this.#consume(instance, handle), this.#write(instance)])
      report(`instance ${instance.names.instance_id} is over: ${instance.over}`)
      if (instance.over === 'duplicate') throw new Duplicate(`another live process uses the client_id ${clientId}`)
      if (instance.over === 'refused') await this.#wait(REFUSED_MS)
      previous = instance
    }
    await Promise.all([this.#inboxReader.close(), this.#reader.close(), this.#writer.close()])
  }

  async #wait(ms) {
    const untilMs = nowMs() + ms
    while (!this.#leaving && nowMs() < untilMs) await sleep(LOOK_MS)
  }

  /** Return the end of the client's inbox partition as a position. */
  async #findInbox() {
    const topic = `${this.#settings.prefix}.inbox`
    while (!this.#leaving) {
      try {
        const partition = await this.#inboxReader.partitionOf(topic, this.#settings.clientId)
        return { topic, partition, next: await this.#inboxReader.offsetAt({ topic, partition }, END) }
      } catch (error) {
        await this.#inboxReader.recover(error.message)
      }
    }
  }

  /** Follow the inbox partition; it has decisions for other clients, too. */
  async #listen(instance, inbox) {
    while (instance.isLive()) {
      const askedMs = nowMs()
      for (const { messages, next, end } of await this.#inboxReader.fetch([inbox], FETCH_MS)) {
        for (const { key, value } of messages) {
          if (key?.toString() === instance.names.client_id) this.#receive(instance, value)
        }
        inbox.next = next
        if (next >= end) instance.heard(askedMs)
      }
    }
  }

  #receive(instance, value) {
    const { group_id, client_id, instance_id } = instance.names
    let decision
    try {
      decision = JSON.parse(value)
    } catch {
      return // nothing that a coordinator wrote
    }
    if (decision?.group_id !== group_id || decision.client_id !== client_id) return
    if ((decision.instance_id ?? instance_id) !== instance_id) return // `rejected` does not name the instance
    if (!this.#isNew(decision)) return
    if (decision.kind === 'rejected') report(`rejected (${decision.rule}): ${decision.detail}`)
    instance.receive(decision)
  }

  /** Decisions are delivered at least once: skip those that are not above the newest one of their shard. */
  #isNew({ shard, seq }) {
    const [, name, era] = shard.match(/^(.*)\.(\d+)$/)
    const newest = this.#newest.get(name) ?? { era: 0, seq: 0 }
    if (Number(era) < newest.era || (Number(era) === newest.era && seq <= newest.seq)) return false
    this.#newest.set(name, { era: Number(era), seq })
    return true
  }

  /** Hand out the messages of the owned queues, one after the other. */
  async #consume(instance, handle) {
    while (instance.isLive()) {
      await this.#findStarts(instance)
      const readable = instance.queues.filter(({ next, draining }) => next !== undefined && !draining)
      if (!readable.length) await sleep(LOOK_MS)
      else {
        for (const read of await this.#reader.fetch(readable, FETCH_MS)) await this.#handOut(instance, read, handle)
      }
    }
  }

  async #handOut(instance, { position: owned, messages, next }, handle) {
    for (const message of messages) {
      await otherTasks() // heartbeats, and assignments that revoke the queue
      if (this.#leaving || !instance.mayHandOut(owned)) return
      owned.inHand = true
      await handle(message)
      owned.inHand = false
      owned.next = owned.done = message.offset + 1
    }
    if (instance.mayHandOut(owned)) owned.next = owned.done = next // control records follow the last message
  }

  /** Find where queues without a committed offset start. */
  async #findStarts(instance) {
    for (const owned of instance.queues.filter(({ next }) => next === undefined)) {
      const { policy, ms } = owned.start
      const timestamp = { first: BEGINNING, last: END }[policy] ?? BigInt(ms)
      try {
        owned.next = owned.done = await this.#reader.offsetAt(owned, timestamp)
      } catch (error) {
        await this.#reader.recover(error.message)
        if (owned.draining) owned.next = null // the topic may be gone
      }
    }
  }

  /** Commit and send heartbeats: one record at a time, and the last commit of a queue before its release. */
  async #write(instance) {
    let committedMs = nowMs()
    while (instance.isLive()) {
      if (this.#leaving) instance.drain()
      const isUrgent = instance.isHeartbeatDue || instance.queues.some((owned) => owned.isCommitUrgent)
      if (isUrgent || nowMs() - committedMs >= COMMIT_MS) {
        await this.#commit(instance)
        committedMs = nowMs()
      }
      if (this.#leaving && instance.isDrained) {
        await this.#append(instance.unregister())
        instance.over ??= 'left'
      } else if (instance.isLive() && instance.isHeartbeatDue) {
        await this.#append(instance.heartbeat())
        instance.heartbeatAcknowledged()
      }
      await sleep(LOOK_MS)
    }
  }

  async #commit(instance) {
    const due = instance.commit()
    if (due === null) return
    const [commit, acknowledged] = due
    await this.#append(commit)
    acknowledged()
  }

  #append(event) {
    return this.#writer.append(`${this.#settings.prefix}.groups`, event.group_id, event)
  }
}
