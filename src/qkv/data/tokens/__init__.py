"""Token ids: parallel tokenisation, sharded files on disk, and memory-mapped arrays."""
