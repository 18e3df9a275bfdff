package wakeroll;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;

/**
 * The same file system behind Hadoop's other interface, by which Spark writes checkpoints.
 *
 * <p>Spark creates this object several times per batch and never closes it. S3A has a client with threads of its own, so
 * all of these objects use the one file system that the process has of a bucket.
 */
public class ConditionalS3A extends DelegateToFileSystem {
  public ConditionalS3A(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new FilterFileSystem(FileSystem.get(uri, conf)), conf, "s3a", false);
  }

  public int getUriDefaultPort() {
    return -1;
  }
}
