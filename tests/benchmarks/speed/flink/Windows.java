// The Flink side of `make bench`: the same windows, from Kafka into an Iceberg table, a checkpoint each second.
//
// java Windows SERVERS TOPIC FOLDER PARALLELISM
//
// FOLDER/table/bench/stats is the table. FOLDER/checkpoints has a line for each checkpoint and partition: its number, the partition,
// and the offset up to which the checkpoint has read. A snapshot of the table names the newest checkpoint that it has.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileWriter;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

public class Windows {
    static final TypeInformation<Row> TRADE = Types.ROW_NAMED(
        new String[] {"ticker", "ts", "ask", "partition", "offset"},
        Types.STRING, Types.INSTANT, Types.DOUBLE, Types.INT, Types.LONG);

    static class Parse implements KafkaRecordDeserializationSchema<Row> {
        private transient ObjectMapper mapper;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Row> out) throws IOException {
            if (mapper == null) {
                mapper = new ObjectMapper();
            }
            JsonNode fields = mapper.readTree(record.value());
            Row row = Row.of(
                fields.get("ticker").asText(),
                Instant.parse(fields.get("ts").asText()),
                fields.get("ask").asDouble(),
                record.partition(),
                record.offset());
            out.collect(row);
        }

        @Override
        public TypeInformation<Row> getProducedType() {
            return TRADE;
        }
    }

    // Notes with each checkpoint how far its subtask had read. It is chained to the source, so no record is between them.
    static class NoteOffsets extends RichMapFunction<Row, Row> implements CheckpointedFunction {
        private final String folder;
        private final Map<Integer, Long> ends = new HashMap<>();

        NoteOffsets(String folder) {
            this.folder = folder;
        }

        @Override
        public Row map(Row row) {
            ends.put((Integer) row.getField(3), (Long) row.getField(4) + 1);
            return row;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws IOException {
            StringBuilder lines = new StringBuilder();
            ends.forEach((partition, end) ->
                lines.append(context.getCheckpointId()).append(' ').append(partition).append(' ').append(end).append('\n'));
            synchronized (NoteOffsets.class) {
                try (FileWriter file = new FileWriter(folder + "/checkpoints", true)) {
                    file.write(lines.toString());
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[1];
        String folder = arguments[2];
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", "hashmap");
        configuration.setString("execution.checkpointing.dir", "file://" + folder + "/state");
        configuration.setString("table.local-time-zone", "UTC");
        configuration.setString("restart-strategy.type", "none");
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(Integer.parseInt(arguments[3]), configuration);
        environment.enableCheckpointing(1000, CheckpointingMode.EXACTLY_ONCE);
        environment.getConfig().enableObjectReuse();
        KafkaSource<Row> source = KafkaSource.<Row>builder()
            .setBootstrapServers(servers)
            .setTopics(topic)
            .setGroupId("flink-windows")
            .setProperty("isolation.level", "read_committed")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Parse())
            .build();
        // Of each partition by itself: one that is read ahead of the others makes no record of theirs late.
        WatermarkStrategy<Row> watermarks = WatermarkStrategy.<Row>forBoundedOutOfOrderness(Duration.ofSeconds(10))
            .withTimestampAssigner((row, ignored) -> ((Instant) row.getField(1)).toEpochMilli());
        DataStream<Row> trades = environment
            .fromSource(source, watermarks, "trades")
            .map(new NoteOffsets(folder))
            .returns(TRADE);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        tables.createTemporaryView("trades", tables.fromDataStream(trades, Schema.newBuilder()
            .column("ticker", "STRING")
            .column("ask", "DOUBLE")
            .columnByMetadata("rowtime", "TIMESTAMP_LTZ(3)")
            .watermark("rowtime", "SOURCE_WATERMARK()")
            .build()));
        tables.executeSql("CREATE CATALOG lake WITH ('type'='iceberg', 'catalog-type'='hadoop', 'warehouse'='file://" + folder + "/table')");
        tables.executeSql("CREATE DATABASE IF NOT EXISTS lake.bench");
        tables.executeSql("CREATE TABLE lake.bench.stats (window_end TIMESTAMP(3), ticker STRING, min_ask DOUBLE, trades BIGINT, avg_ask DOUBLE) "
            + "WITH ('flink.max-continuous-empty-commits'='1')");
        var answer = tables.sqlQuery(
            "SELECT CAST(window_end AS TIMESTAMP(3)) AS window_end, ticker, MIN(ask) AS min_ask, COUNT(*) AS trades, AVG(ask) AS avg_ask "
                + "FROM TABLE(HOP(TABLE trades, DESCRIPTOR(rowtime), INTERVAL '1' SECOND, INTERVAL '5' SECOND)) "
                + "GROUP BY window_start, window_end, ticker");
        System.out.println("ready");
        answer.executeInsert("lake.bench.stats").await();
    }
}
