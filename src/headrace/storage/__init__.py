"""Storage: files of a local directory, an object store or HDFS behind one interface."""
