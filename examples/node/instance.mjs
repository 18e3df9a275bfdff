/** One instance of a client, as docs/protocol.md describes it, without I/O. "Duty" means "Duties of a client" there. */
import { createHash, randomUUID } from 'node:crypto'
import { hostname, uptime } from 'node:os'

/** The error of the coordinator's clock, ms. */
const MARGIN_MS = 5_000
const DEFAULTS = { heartbeat_ms: 10_000, session_timeout_ms: 45_000 }

/** A clock that also counts while the machine is suspended, ms. */
export const nowMs = () => uptime() * 1_000

const keyOf = ({ topic, broker, queue_id }) => `${topic}@${broker}@${queue_id}`

/** A queue that the client has. It is a position of `PartitionReader`; `next` is undefined until its start is found. */
class Owned {
  constructor({ queue, given, start }) {
    this.queue = queue
    this.topic = queue.topic
    this.partition = queue.queue_id
    this.given = given
    this.start = start
    this.next = start.offset
    /** Offset behind the last processed message, and the same as Kafka has acknowledged in a commit. */
    this.done = this.committed = start.offset
    /** Whether the application works on a message of it. */
    this.inHand = false
    /** Whether it must be released. */
    this.draining = false
  }

  get isDrained() {
    return this.draining && !this.inHand && this.next !== undefined && this.done === this.committed
  }

  /** Whether to commit at once: its first offset, or the last one before its release. */
  get isCommitUrgent() {
    return this.done !== this.committed && (this.draining || this.committed === undefined)
  }
}

export class Instance {
  /** Why it is over; null while it lives. */
  over = null
  #secret = randomUUID()
  #epoch = -1
  #round
  #settings = DEFAULTS
  #queues = new Map()
  #answers = true // at once: the first heartbeat
  #shard = null
  /** Whether heartbeats describe this client: until the first assignment; in another era, until one is acknowledged. */
  #describes = true
  #mustCommitAgain = false
  /** When the last acknowledged heartbeat was sent, and the first one after it; with the session that each states. */
  #acknowledged = null
  #sent = null
  #heardMs = nowMs()

  constructor(groupId, clientId, topics, consumeFrom) {
    const hash = createHash('sha256').update(this.#secret).digest('hex')
    this.names = { group_id: groupId, client_id: clientId, instance_id: `h:${hash.slice(0, 40)}` }
    this.about = { host: hostname().slice(0, 253), sdk: `wakeroll-example/1 Node.js/${process.versions.node}` }
    if (process.env.APP_VERSION) this.about.app_version = process.env.APP_VERSION
    this.preferences = { subscriptions: topics.map((topic) => ({ topic })), consume_from: consumeFrom }
  }

  get queues() {
    return [...this.#queues.values()]
  }

  /** End when the session has (duty 10), or when the inbox is not heard (duty 11); return whether it lives. */
  isLive() {
    const ends = [this.#heardMs + this.#settings.session_timeout_ms]
    for (const beat of [this.#acknowledged, this.#sent]) if (beat) ends.push(beat.atMs + beat.sessionMs - MARGIN_MS)
    if (nowMs() > Math.min(...ends)) this.over ??= 'its session has ended'
    return this.over === null
  }

  /** Whether the next message of a queue may be handed out: ask before each one. */
  mayHandOut(owned) {
    return this.isLive() && !owned.draining && this.#queues.get(keyOf(owned.queue)) === owned
  }

  /** The inbox was read up to the end that it had at this time. */
  heard(atMs) {
    this.#heardMs = atMs
  }

  /** Apply a decision of the inbox. */
  receive(decision) {
    if (decision.kind === 'assignment') this.#apply(decision)
    if (decision.kind === 'fenced') this.over ??= decision.reason
    // After a loss of state, the coordinator does not know the owner before the next heartbeat (duty 8).
    if (decision.kind === 'rejected' && decision.rule === 'commit') this.#mustCommitAgain = true
  }

  /** Duties 5 to 7. */
  #apply({ epoch, round, queues, shard, ...settings }) {
    if (epoch < this.#epoch) return
    const assigned = new Map(queues.map((entry) => [keyOf(entry.queue), entry]))
    let isChanged = epoch > this.#epoch
    for (const [key, owned] of this.#queues) {
      if (assigned.has(key) || owned.draining) continue
      owned.draining = isChanged = true
    }
    for (const [key, entry] of assigned) {
      const owned = this.#queues.get(key)
      if (entry.given <= (owned?.given ?? 0)) continue
      if (entry.start.offset === undefined && owned?.done !== undefined) {
        owned.given = entry.given // read already: the coordinator has lost its offset, and means no other start
      } else {
        this.#queues.set(key, new Owned(entry)) // what was done under the older `given` is not committed any more
        isChanged = true
      }
    }
    this.#answers ||= isChanged
    const isFirst = this.#shard === null
    const isOtherEra = !isFirst && this.#shard !== shard
    this.#mustCommitAgain ||= isOtherEra
    this.#describes = isOtherEra || (this.#describes && !isFirst)
    this.#shard = shard
    this.#epoch = epoch
    this.#round = round // undefined below feature level 3: then no heartbeat shows it
    this.#settings = settings
  }

  /** Hand out nothing more: the client leaves. */
  drain() {
    for (const owned of this.queues) owned.draining = true
  }

  /** Whether nothing is left to do before it unregisters. */
  get isDrained() {
    return this.queues.every((owned) => owned.isDrained)
  }

  /** Whether a heartbeat is due: the answer to an assignment, a release, or the next one. */
  get isHeartbeatDue() {
    const dueMs = (this.#acknowledged?.atMs ?? -Infinity) + this.#settings.heartbeat_ms
    return this.#answers || this.queues.some((owned) => owned.isDrained) || nowMs() >= dueMs
  }

  /** Return the next heartbeat. A drained queue is not in it: that releases the queue. */
  heartbeat() {
    for (const [key, owned] of this.#queues) if (owned.isDrained) this.#queues.delete(key)
    this.#answers = false
    const session_timeout_ms = this.#settings.session_timeout_ms
    this.#sent = { atMs: nowMs(), sessionMs: session_timeout_ms, isDescribed: this.#describes }
    const owned = this.queues.map(({ queue }) => queue)
    const newest = { epoch: this.#epoch, round: this.#round, session_timeout_ms }
    const described = this.#describes ? { about: this.about } : {}
    return { type: 'heartbeat', ...this.names, ...newest, owned, ...this.preferences, ...described }
  }

  /** Kafka has acknowledged the heartbeat. */
  heartbeatAcknowledged() {
    if (!this.isLive()) return
    this.#acknowledged = this.#sent
    if (this.#acknowledged.isDescribed && this.#shard !== null) this.#describes = false
    this.#sent = null
    if (this.#mustCommitAgain) for (const owned of this.queues) owned.committed = undefined
    this.#mustCommitAgain = false
  }

  /** Return the commit that is due, and the function to call when Kafka has acknowledged it; null if none is due. */
  commit() {
    const due = this.queues.filter(({ done, committed }) => done !== committed).map((owned) => [owned, owned.done])
    if (!due.length) return null
    const offsets = due.map(([{ queue }, offset]) => ({ queue, offset }))
    const acknowledged = () => due.forEach(([owned, offset]) => (owned.committed = offset))
    return [{ type: 'commit', ...this.names, epoch: this.#epoch, offsets }, acknowledged]
  }

  unregister() {
    return { type: 'unregister', ...this.names, secret: this.#secret }
  }
}
