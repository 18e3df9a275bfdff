"""The Spark session, its JARs, and how it starts quickly."""
