"""Pre-training: a corpus, samples, an optimizer, and the loop around them."""
