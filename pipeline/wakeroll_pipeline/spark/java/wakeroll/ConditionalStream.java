package wakeroll;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/** A new file in S3. Closing it fails with Hadoop's usual exception if another writer has created the file meanwhile. */
class ConditionalStream extends OutputStream implements Abortable, StreamCapabilities {
  private final ConditionalS3AFileSystem files;
  private final Path path;
  private final String writer;
  private final FSDataOutputStream stream;

  ConditionalStream(ConditionalS3AFileSystem files, Path path, String writer, FSDataOutputStream stream) {
    this.files = files;
    this.path = path;
    this.writer = writer;
    this.stream = stream;
  }

  public void write(int value) throws IOException {
    stream.write(value);
  }

  public void write(byte[] bytes, int offset, int length) throws IOException {
    stream.write(bytes, offset, length);
  }

  public void flush() throws IOException {
    stream.flush();
  }

  public void close() throws IOException {
    try {
      stream.close();
    } catch (RemoteFileChangedException error) {
      if (!isOurs()) {
        throw (IOException) new FileAlreadyExistsException(path + " was created by another writer").initCause(error);
      }
    }
  }

  public Abortable.AbortableResult abort() {
    return stream.abort();
  }

  public boolean hasCapability(String capability) {
    return stream.hasCapability(capability);
  }

  private boolean isOurs() throws IOException {
    byte[] found = files.getXAttr(path, "header." + ConditionalS3AFileSystem.WRITER);
    return found != null && writer.equals(new String(found, StandardCharsets.UTF_8));
  }
}
