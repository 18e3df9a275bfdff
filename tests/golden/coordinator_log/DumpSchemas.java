import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.CompactArrayOf;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;

/** Prints the schemas of generated classes of Kafka, whose names are the arguments, as JSON. */
public class DumpSchemas {
    @SuppressWarnings("unchecked")
    static TreeMap<Integer, Field> tagged(TaggedFields fields) throws ReflectiveOperationException {
        var its = TaggedFields.class.getDeclaredField("fields");
        its.setAccessible(true);
        return new TreeMap<>((Map<Integer, Field>) its.get(fields));
    }

    static String type(Type type) throws ReflectiveOperationException {
        if (type instanceof Schema schema) return schema(schema);
        if (type instanceof TaggedFields fields) {
            var found = new StringBuilder();
            for (var one : tagged(fields).entrySet()) {
                found.append(found.isEmpty() ? "" : ",").append("\"" + one.getKey() + "\":[\"");
                found.append(one.getValue().name + "\"," + type(one.getValue().type) + "]");
            }
            return "{\"tags\":{" + found + "}}";
        }
        if (type.arrayElementType().isEmpty()) return "\"" + type + "\"";
        String item = type(type.arrayElementType().get());
        return "{\"array\":" + item + ",\"compact\":" + (type instanceof CompactArrayOf) + ",\"null\":" + type.isNullable() + "}";
    }

    static String schema(Schema schema) throws ReflectiveOperationException {
        var found = new StringBuilder();
        for (BoundField one : schema.fields()) {
            found.append(found.isEmpty() ? "" : ",").append("[\"" + one.def.name + "\"," + type(one.def.type) + "]");
        }
        // The class is new in 4.1.
        boolean isNullable = schema.getClass().getSimpleName().equals("NullableSchema");
        return isNullable ? "{\"nullable\":[" + found + "]}" : "[" + found + "]";
    }

    public static void main(String[] names) throws ReflectiveOperationException {
        String between = "{";
        for (String name : names) {
            Class<?> its = Class.forName(name);
            var schemas = (Schema[]) its.getField("SCHEMAS").get(null);
            System.out.print(between + "\"" + its.getSimpleName() + "\":{\"type\":");
            System.out.print(its.getMethod("apiKey").invoke(its.getDeclaredConstructor().newInstance()));
            for (int version = 0; version < schemas.length; version++) {
                if (schemas[version] != null) System.out.print(",\"" + version + "\":" + schema(schemas[version]));
            }
            System.out.print("}");
            between = ",\n";
        }
        System.out.println("}");
    }
}
