"""The Spark session, its JARs, and class data sharing for a quick start."""
