package wakeroll;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same file system behind Hadoop's other interface, by which Spark writes checkpoints. */
public class ConditionalS3A extends DelegateToFileSystem {
  public ConditionalS3A(URI uri, Configuration conf) throws IOException, URISyntaxException {
    super(uri, new ConditionalS3AFileSystem(), conf, "s3a", false);
  }

  public int getUriDefaultPort() {
    return -1;
  }
}
