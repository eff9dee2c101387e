"""Look inside a model: attention, logit lens, head patterns, ablation, patching and probes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.insight.attribute.attention_flow import attention_rollout, value_weighted_attention
    from qkv.insight.attribute.edge_patching import edge_attribution
    from qkv.insight.attribute.gradient_patching import attribution_patch
    from qkv.insight.attribute.integrated_gradients import integrated_gradients
    from qkv.insight.attribute.logit_attribution import logit_attribution
    from qkv.insight.circuits.circuit_scores import circuit_scores
    from qkv.insight.circuits.composition_scores import composition_scores
    from qkv.insight.circuits.head_matrices import head_matrices
    from qkv.insight.circuits.token_circuits import token_circuits
    from qkv.insight.dictionary.dictionary_training import train_dictionary
    from qkv.insight.heads.head_ablation import ablate
    from qkv.insight.heads.head_history import head_history
    from qkv.insight.heads.head_patterns import head_patterns
    from qkv.insight.heads.head_syntax import head_syntax
    from qkv.insight.inspect.activation_patching import patch
    from qkv.insight.inspect.alignment import alignment
    from qkv.insight.inspect.attention_edits import Edit, apply_edits
    from qkv.insight.inspect.attribution import attribution
    from qkv.insight.inspect.capture import capture_attention
    from qkv.insight.inspect.logit_lens import logit_lens, next_tokens
    from qkv.insight.inspect.model_input import read
    from qkv.insight.inspect.residual_norms import residual_norms
    from qkv.insight.intervene.edit_effects import edit_effects
    from qkv.insight.intervene.steering import steer, steering_direction
    from qkv.insight.lenses.lens_training import train_lens
    from qkv.insight.lenses.tuned_lens import tuned_lens
    from qkv.insight.look import Look, look
    from qkv.insight.probing.activations import activations
    from qkv.insight.probing.probe_model import probe
    from qkv.insight.probing.probe_tasks import probe_task
    from qkv.insight.walk.head_walk import walk_head
    from qkv.insight.walk.model_walk import walk_model
else:
    from qkv.imports import attach

    attach(__name__)

__all__ = [
    "Edit",
    "Look",
    "ablate",
    "activations",
    "alignment",
    "apply_edits",
    "attention_rollout",
    "attribution",
    "attribution_patch",
    "capture_attention",
    "circuit_scores",
    "composition_scores",
    "edge_attribution",
    "edit_effects",
    "head_history",
    "head_matrices",
    "head_patterns",
    "head_syntax",
    "integrated_gradients",
    "logit_attribution",
    "logit_lens",
    "look",
    "next_tokens",
    "patch",
    "probe",
    "probe_task",
    "read",
    "residual_norms",
    "steer",
    "steering_direction",
    "token_circuits",
    "train_dictionary",
    "train_lens",
    "tuned_lens",
    "value_weighted_attention",
    "walk_head",
    "walk_model",
]
