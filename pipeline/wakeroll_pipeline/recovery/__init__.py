"""Recovery of a coordinator after the loss of its checkpoint, or of a part of its log."""
