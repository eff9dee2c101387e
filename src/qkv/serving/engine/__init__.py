"""The inference engine: continuous batching, scheduler, paged KV cache, sampler and beam search."""
