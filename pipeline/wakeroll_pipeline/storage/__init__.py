"""Places of a deployment's data, local or in an object store, and the files that wakeroll itself reads there."""
