"""Checks of exercise 13, in the order of its file: first the RNN, then the Transformer."""

from __future__ import annotations

from qkv.learn.exercises.beyond import decoder_checks, recurrent_checks

one_step = recurrent_checks.one_step
all_states = recurrent_checks.all_states
gradient_through_time = recurrent_checks.gradient_through_time
last_state = recurrent_checks.last_state
shorter_rows = recurrent_checks.shorter_rows
additive_weights = recurrent_checks.additive_weights
context_vector = recurrent_checks.context_vector
bahdanau_gradients = recurrent_checks.bahdanau_gradients
shifted_target = recurrent_checks.shifted_target
loss_of_tokens = recurrent_checks.loss_of_tokens

output_shape = decoder_checks.output_shape
equals_attention = decoder_checks.equals_attention
cross_gradients = decoder_checks.cross_gradients
source_padding = decoder_checks.source_padding
causal_target = decoder_checks.causal_target
visible_source = decoder_checks.visible_source
equals_block = decoder_checks.equals_block
