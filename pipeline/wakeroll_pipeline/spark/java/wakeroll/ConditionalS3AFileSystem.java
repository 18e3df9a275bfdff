package wakeroll;

import java.io.IOException;
import java.util.UUID;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.util.Progressable;

/**
 * Hadoop's file system for S3, in which {@code create} without overwriting is atomic: the store refuses all writers but
 * one, when they close the file.
 *
 * <p>S3A itself looks whether the file exists, and then writes it without a condition. So two drivers could both write the
 * same file of a checkpoint, or of a table's log.
 */
public class ConditionalS3AFileSystem extends S3AFileSystem {
  static final String WRITER = "wakeroll-writer";

  public FSDataOutputStream create(
      Path path,
      FsPermission permission,
      boolean overwrite,
      int bufferSize,
      short replication,
      long blockSize,
      Progressable progress)
      throws IOException {
    if (overwrite) {
      return super.create(path, permission, overwrite, bufferSize, replication, blockSize, progress);
    }
    String writer = UUID.randomUUID().toString();
    FSDataOutputStreamBuilder builder = createFile(path);
    builder.create();
    builder.overwrite(false);
    builder.recursive();
    builder.must("fs.option.create.conditional.overwrite", "true");
    // If the answer to a request is lost, it is repeated, and refused as a second writer's; this tells whose the file is.
    builder.must("fs.s3a.create.header." + WRITER, writer);
    FSDataOutputStream stream = (FSDataOutputStream) builder.build();
    return new FSDataOutputStream(new ConditionalStream(this, path, writer, stream), null);
  }
}
