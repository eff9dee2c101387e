"""The commands of qkv, one per file; each is imported only when it is called."""
