"""Text for pre-training: prepared once into memory maps, read as pure functions of an index."""
