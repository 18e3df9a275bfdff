import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

/**
 * Kafka's own uniform assignor, timed on the cases that standard input names; bench/kafka_assignor.py starts this.
 *
 * <p>A line in is {@code topics queues warmup_ms rounds member,member,...}, where each member is the numbers of the
 * topics that it subscribes to, joined by "+", or "*" for all of them.  Two lines of JSON come out for each: mode "full"
 * (nobody had anything) and mode "join" (all but the last member had what the assignor gave them without it), with the
 * times of the rounds in ns, the members' numbers of queues, and how many queues went from one member to another.
 *
 * <p>What the coordinator has at hand when it calls the assignor is made beforehand and not timed: the subscriptions,
 * who has what, and the same the other way round.
 */
public final class UniformBench {
    private static final UniformAssignor ASSIGNOR = new UniformAssignor();

    public static void main(String[] arguments) throws IOException {
        try (BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII))) {
            for (String line = cases.readLine(); line != null; line = cases.readLine()) {
                run(line.split(" "));
            }
        }
    }

    private static void run(String[] fields) {
        int topics = Integer.parseInt(fields[0]);
        Describer describer = new Describer(Integer.parseInt(fields[1]));
        long warmupNs = Long.parseLong(fields[2]) * 1_000_000;
        int rounds = Integer.parseInt(fields[3]);
        String[] members = fields[4].split(",");
        Map<String, Subscriber> all = subscribers(topics, members);
        Map<String, Subscriber> butTheLast = subscribers(topics, Arrays.copyOf(members, members.length - 1));
        Map<String, MemberAssignment> before = new HashMap<>();
        ASSIGNOR.assign(Group.of(butTheLast, Map.of()), describer).members().forEach((member, assignment) ->
            before.put(member, new Owned(Collections.unmodifiableMap(assignment.partitions()))));
        time("full", Group.of(all, Map.of()), describer, warmupNs, rounds);
        time("join", Group.of(all, before), describer, warmupNs, rounds);
    }

    private static void time(String mode, Group group, Describer describer, long warmupNs, int rounds) {
        GroupAssignment answer = ASSIGNOR.assign(group, describer);
        for (long started = System.nanoTime(); System.nanoTime() - started < warmupNs; ) {
            answer = ASSIGNOR.assign(group, describer);
        }
        List<Long> ns = new ArrayList<>();
        for (int round = 0; round < rounds; round++) {
            long started = System.nanoTime();
            answer = ASSIGNOR.assign(group, describer);
            ns.add(System.nanoTime() - started);
        }
        List<Integer> sizes = answer.members().values().stream().map(UniformBench::size).toList();
        System.out.printf("{\"mode\": \"%s\", \"ns\": %s, \"sizes\": %s, \"moved\": %d}%n",
            mode, ns, sizes, moved(group.owners(), owners(answer.members())));
    }

    private static Map<String, Subscriber> subscribers(int topics, String[] members) {
        Map<String, Subscriber> subscribers = new LinkedHashMap<>();
        for (String wanted : members) {
            Set<Uuid> ids = new HashSet<>();
            if (wanted.equals("*")) {
                for (int topic = 0; topic < topics; topic++) {
                    ids.add(id(topic));
                }
            } else {
                for (String topic : wanted.split("\\+")) {
                    ids.add(id(Integer.parseInt(topic)));
                }
            }
            subscribers.put(String.format("c-%04d", subscribers.size()), new Subscriber(ids));
        }
        return subscribers;
    }

    private static Uuid id(int topic) {
        return new Uuid(1, topic + 1);
    }

    private static Map<Uuid, Map<Integer, String>> owners(Map<String, MemberAssignment> members) {
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        members.forEach((member, assignment) -> assignment.partitions().forEach((topic, partitions) ->
            partitions.forEach(partition -> owners.computeIfAbsent(topic, any -> new HashMap<>()).put(partition, member))));
        return owners;
    }

    private static int size(MemberAssignment assignment) {
        return assignment.partitions().values().stream().mapToInt(Set::size).sum();
    }

    private static int moved(Map<Uuid, Map<Integer, String>> before, Map<Uuid, Map<Integer, String>> after) {
        int moved = 0;
        for (Map.Entry<Uuid, Map<Integer, String>> topic : before.entrySet()) {
            for (Map.Entry<Integer, String> owner : topic.getValue().entrySet()) {
                moved += owner.getValue().equals(after.get(topic.getKey()).get(owner.getKey())) ? 0 : 1;
            }
        }
        return moved;
    }

    private record Describer(int partitions) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topic) {
            return partitions;
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }

    private record Subscriber(Set<Uuid> subscribedTopicIds) implements MemberSubscription {
        @Override
        public Optional<String> rackId() {
            return Optional.empty();
        }

        @Override
        public Optional<String> instanceId() {
            return Optional.empty();
        }
    }

    /** The assignor copies what it changes, and insists on a map of Collections that it must not change. */
    private record Owned(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment { }

    private record Group(
        Map<String, Subscriber> subscribers,
        SubscriptionType subscriptionType,
        Map<String, MemberAssignment> before,
        Map<Uuid, Map<Integer, String>> owners
    ) implements GroupSpec {
        private static final MemberAssignment NOTHING = new Owned(Collections.emptyMap());

        static Group of(Map<String, Subscriber> subscribers, Map<String, MemberAssignment> before) {
            boolean same = subscribers.values().stream().collect(Collectors.toSet()).size() == 1;
            SubscriptionType type = same ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            return new Group(subscribers, type, before, UniformBench.owners(before));
        }

        @Override
        public Collection<String> memberIds() {
            return subscribers.keySet();
        }

        @Override
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return owners.getOrDefault(topic, Map.of()).containsKey(partition);
        }

        @Override
        public boolean isPartitionAssignable(Uuid topic, int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(String member) {
            return subscribers.get(member);
        }

        @Override
        public MemberAssignment memberAssignment(String member) {
            return before.getOrDefault(member, NOTHING);
        }
    }
}
